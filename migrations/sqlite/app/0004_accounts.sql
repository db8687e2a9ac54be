-- +goose Up

-- Who is deactivated can't sign in, and is known still by what they have done.
ALTER TABLE app_users ADD COLUMN deactivated_at INTEGER;

-- A token is the session of a program: it was given a name and scopes, and ends when it was
-- told to, not by being idle.
ALTER TABLE app_sessions ADD COLUMN kind TEXT NOT NULL DEFAULT 'browser' CHECK (kind IN ('browser', 'token'));
ALTER TABLE app_sessions ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE app_sessions ADD COLUMN scopes TEXT NOT NULL DEFAULT '';     -- with a space between them
ALTER TABLE app_sessions ADD COLUMN expires_at INTEGER;                  -- of a token
ALTER TABLE app_sessions ADD COLUMN address TEXT NOT NULL DEFAULT '';    -- where it was made
ALTER TABLE app_sessions ADD COLUMN user_agent TEXT NOT NULL DEFAULT '';

-- A link that does one thing once: it lets somebody in, or gives them a new password.
CREATE TABLE app_links (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL CHECK (kind IN ('invitation', 'reset')),
    secret_hash BLOB NOT NULL UNIQUE,
    role TEXT CHECK (role IN ('admin', 'member', 'guest')),                 -- of an invitation
    room_id INTEGER REFERENCES app_rooms (id) ON DELETE SET NULL,           -- of an invitation
    user_id INTEGER REFERENCES app_users (id) ON DELETE CASCADE,            -- of a reset
    created_by INTEGER REFERENCES app_users (id) ON DELETE CASCADE,         -- nobody: at the command line
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    CHECK ((kind = 'invitation') = (role IS NOT NULL)),
    CHECK ((kind = 'reset') = (user_id IS NOT NULL))
);
CREATE UNIQUE INDEX app_links_reset ON app_links (user_id) WHERE kind = 'reset';
CREATE INDEX app_links_expires ON app_links (expires_at);

-- Rows that are written to before something is decided that no row by itself stands for.
CREATE TABLE app_locks (
    name TEXT PRIMARY KEY
) WITHOUT ROWID;
INSERT INTO app_locks (name) VALUES ('admins');

-- Who did what. The names are those of then.
CREATE TABLE app_audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    actor_id INTEGER,                       -- nobody: at the command line, or somebody unknown
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    address TEXT NOT NULL,
    details TEXT NOT NULL                   -- JSON
);
CREATE INDEX app_audit_at ON app_audit (at);
CREATE INDEX app_audit_actor ON app_audit (actor_id, id);
CREATE INDEX app_audit_action ON app_audit (action, id);

-- +goose Down

DROP TABLE app_audit;
DROP TABLE app_locks;
DROP TABLE app_links;
DELETE FROM app_sessions WHERE kind = 'token';  -- which would be sessions that may do everything
ALTER TABLE app_sessions DROP COLUMN kind;
ALTER TABLE app_sessions DROP COLUMN name;
ALTER TABLE app_sessions DROP COLUMN scopes;
ALTER TABLE app_sessions DROP COLUMN expires_at;
ALTER TABLE app_sessions DROP COLUMN address;
ALTER TABLE app_sessions DROP COLUMN user_agent;
UPDATE app_users SET password_hash = '' WHERE deactivated_at IS NOT NULL;  -- which matches nothing
ALTER TABLE app_users DROP COLUMN deactivated_at;
