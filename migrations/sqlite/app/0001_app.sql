-- +goose Up

-- Times are integer microseconds.

CREATE TABLE app_users (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    name_key TEXT NOT NULL UNIQUE,  -- the name as it is compared
    role TEXT NOT NULL CHECK (role IN ('admin', 'member')),
    password_hash TEXT NOT NULL,
    -- Whoever used the set-up link. There is one at most, so that two people who
    -- use two links at the same moment do not both become administrator.
    founder INTEGER UNIQUE CHECK (founder = 1),
    created_at INTEGER NOT NULL
);

CREATE TABLE app_setup_tokens (
    token_hash BLOB PRIMARY KEY,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE app_sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    secret_hash BLOB NOT NULL UNIQUE,
    user_id INTEGER NOT NULL REFERENCES app_users (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
);
CREATE INDEX app_sessions_user ON app_sessions (user_id);
CREATE INDEX app_sessions_seen ON app_sessions (seen_at);

CREATE TABLE app_rooms (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    name_key TEXT NOT NULL UNIQUE,
    created_by INTEGER REFERENCES app_users (id) ON DELETE SET NULL,
    created_at INTEGER NOT NULL
);

-- A message is written by a user or by a task.
CREATE TABLE app_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    room_id INTEGER NOT NULL REFERENCES app_rooms (id) ON DELETE CASCADE,
    user_id INTEGER REFERENCES app_users (id),
    task_name TEXT,
    client_id TEXT NOT NULL,
    text TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    CHECK ((user_id IS NULL) <> (task_name IS NULL)),
    UNIQUE (user_id, client_id)     -- sending again finds the first one
);
CREATE INDEX app_messages_room ON app_messages (room_id, id);

-- The secrets with which others sign what triggers a task. Tasks are of another set
-- of tables; an id that a task has had is no other task's.
CREATE TABLE app_webhooks (
    task_id INTEGER PRIMARY KEY,
    secret BLOB NOT NULL,
    created_at INTEGER NOT NULL
);

-- +goose Down

DROP TABLE app_webhooks;
DROP TABLE app_messages;
DROP TABLE app_rooms;
DROP TABLE app_sessions;
DROP TABLE app_setup_tokens;
DROP TABLE app_users;
