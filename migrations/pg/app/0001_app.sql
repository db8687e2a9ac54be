-- +goose Up

CREATE TABLE app_users (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    name_key text NOT NULL UNIQUE,  -- the name as it is compared
    role text NOT NULL CHECK (role IN ('admin', 'member')),
    password_hash text NOT NULL,
    -- Whoever used the set-up link. There is one at most, so that two people who
    -- use two links at the same moment do not both become administrator.
    founder smallint UNIQUE CHECK (founder = 1),
    created_at timestamptz NOT NULL
);

CREATE TABLE app_setup_tokens (
    token_hash bytea PRIMARY KEY,
    expires_at timestamptz NOT NULL
);

CREATE TABLE app_sessions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    secret_hash bytea NOT NULL UNIQUE,
    user_id bigint NOT NULL REFERENCES app_users (id) ON DELETE CASCADE,
    created_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL
);
CREATE INDEX app_sessions_user ON app_sessions (user_id);
CREATE INDEX app_sessions_seen ON app_sessions (seen_at);

CREATE TABLE app_rooms (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    name_key text NOT NULL UNIQUE,
    created_by bigint REFERENCES app_users (id) ON DELETE SET NULL,
    created_at timestamptz NOT NULL
);

-- A message is written by a user or by a task.
CREATE TABLE app_messages (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    room_id bigint NOT NULL REFERENCES app_rooms (id) ON DELETE CASCADE,
    user_id bigint REFERENCES app_users (id),
    task_name text,
    client_id text NOT NULL,
    text text NOT NULL,
    created_at timestamptz NOT NULL,
    CHECK ((user_id IS NULL) <> (task_name IS NULL)),
    UNIQUE (user_id, client_id)     -- sending again finds the first one
);
CREATE INDEX app_messages_room ON app_messages (room_id, id);

-- The secrets with which others sign what triggers a task. Tasks are of another set
-- of tables; an id that a task has had is no other task's.
CREATE TABLE app_webhooks (
    task_id bigint PRIMARY KEY,
    secret bytea NOT NULL,
    created_at timestamptz NOT NULL
);

-- +goose Down

DROP TABLE app_webhooks, app_messages, app_rooms, app_sessions, app_setup_tokens, app_users;
