-- +goose Up

-- Who is deactivated can't sign in, and is known still by what they have done.
ALTER TABLE app_users ADD COLUMN deactivated_at timestamptz;

-- A token is the session of a program: it was given a name and scopes, and ends when it was
-- told to, not by being idle.
ALTER TABLE app_sessions
    ADD COLUMN kind text NOT NULL DEFAULT 'browser' CHECK (kind IN ('browser', 'token')),
    ADD COLUMN name text NOT NULL DEFAULT '',
    ADD COLUMN scopes text NOT NULL DEFAULT '',     -- with a space between them
    ADD COLUMN expires_at timestamptz,              -- of a token
    ADD COLUMN address text NOT NULL DEFAULT '',    -- where it was made
    ADD COLUMN user_agent text NOT NULL DEFAULT '';

-- A link that does one thing once: it lets somebody in, or gives them a new password.
CREATE TABLE app_links (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('invitation', 'reset')),
    secret_hash bytea NOT NULL UNIQUE,
    role text CHECK (role IN ('admin', 'member', 'guest')),                 -- of an invitation
    room_id bigint REFERENCES app_rooms (id) ON DELETE SET NULL,            -- of an invitation
    user_id bigint REFERENCES app_users (id) ON DELETE CASCADE,             -- of a reset
    created_by bigint REFERENCES app_users (id) ON DELETE CASCADE,          -- nobody: at the command line
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    CHECK ((kind = 'invitation') = (role IS NOT NULL)),
    CHECK ((kind = 'reset') = (user_id IS NOT NULL))
);
CREATE UNIQUE INDEX app_links_reset ON app_links (user_id) WHERE kind = 'reset';
CREATE INDEX app_links_expires ON app_links (expires_at);

-- Rows that are written to before something is decided that no row by itself stands for.
CREATE TABLE app_locks (
    name text PRIMARY KEY
);
INSERT INTO app_locks (name) VALUES ('admins');

-- Who did what. The names are those of then.
CREATE TABLE app_audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    actor_id bigint,                        -- nobody: at the command line, or somebody unknown
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    address text NOT NULL,
    details text NOT NULL                   -- JSON
);
CREATE INDEX app_audit_at ON app_audit (at);
CREATE INDEX app_audit_actor ON app_audit (actor_id, id);
CREATE INDEX app_audit_action ON app_audit (action, id);

-- +goose Down

DROP TABLE app_audit, app_locks, app_links;
DELETE FROM app_sessions WHERE kind = 'token';  -- which would be sessions that may do everything
ALTER TABLE app_sessions DROP COLUMN kind, DROP COLUMN name, DROP COLUMN scopes, DROP COLUMN expires_at,
    DROP COLUMN address, DROP COLUMN user_agent;
UPDATE app_users SET password_hash = '' WHERE deactivated_at IS NOT NULL;  -- which matches nothing
ALTER TABLE app_users DROP COLUMN deactivated_at;
