package memory

import (
	"context"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

type ticket struct {
	hash    coord.TicketHash
	what    coord.TicketFor
	expires time.Time
	index   int // in passes.byExpiry
}

func (t *ticket) expired(now time.Time) bool { return !now.Before(t.expires) }

// passes are the tickets of a store.
type passes struct {
	byHash    map[coord.TicketHash]*ticket
	bySession map[string][]*ticket // the oldest first
	byExpiry  pile[*ticket]
}

func newPasses() passes {
	return passes{
		byHash:    make(map[coord.TicketHash]*ticket),
		bySession: make(map[string][]*ticket),
		byExpiry: pile[*ticket]{
			less:  func(a, b *ticket) bool { return a.expires.Before(b.expires) },
			place: func(t *ticket) *int { return &t.index },
		},
	}
}

func (p *passes) add(t *ticket) {
	p.byHash[t.hash] = t
	p.bySession[t.what.Session] = append(p.bySession[t.what.Session], t)
	p.byExpiry.push(t)
}

func (p *passes) remove(t *ticket) {
	delete(p.byHash, t.hash)
	p.byExpiry.remove(t)
	session := t.what.Session
	rest := slices.DeleteFunc(p.bySession[session], func(o *ticket) bool { return o == t })
	if len(rest) == 0 {
		delete(p.bySession, session)
	} else {
		p.bySession[session] = rest
	}
}

// makeRoom keeps a session within MaxTickets: an expired ticket goes before a
// good one, and an older one before a newer.
func (p *passes) makeRoom(session string, now time.Time) {
	of := p.bySession[session]
	if len(of) < coord.MaxTickets {
		return
	}
	i := slices.IndexFunc(of, func(t *ticket) bool { return t.expired(now) })
	p.remove(of[max(i, 0)])
}

type tickets struct{ store *Store }

func (k tickets) Issue(ctx context.Context, what coord.TicketFor) (issued coord.Ticket, err error) {
	secret := coord.NewTicketSecret()
	p := &k.store.passes
	err = k.store.write(ctx, func(now time.Time) error {
		p.makeRoom(what.Session, now)
		issued = coord.Ticket{Secret: secret, Expires: now.Add(what.TTL)}
		p.add(&ticket{hash: coord.HashTicket(secret), what: what, expires: issued.Expires})
		return nil
	})
	return issued, err
}

func (k tickets) Redeem(ctx context.Context, secret string, use coord.TicketUse) (what coord.TicketFor, err error) {
	p := &k.store.passes
	err = k.store.write(ctx, func(now time.Time) error {
		t := p.byHash[coord.HashTicket(secret)]
		if t == nil {
			return coord.ErrNotFound
		}
		p.remove(t)
		switch {
		case t.expired(now):
			return coord.ErrExpired
		case !use.Fits(t.what):
			return coord.ErrConflict
		}
		what = t.what
		return nil
	})
	return what, err
}

func (k tickets) Reap(ctx context.Context) (n int, err error) {
	p := &k.store.passes
	err = k.store.write(ctx, func(now time.Time) error {
		for n < batch && p.byExpiry.len() > 0 && p.byExpiry.top().expired(now) {
			p.remove(p.byExpiry.top())
			n++
		}
		return nil
	})
	return n, err
}
