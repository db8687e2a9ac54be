-- +goose Up

-- The secret before the present one, which may sign for a while longer.
ALTER TABLE app_webhooks ADD COLUMN old_secret bytea, ADD COLUMN old_until timestamptz;

-- +goose Down

ALTER TABLE app_webhooks DROP COLUMN old_secret, DROP COLUMN old_until;
