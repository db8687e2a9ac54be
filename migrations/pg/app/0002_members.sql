-- +goose Up

ALTER TABLE app_users DROP CONSTRAINT app_users_role_check;
ALTER TABLE app_users ADD CONSTRAINT app_users_role_check CHECK (role IN ('admin', 'member', 'guest'));

-- The key of a public room is its name as it is compared, that of a direct one its two
-- people; that of a private one is random, so that nobody meets its name.
ALTER TABLE app_rooms RENAME COLUMN name_key TO key;
ALTER TABLE app_rooms ADD COLUMN kind text NOT NULL DEFAULT 'public' CHECK (kind IN ('public', 'private', 'direct'));
ALTER TABLE app_rooms ADD COLUMN description text NOT NULL DEFAULT '';
CREATE INDEX app_rooms_public ON app_rooms (id) WHERE kind = 'public';

ALTER TABLE app_messages ADD COLUMN edited_at timestamptz;
ALTER TABLE app_messages ADD COLUMN deleted_at timestamptz;     -- its text is gone

-- With an index on the id alone, the last messages of a room in which little happens would be
-- searched among those of all rooms.
ALTER TABLE app_messages DROP CONSTRAINT app_messages_pkey, ADD PRIMARY KEY (room_id, id);
DROP INDEX app_messages_room;

CREATE TABLE app_members (
    room_id bigint NOT NULL REFERENCES app_rooms (id) ON DELETE CASCADE,
    user_id bigint NOT NULL REFERENCES app_users (id) ON DELETE CASCADE,
    role text NOT NULL CHECK (role IN ('owner', 'member')),
    joined_at timestamptz NOT NULL,
    PRIMARY KEY (room_id, user_id)
);
CREATE INDEX app_members_user ON app_members (user_id);

-- Up to which message somebody has read a room, also as no member of it.
CREATE TABLE app_reads (
    user_id bigint NOT NULL REFERENCES app_users (id) ON DELETE CASCADE,
    room_id bigint NOT NULL REFERENCES app_rooms (id) ON DELETE CASCADE,
    message_id bigint NOT NULL,
    PRIMARY KEY (user_id, room_id)
);
CREATE INDEX app_reads_room ON app_reads (room_id);

-- Who made a room, and who posted in it.
INSERT INTO app_members (room_id, user_id, role, joined_at)
SELECT id, created_by, 'owner', created_at FROM app_rooms WHERE created_by IS NOT NULL;
INSERT INTO app_members (room_id, user_id, role, joined_at)
SELECT room_id, user_id, 'member', min(created_at) FROM app_messages WHERE user_id IS NOT NULL
GROUP BY room_id, user_id ON CONFLICT DO NOTHING;
INSERT INTO app_reads (user_id, room_id, message_id)
SELECT m.user_id, m.room_id, (SELECT max(id) FROM app_messages WHERE room_id = m.room_id) FROM app_members AS m
WHERE EXISTS (SELECT 1 FROM app_messages WHERE room_id = m.room_id);

-- +goose Down

DELETE FROM app_rooms WHERE kind <> 'public';   -- everybody would see them
DROP INDEX app_rooms_public;
DROP TABLE app_reads, app_members;
CREATE INDEX app_messages_room ON app_messages (room_id, id);
ALTER TABLE app_messages DROP CONSTRAINT app_messages_pkey, ADD PRIMARY KEY (id),
    DROP COLUMN edited_at, DROP COLUMN deleted_at;
ALTER TABLE app_rooms DROP COLUMN kind, DROP COLUMN description;
ALTER TABLE app_rooms RENAME COLUMN key TO name_key;
UPDATE app_users SET role = 'member' WHERE role = 'guest';
ALTER TABLE app_users DROP CONSTRAINT app_users_role_check;
ALTER TABLE app_users ADD CONSTRAINT app_users_role_check CHECK (role IN ('admin', 'member'));
