-- +goose Up

CREATE TABLE coord_leaders (
    name TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,   -- of the last term
    holder TEXT NOT NULL,     -- of it; '' when they have resigned, as candidate
    candidate TEXT NOT NULL,
    lease INTEGER NOT NULL,   -- microseconds
    since INTEGER,            -- when the term began
    until INTEGER             -- when the lease ends; NULL when nobody leads, as since
) WITHOUT ROWID;

-- +goose Down
DROP TABLE coord_leaders;
