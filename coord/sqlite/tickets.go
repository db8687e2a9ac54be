package sqlite

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type tickets struct{ b *backend }

func (t tickets) Issue(ctx context.Context, f coord.TicketFor) (coord.Ticket, error) {
	secret := coord.NewTicketSecret()
	hash := coord.HashTicket(secret)
	var expires row.Time
	err := t.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		// What has expired must not take the place of what is good.
		_, err := tx.NewRaw(`DELETE FROM coord_tickets WHERE session_id = ?0 AND (expires_at <= ?1 OR id IN (
			SELECT id FROM coord_tickets WHERE session_id = ?0 AND expires_at > ?1 ORDER BY id DESC LIMIT -1 OFFSET ?2))`,
			f.Session, tx.now, coord.MaxTickets-1).Exec(ctx)
		if err != nil {
			return err
		}
		expires = after(tx.now, f.TTL)
		_, err = tx.NewRaw(`INSERT INTO coord_tickets (hash, purpose, user_id, session_id, origin, scope, ttl, expires_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			hash[:], f.Purpose, f.User, f.Session, f.Origin, f.Scope, row.Micros(f.TTL), expires).Exec(ctx)
		return err
	})
	if err != nil {
		return coord.Ticket{}, storeError(ctx, err)
	}
	return coord.Ticket{Secret: secret, Expires: expires.Time}, nil
}

// Redeem burns first and looks afterwards. Issuers can't race here, so there are
// never more tickets of a session than are good.
func (t tickets) Redeem(ctx context.Context, secret string, use coord.TicketUse) (coord.TicketFor, error) {
	hash := coord.HashTicket(secret)
	var rows []row.Ticket
	err := t.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		return tx.NewRaw(`DELETE FROM coord_tickets WHERE hash = ?
			RETURNING purpose, user_id, session_id, origin, scope, ttl, expires_at <= ? AS expired`,
			hash[:], tx.now).Scan(ctx, &rows)
	})
	switch {
	case err != nil:
		return coord.TicketFor{}, storeError(ctx, err)
	case len(rows) == 0:
		return coord.TicketFor{}, coord.ErrNotFound
	}
	return rows[0].Redeem(use)
}

func (t tickets) Reap(ctx context.Context) (int, error) {
	return t.b.reap(ctx, func(tx bun.Tx, now row.Time) *bun.RawQuery {
		return tx.NewRaw(`DELETE FROM coord_tickets WHERE id IN (
			SELECT id FROM coord_tickets WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)`, now, reapBatch)
	})
}
