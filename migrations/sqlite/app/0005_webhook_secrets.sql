-- +goose Up

-- The secret before the present one, which may sign for a while longer.
ALTER TABLE app_webhooks ADD COLUMN old_secret BLOB;
ALTER TABLE app_webhooks ADD COLUMN old_until INTEGER;

-- +goose Down

ALTER TABLE app_webhooks DROP COLUMN old_secret;
ALTER TABLE app_webhooks DROP COLUMN old_until;
