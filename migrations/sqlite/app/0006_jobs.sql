-- +goose Up

-- What is known of each background job: whose turn was the last, and when the next is.
CREATE TABLE app_jobs (
    name TEXT PRIMARY KEY,
    turn INTEGER NOT NULL,                  -- how many there have been
    node TEXT NOT NULL,                     -- whose the last one is
    started_at INTEGER NOT NULL,
    ended_at INTEGER,                       -- of that turn: nothing while it lasts, and when its replica vanished
    done INTEGER NOT NULL DEFAULT 0,        -- what the last one that ended has done, in pieces
    ok_at INTEGER,                          -- when one succeeded last
    failures INTEGER NOT NULL DEFAULT 0,    -- turns that failed since
    error TEXT NOT NULL DEFAULT '',         -- of the last one that failed
    error_at INTEGER,
    next_at INTEGER NOT NULL                -- when somebody may take the next turn
) WITHOUT ROWID;

-- +goose Down

DROP TABLE app_jobs;
