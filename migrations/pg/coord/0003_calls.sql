-- +goose Up

CREATE TABLE coord_calls (
    n bigint GENERATED ALWAYS AS IDENTITY, -- in the order in which they were opened
    id text PRIMARY KEY,
    key text UNIQUE,             -- NULL: none
    target text NOT NULL,        -- who alone may answer
    kind text NOT NULL,
    payload bytea NOT NULL,
    state text NOT NULL,         -- open, answered, cancelled or expired
    result bytea,
    error text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    deadline timestamptz NOT NULL,
    ended_at timestamptz         -- NULL: it is open
);
CREATE INDEX coord_calls_open ON coord_calls (target, n) WHERE state = 'open';
CREATE INDEX coord_calls_deadline ON coord_calls (deadline);

-- +goose Down
DROP TABLE coord_calls;
