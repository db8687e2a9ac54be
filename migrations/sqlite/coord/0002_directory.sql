-- +goose Up

-- Times are integer microseconds.

-- Whoever has joined the directory.
CREATE TABLE coord_members (
    id TEXT PRIMARY KEY,         -- random
    name TEXT NOT NULL,
    data BLOB NOT NULL,
    since INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX coord_members_lease ON coord_members (lease_until);

-- What members have registered. An entry lives as long as its member's lease.
CREATE TABLE coord_entries (
    key TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    member_id TEXT NOT NULL,
    data BLOB NOT NULL,
    since INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX coord_entries_member ON coord_entries (member_id);

-- Registrations that were taken over, until the member that lost them has heard.
CREATE TABLE coord_losses (
    member_id TEXT NOT NULL,
    by_epoch INTEGER NOT NULL,   -- of the registration that took it over
    key TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    PRIMARY KEY (member_id, by_epoch)
) WITHOUT ROWID;

-- One row: the last epoch that a change of the directory has taken.
CREATE TABLE coord_epoch (
    one INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    epoch INTEGER NOT NULL
);
INSERT INTO coord_epoch (epoch) VALUES (0);

-- +goose Down
DROP TABLE coord_epoch;
DROP TABLE coord_losses;
DROP TABLE coord_entries;
DROP TABLE coord_members;
