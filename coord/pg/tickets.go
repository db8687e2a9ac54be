package pg

import (
	"context"
	"slices"
	"time"

	"github.com/lib/pq"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type tickets struct{ b *backend }

// Concurrent issues of one replica share a statement, and concurrent redemptions do.
const (
	ticketBatch   = 200 // tickets
	ticketFlights = 2   // statements at a time, when they take long
)

// newTicket is one that is to be stored.
type newTicket struct {
	coord.TicketFor
	hash coord.TicketHash
}

func (t tickets) Issue(ctx context.Context, f coord.TicketFor) (coord.Ticket, error) {
	secret := coord.NewTicketSecret()
	now, err := share(ctx, t.b, t.b.issues, newTicket{f, coord.HashTicket(secret)})
	if err != nil {
		return coord.Ticket{}, err
	}
	return coord.Ticket{Secret: secret, Expires: now.Add(f.TTL.Truncate(time.Microsecond))}, nil
}

// issueShared stores the tickets of several calls, and returns the time at which it did
// for each.
func (b *backend) issueShared(ctx context.Context, tickets []newTicket) ([]time.Time, error) {
	var hashes pq.ByteaArray
	var purposes, users, sessions, origins, scopes pq.StringArray
	var ttls pq.Int64Array
	for _, t := range tickets {
		hashes, purposes, users = append(hashes, t.hash[:]), append(purposes, t.Purpose), append(users, t.User)
		sessions, origins, scopes = append(sessions, t.Session), append(origins, t.Origin), append(scopes, t.Scope)
		ttls = append(ttls, row.Micros(t.TTL))
	}
	var now []row.Moment
	err := b.db.NewRaw(`SELECT coord_issue(?, ?, ?, ?, ?, ?, ?, ?) AS at`,
		hashes, purposes, users, sessions, origins, scopes, ttls, coord.MaxTickets).Scan(ctx, &now)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return slices.Repeat([]time.Time{now[0].At.Time}, len(tickets)), nil
}

// Redeem burns first and looks afterwards.
func (t tickets) Redeem(ctx context.Context, secret string, use coord.TicketUse) (coord.TicketFor, error) {
	burnt, err := share(ctx, t.b, t.b.redemptions, coord.HashTicket(secret))
	switch {
	case err != nil:
		return coord.TicketFor{}, err
	case burnt == nil:
		return coord.TicketFor{}, coord.ErrNotFound
	}
	return burnt.Redeem(use)
}

// redeemShared burns the tickets of several calls. One that several calls name is the
// first one's alone.
func (b *backend) redeemShared(ctx context.Context, secrets []coord.TicketHash) ([]*row.Ticket, error) {
	hashes := make(pq.ByteaArray, len(secrets))
	for i := range secrets {
		hashes[i] = secrets[i][:]
	}
	var rows []row.Ticket
	err := b.db.NewRaw(`SELECT * FROM coord_redeem(?, ?)`, hashes, coord.MaxTickets).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	burnt := make(map[coord.TicketHash]*row.Ticket, len(rows))
	for i := range rows {
		burnt[coord.TicketHash(rows[i].Hash)] = &rows[i]
	}
	tickets := make([]*row.Ticket, len(secrets))
	for i, hash := range secrets {
		tickets[i] = burnt[hash]
		delete(burnt, hash)
	}
	return tickets, nil
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
