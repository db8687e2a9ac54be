package coordtest

import (
	"errors"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord"
)

// modelTicket is a ticket that was issued.
type modelTicket struct {
	coord.Ticket
	what   coord.TicketFor
	gone   bool // redeemed, or replaced while it was good
	hidden bool // it may have been deleted when it had expired
}

type ticketsModel struct {
	model
	issued []*modelTicket
}

func newTicketsModel(m model) *ticketsModel { return &ticketsModel{model: m} }

func (m *ticketsModel) actions() actions {
	return actions{
		"issue": m.issueOne, "issue again": m.issueOne, "issue once more": m.issueOne, "redeem": m.redeemOne, "redeem again": m.redeemOne,
		"advance": m.advance, "reap": m.reapAll, "invent": m.invent,
	}
}

func (m *ticketsModel) expired(t *modelTicket) bool { return !m.store.Now().Before(t.Expires) }

func (m *ticketsModel) issueOne(t *rapid.T) {
	m.store.Advance(time.Millisecond) // so that which is the oldest is no matter of chance
	what := pass(m.name(pick(t, "session", "s1", "s2")))
	what.Origin = pick(t, "origin", "", "https://chat.example")
	ticket, err := m.backend(t).Tickets().Issue(m.ctx, what)
	must(t, "Issue", err)
	equal(t, "Expires", ticket.Expires, m.store.Now().Add(what.TTL))
	m.issued = append(m.issued, &modelTicket{Ticket: ticket, what: what})
	m.replace(what.Session)
}

// replace takes the oldest good ticket of a session beyond MaxTickets away. All
// have one lifetime, so the oldest goes first either way.
func (m *ticketsModel) replace(session string) {
	good := 0
	for _, ticket := range slices.Backward(m.issued) {
		switch {
		case ticket.what.Session != session || ticket.gone:
		case m.expired(ticket):
			ticket.hidden = true
		default:
			if good++; good > coord.MaxTickets {
				ticket.gone = true
			}
		}
	}
}

func (m *ticketsModel) redeemOne(t *rapid.T) {
	if len(m.issued) == 0 {
		return
	}
	ticket := m.issued[max(0, len(m.issued)-1-rapid.IntRange(0, 8).Draw(t, "how many newer"))]
	use := using(ticket.what)
	fits := pick(t, "right use", true, true, false)
	if !fits {
		use.Scope += "x"
	}
	what, err := m.backend(t).Tickets().Redeem(m.ctx, ticket.Secret, use)
	switch {
	case ticket.gone:
		is(t, "Redeem of a ticket that is redeemed or replaced", err, coord.ErrNotFound)
	case m.expired(ticket):
		// Whoever expires and is refused for another reason too may hear of either.
		allowed := errors.Is(err, coord.ErrExpired) || ticket.hidden && errors.Is(err,
			coord.ErrNotFound) || !fits && errors.Is(err, coord.ErrConflict)
		if !allowed {
			t.Fatalf("Redeem of an expired ticket: the error is %v; want ErrExpired", err)
		}
	case !fits:
		is(t, "Redeem for another scope", err, coord.ErrConflict)
	default:
		must(t, "Redeem of a good ticket", err)
		equal(t, "what the ticket was for", what, ticket.what)
	}
	ticket.gone = true
}

func (m *ticketsModel) invent(t *rapid.T) {
	_, err := m.backend(t).Tickets().Redeem(m.ctx, coord.NewTicketSecret(), using(pass("s")))
	is(t, "Redeem of an unknown secret", err, coord.ErrNotFound)
}

func (m *ticketsModel) advance(t *rapid.T) {
	m.store.Advance(pick(t, "by", time.Second, 5*time.Second, 31*time.Second))
}

func (m *ticketsModel) reapAll(t *rapid.T) {
	_, err := m.backend(t).Tickets().Reap(m.ctx)
	must(t, "Reap", err)
	for _, ticket := range m.issued {
		ticket.hidden = ticket.hidden || m.expired(ticket)
	}
}
