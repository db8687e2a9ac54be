package sqlite

import (
	"context"
	"database/sql"

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
		if _, err := tx.exec(ctx, tx.prepared.makeRoom, f.Session, tx.now.UnixMicro(), coord.MaxTickets-1); err != nil {
			return err
		}
		expires = after(tx.now, f.TTL)
		_, err := tx.exec(ctx, tx.prepared.issue,
			hash[:], f.Purpose, f.User, f.Session, f.Origin, f.Scope, row.Micros(f.TTL), expires.UnixMicro())
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
	var burnt *row.Ticket
	err := t.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		burnt = nil
		return tx.each(ctx, tx.prepared.redeem, []any{hash[:], tx.now.UnixMicro()}, func(rows *sql.Rows) error {
			burnt = new(row.Ticket)
			return rows.Scan(&burnt.Purpose, &burnt.User, &burnt.Session, &burnt.Origin, &burnt.Scope, &burnt.TTL, &burnt.Expired)
		})
	})
	switch {
	case err != nil:
		return coord.TicketFor{}, storeError(ctx, err)
	case burnt == nil:
		return coord.TicketFor{}, coord.ErrNotFound
	}
	return burnt.Redeem(use)
}

func (t tickets) Reap(ctx context.Context) (int, error) {
	return t.b.reap(ctx, func(tx bun.Tx, now row.Time) *bun.RawQuery {
		return tx.NewRaw(`DELETE FROM coord_tickets WHERE id IN (
			SELECT id FROM coord_tickets WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)`, now, reapBatch)
	})
}
