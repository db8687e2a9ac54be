-- +goose Up

CREATE TABLE coord_calls (
    n INTEGER PRIMARY KEY AUTOINCREMENT, -- in the order in which they were opened
    id TEXT NOT NULL UNIQUE,
    key TEXT UNIQUE,             -- NULL: none
    target TEXT NOT NULL,        -- who alone may answer
    kind TEXT NOT NULL,
    payload BLOB NOT NULL,
    state TEXT NOT NULL,         -- open, answered, cancelled or expired
    result BLOB,
    error TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    ended_at INTEGER             -- NULL: it is open
);
CREATE INDEX coord_calls_open ON coord_calls (target, n) WHERE state = 'open';
CREATE INDEX coord_calls_deadline ON coord_calls (deadline);

-- +goose Down
DROP TABLE coord_calls;
