package store

import (
	"context"

	"github.com/uptrace/bun"
)

// Webhooks returns those of the tasks that have a secret for their webhook.
func (s *Store) Webhooks(ctx context.Context, tasks ...int64) ([]int64, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	return query[int64](ctx, s.read, `SELECT task_id FROM app_webhooks WHERE task_id IN (?)`, bun.List(tasks))
}

// Webhook returns the secret of a task's webhook, nil when it has none, and the
// present by which a signature is judged.
func (s *Store) Webhook(ctx context.Context, task int64) (secret []byte, now Time, err error) {
	row, err := queryOne[struct {
		Now    Time
		Secret []byte
	}](ctx, s.read, `SELECT ? AS now, (SELECT secret FROM app_webhooks WHERE task_id = ?) AS secret`, s.clock(0), task)
	return row.Secret, row.Now, err
}

// SetWebhook gives a task's webhook a secret, in place of the one it has.
func (u Unit) SetWebhook(ctx context.Context, task int64, secret []byte) error {
	_, err := exec(ctx, u.db, `
		INSERT INTO app_webhooks (task_id, secret, created_at) VALUES (?, ?, ?)
		ON CONFLICT (task_id) DO UPDATE SET secret = excluded.secret, created_at = excluded.created_at`,
		task, secret, u.store.clock(0))
	return err
}

// DropWebhook takes the secret of a task's webhook away. It reports whether there
// was one.
func (u Unit) DropWebhook(ctx context.Context, task int64) (there bool, err error) {
	n, err := exec(ctx, u.db, `DELETE FROM app_webhooks WHERE task_id = ?`, task)
	return n > 0, err
}
