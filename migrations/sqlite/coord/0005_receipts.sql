-- +goose Up

CREATE TABLE coord_receipts (
    token INTEGER PRIMARY KEY AUTOINCREMENT, -- of the last hold
    key BLOB NOT NULL UNIQUE,    -- SHA-256, as the fingerprint
    fingerprint BLOB NOT NULL,
    holder TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0,
    keep INTEGER NOT NULL,       -- microseconds, once it is done
    until INTEGER NOT NULL,      -- when the lease ends, or when what is done is kept no longer
    error TEXT NOT NULL DEFAULT '',
    body BLOB NOT NULL DEFAULT x''
);
CREATE INDEX coord_receipts_until ON coord_receipts (until);

-- +goose Down
DROP TABLE coord_receipts;
