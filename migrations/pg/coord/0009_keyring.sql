-- +goose Up

-- Rings of keys, see Keyring of package coord. Who changes a ring has its row locked.
CREATE TABLE coord_rings (
    name text COLLATE "C" PRIMARY KEY,
    revision bigint NOT NULL,        -- grows by one with each change
    changed_at timestamptz NOT NULL
);

CREATE TABLE coord_keys (
    ring text COLLATE "C" NOT NULL REFERENCES coord_rings,
    version bigint NOT NULL,
    state text NOT NULL CHECK (state IN ('next', 'active', 'retiring', 'retired')),
    material bytea CHECK ((material IS NULL) = (state = 'retired')),
    sealed_by text NOT NULL,         -- what the material is sealed under, '' when it is not
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL, -- when it came to its state
    PRIMARY KEY (ring, version)
);
CREATE UNIQUE INDEX coord_keys_active ON coord_keys (ring) WHERE state = 'active';
CREATE UNIQUE INDEX coord_keys_next ON coord_keys (ring) WHERE state = 'next';

CREATE TABLE coord_revocations (
    ring text COLLATE "C" NOT NULL REFERENCES coord_rings,
    number bigint NOT NULL,          -- the ring's revision since then
    version bigint NOT NULL,         -- of the key that was revoked, or 0
    token text NOT NULL,             -- what was revoked, '' when a key was
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (ring, number)
);

-- +goose Down
DROP TABLE coord_revocations, coord_keys, coord_rings;
