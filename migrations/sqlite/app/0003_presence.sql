-- +goose Up

-- What was last announced of a person, and when that was or they were last there.
ALTER TABLE app_users ADD COLUMN presence TEXT NOT NULL DEFAULT 'offline' CHECK (presence IN ('online', 'away', 'offline'));
ALTER TABLE app_users ADD COLUMN last_seen INTEGER;
CREATE INDEX app_users_present ON app_users (id) WHERE presence <> 'offline';

-- +goose Down

DROP INDEX app_users_present;
ALTER TABLE app_users DROP COLUMN presence;
ALTER TABLE app_users DROP COLUMN last_seen;
