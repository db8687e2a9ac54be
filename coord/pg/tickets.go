package pg

import (
	"context"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type tickets struct{ b *backend }

func (t tickets) Issue(ctx context.Context, f coord.TicketFor) (coord.Ticket, error) {
	secret := coord.NewTicketSecret()
	hash := coord.HashTicket(secret)
	var expires []row.Moment
	err := t.b.db.NewRaw(`WITH replaced AS (
			DELETE FROM coord_tickets WHERE id IN (
				SELECT id FROM coord_tickets WHERE id IN (
					SELECT id FROM coord_tickets WHERE session_id = ? AND expires_at > coord_now() ORDER BY id DESC OFFSET ?)
				FOR UPDATE SKIP LOCKED)
		)
		INSERT INTO coord_tickets (hash, purpose, user_id, session_id, origin, scope, ttl, expires_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, coord_clock() + ? * interval '1 microsecond') RETURNING expires_at AS at`,
		f.Session, coord.MaxTickets-1,
		hash[:], f.Purpose, f.User, f.Session, f.Origin, f.Scope, row.Micros(f.TTL), row.Micros(f.TTL)).Scan(ctx, &expires)
	if err != nil {
		return coord.Ticket{}, storeError(ctx, err)
	}
	return coord.Ticket{Secret: secret, Expires: expires[0].At.Time}, nil
}

// Redeem burns first and looks afterwards. Issuers that race may leave more
// tickets of a session than are good. The count of newer ones tells, and they go
// along, so that none becomes good again when a newer one is used up.
func (t tickets) Redeem(ctx context.Context, secret string, use coord.TicketUse) (coord.TicketFor, error) {
	hash := coord.HashTicket(secret)
	var rows []row.Ticket
	err := t.b.db.NewRaw(`WITH burnt AS (
			DELETE FROM coord_tickets t WHERE hash = ?
			RETURNING purpose, user_id, session_id, origin, scope, ttl, expires_at <= coord_clock() AS expired,
				(SELECT count(*) FROM coord_tickets n WHERE n.session_id = t.session_id AND n.id > t.id
					AND n.expires_at > coord_now()) AS newer
		), replaced AS (
			DELETE FROM coord_tickets WHERE id IN (
				SELECT id FROM coord_tickets o WHERE id IN (
					SELECT x.id FROM burnt CROSS JOIN LATERAL (
						SELECT id FROM coord_tickets WHERE session_id = burnt.session_id AND expires_at > coord_now()
						ORDER BY id DESC OFFSET ?) AS x)
				FOR UPDATE OF o SKIP LOCKED)
		)
		SELECT * FROM burnt`, hash[:], coord.MaxTickets).Scan(ctx, &rows)
	switch {
	case err != nil:
		return coord.TicketFor{}, storeError(ctx, err)
	case len(rows) == 0:
		return coord.TicketFor{}, coord.ErrNotFound
	}
	return rows[0].Redeem(use)
}

func (t tickets) Reap(ctx context.Context) (int, error) {
	res, err := t.b.db.NewRaw(`DELETE FROM coord_tickets WHERE id IN (
		SELECT id FROM coord_tickets WHERE expires_at <= coord_now() ORDER BY expires_at LIMIT ? FOR UPDATE SKIP LOCKED)`,
		reapBatch).Exec(ctx)
	if err != nil {
		return 0, storeError(ctx, err)
	}
	n, _ := res.RowsAffected()
	return int(n), nil
}
