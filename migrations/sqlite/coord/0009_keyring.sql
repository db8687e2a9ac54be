-- +goose Up

-- Rings of keys, see Keyring of package coord.
CREATE TABLE coord_rings (
    name TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,   -- grows by one with each change
    changed_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE coord_keys (
    ring TEXT NOT NULL REFERENCES coord_rings,
    version INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('next', 'active', 'retiring', 'retired')),
    material BLOB CHECK ((material IS NULL) = (state = 'retired')),
    sealed_by TEXT NOT NULL,     -- what the material is sealed under, '' when it is not
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL, -- when it came to its state
    PRIMARY KEY (ring, version)
) WITHOUT ROWID;
CREATE UNIQUE INDEX coord_keys_active ON coord_keys (ring) WHERE state = 'active';
CREATE UNIQUE INDEX coord_keys_next ON coord_keys (ring) WHERE state = 'next';

CREATE TABLE coord_revocations (
    ring TEXT NOT NULL REFERENCES coord_rings,
    number INTEGER NOT NULL,     -- the ring's revision since then
    version INTEGER NOT NULL,    -- of the key that was revoked, or 0
    token TEXT NOT NULL,         -- what was revoked, '' when a key was
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (ring, number)
) WITHOUT ROWID;

-- +goose Down
DROP TABLE coord_revocations;
DROP TABLE coord_keys;
DROP TABLE coord_rings;
