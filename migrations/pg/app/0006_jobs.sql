-- +goose Up

-- What is known of each background job: whose turn was the last, and when the next is.
CREATE TABLE app_jobs (
    name text PRIMARY KEY,
    turn bigint NOT NULL,                   -- how many there have been
    node text NOT NULL,                     -- whose the last one is
    started_at timestamptz NOT NULL,
    ended_at timestamptz,                   -- of that turn: nothing while it lasts, and when its replica vanished
    done bigint NOT NULL DEFAULT 0,         -- what the last one that ended has done, in pieces
    ok_at timestamptz,                      -- when one succeeded last
    failures bigint NOT NULL DEFAULT 0,     -- turns that failed since
    error text NOT NULL DEFAULT '',         -- of the last one that failed
    error_at timestamptz,
    next_at timestamptz NOT NULL            -- when somebody may take the next turn
);

-- +goose Down

DROP TABLE app_jobs;
