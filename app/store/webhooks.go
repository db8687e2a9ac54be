package store

import (
	"context"
	"time"

	"github.com/uptrace/bun"
)

// Webhooks returns those of the tasks that have a secret for their webhook.
func (s *Store) Webhooks(ctx context.Context, tasks ...int64) ([]int64, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	return query[int64](ctx, s.read, `SELECT task_id FROM app_webhooks WHERE task_id IN (?)`, bun.List(tasks))
}

// Webhook returns the secrets that sign for a task's webhook, the present one first, none when
// it has no webhook, and the present by which a signature is judged.
func (s *Store) Webhook(ctx context.Context, task int64) (secrets [][]byte, now Time, err error) {
	row, err := queryOne[struct {
		Now               Time
		Secret, OldSecret []byte
	}](ctx, s.read, `
		SELECT t.now, w.secret, CASE WHEN w.old_until > t.now THEN w.old_secret END AS old_secret
		FROM (SELECT ? AS now) AS t LEFT JOIN app_webhooks AS w ON w.task_id = ?`, s.clock(0), task)
	for _, secret := range [][]byte{row.Secret, row.OldSecret} {
		if secret != nil {
			secrets = append(secrets, secret)
		}
	}
	return secrets, row.Now, err
}

// SetWebhook gives a task's webhook a secret, in place of the one it has, which signs for the
// overlap longer. It returns until when, zero when there is none that does.
func (u Unit) SetWebhook(ctx context.Context, task int64, secret []byte, overlap time.Duration) (Time, error) {
	row, err := queryOne[struct{ OldUntil Time }](ctx, u.db, `
		INSERT INTO app_webhooks (task_id, secret, created_at) VALUES (?0, ?1, ?2)
		ON CONFLICT (task_id) DO UPDATE SET secret = excluded.secret, created_at = excluded.created_at,
			old_secret = CASE WHEN ?3 THEN app_webhooks.secret END, old_until = CASE WHEN ?3 THEN ?4 END
		RETURNING old_until`,
		task, secret, u.store.clock(0), overlap > 0, u.store.clock(overlap))
	return row.OldUntil, err
}

// DropWebhook takes the secret of a task's webhook away. It reports whether there
// was one.
func (u Unit) DropWebhook(ctx context.Context, task int64) (there bool, err error) {
	n, err := exec(ctx, u.db, `DELETE FROM app_webhooks WHERE task_id = ?`, task)
	return n > 0, err
}
