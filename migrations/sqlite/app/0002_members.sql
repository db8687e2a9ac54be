-- +goose Up

-- A column's check can't be changed, so the column is replaced.
ALTER TABLE app_users RENAME COLUMN role TO old_role;
ALTER TABLE app_users ADD COLUMN role TEXT NOT NULL DEFAULT 'member' CHECK (role IN ('admin', 'member', 'guest'));
UPDATE app_users SET role = old_role;
ALTER TABLE app_users DROP COLUMN old_role;

-- The key of a public room is its name as it is compared, that of a direct one its two
-- people; that of a private one is random, so that nobody meets its name.
ALTER TABLE app_rooms RENAME COLUMN name_key TO key;
ALTER TABLE app_rooms ADD COLUMN kind TEXT NOT NULL DEFAULT 'public' CHECK (kind IN ('public', 'private', 'direct'));
ALTER TABLE app_rooms ADD COLUMN description TEXT NOT NULL DEFAULT '';
CREATE INDEX app_rooms_public ON app_rooms (id) WHERE kind = 'public';

ALTER TABLE app_messages ADD COLUMN edited_at INTEGER;
ALTER TABLE app_messages ADD COLUMN deleted_at INTEGER;     -- its text is gone

CREATE TABLE app_members (
    room_id INTEGER NOT NULL REFERENCES app_rooms (id) ON DELETE CASCADE,
    user_id INTEGER NOT NULL REFERENCES app_users (id) ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('owner', 'member')),
    joined_at INTEGER NOT NULL,
    PRIMARY KEY (room_id, user_id)
) WITHOUT ROWID;
CREATE INDEX app_members_user ON app_members (user_id);

-- Up to which message somebody has read a room, also as no member of it.
CREATE TABLE app_reads (
    user_id INTEGER NOT NULL REFERENCES app_users (id) ON DELETE CASCADE,
    room_id INTEGER NOT NULL REFERENCES app_rooms (id) ON DELETE CASCADE,
    message_id INTEGER NOT NULL,
    PRIMARY KEY (user_id, room_id)
) WITHOUT ROWID;
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
DROP TABLE app_reads;
DROP TABLE app_members;
ALTER TABLE app_messages DROP COLUMN edited_at;
ALTER TABLE app_messages DROP COLUMN deleted_at;
ALTER TABLE app_rooms DROP COLUMN kind;
ALTER TABLE app_rooms DROP COLUMN description;
ALTER TABLE app_rooms RENAME COLUMN key TO name_key;
ALTER TABLE app_users RENAME COLUMN role TO new_role;
ALTER TABLE app_users ADD COLUMN role TEXT NOT NULL DEFAULT 'member' CHECK (role IN ('admin', 'member'));
UPDATE app_users SET role = 'admin' WHERE new_role = 'admin';
ALTER TABLE app_users DROP COLUMN new_role;
