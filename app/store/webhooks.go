package store

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/keyring"
)

// Webhooks returns those of the tasks that have a secret for their webhook.
func (s *Store) Webhooks(ctx context.Context, tasks ...int64) ([]int64, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	return query[int64](ctx, s.read, `SELECT task_id FROM app_webhooks WHERE task_id IN (?)`, bun.List(tasks))
}

// Sealer seals secrets for the database. What it has sealed it opens for the same owner alone, and what
// it has not it returns as it is.
type Sealer interface {
	// Seal seals what the transaction writes. It waits for nothing but the store.
	Seal(ctx context.Context, tx coord.Tx, owner string, secret []byte) ([]byte, error)
	// Open: [keyring.ErrForged] when it can't be opened, as its key is gone.
	Open(ctx context.Context, owner string, stored []byte) ([]byte, error)
}

// WebhookSecret is a secret of a webhook as it is stored.
type WebhookSecret struct {
	TaskID int64
	Old    bool // the one before
	Secret []byte
}

// Owner is the owner for whom a [Sealer] seals it.
func (w WebhookSecret) Owner() string { return strconv.FormatInt(w.TaskID, 10) }

// Webhook returns the secrets that sign for a task's webhook, the present one first, none when
// it has no webhook, and the present by which a signature is judged. One before that can't be opened
// is left out.
func (s *Store) Webhook(ctx context.Context, task int64) (secrets [][]byte, now Time, err error) {
	for before := (signing{}); ; {
		row, err := queryOne[signing](ctx, s.read, `
			SELECT t.now, w.secret, CASE WHEN w.old_until > t.now THEN w.old_secret END AS old_secret
			FROM (SELECT ? AS now) AS t LEFT JOIN app_webhooks AS w ON w.task_id = ?`, s.clock(0), task)
		if err != nil {
			return nil, row.Now, err
		}
		secrets, err := s.openAll(ctx, task, row.Secret, row.OldSecret)
		// What was read may be sealed anew by now, and its key be gone.
		if !errors.Is(err, keyring.ErrForged) || before.same(row) {
			if len(secrets) > 0 && errors.Is(err, keyring.ErrForged) {
				err = nil
			}
			return secrets, row.Now, err
		}
		before = row
	}
}

// signing are the secrets of a webhook that sign.
type signing struct {
	Now               Time
	Secret, OldSecret []byte
}

func (s signing) same(o signing) bool {
	return bytes.Equal(s.Secret, o.Secret) && bytes.Equal(s.OldSecret, o.OldSecret)
}

// openAll opens secrets up to the first that can't be.
func (s *Store) openAll(ctx context.Context, task int64, stored ...[]byte) (secrets [][]byte, err error) {
	for _, secret := range stored {
		if secret == nil {
			continue
		}
		if s.secrets != nil {
			if secret, err = s.secrets.Open(ctx, WebhookSecret{TaskID: task}.Owner(), secret); err != nil {
				return secrets, err
			}
		}
		secrets = append(secrets, secret)
	}
	return secrets, nil
}

// WebhookSecrets returns all secrets of webhooks that may sign, as they are stored.
func (s *Store) WebhookSecrets(ctx context.Context) ([]WebhookSecret, error) {
	return s.webhookSecrets(ctx, s.read)
}

// WebhookSecrets is [Store.WebhookSecrets] inside of the transaction.
func (u Unit) WebhookSecrets(ctx context.Context) ([]WebhookSecret, error) {
	return u.store.webhookSecrets(ctx, u.db)
}

func (s *Store) webhookSecrets(ctx context.Context, db bun.IDB) ([]WebhookSecret, error) {
	return query[WebhookSecret](ctx, db, `
		SELECT task_id, FALSE AS old, secret FROM app_webhooks
		UNION ALL SELECT task_id, TRUE, old_secret FROM app_webhooks WHERE old_secret IS NOT NULL AND old_until > ?
		ORDER BY task_id, old`, s.clock(0))
}

// ReplaceWebhookSecret stores a secret in another form, if it is still stored as it was. It reports
// whether it was.
func (u Unit) ReplaceWebhookSecret(ctx context.Context, was WebhookSecret, stored []byte) (bool, error) {
	column := bun.Safe("secret")
	if was.Old {
		column = "old_secret"
	}
	n, err := exec(ctx, u.db, `UPDATE app_webhooks SET ?0 = ?1 WHERE task_id = ?2 AND ?0 = ?3`, column, stored, was.TaskID, was.Secret)
	return n > 0, err
}

// SetWebhook gives a task's webhook a secret, in place of the one it has, which signs for the
// overlap longer. It returns until when, zero when there is none that does.
func (u Unit) SetWebhook(ctx context.Context, task int64, secret []byte, overlap time.Duration) (Time, error) {
	if u.store.secrets != nil {
		var err error
		if secret, err = u.store.secrets.Seal(ctx, u.Coord, WebhookSecret{TaskID: task}.Owner(), secret); err != nil {
			return Time{}, err
		}
	}
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
