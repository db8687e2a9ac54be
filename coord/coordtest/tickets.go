package coordtest

import (
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// pass is a ticket of a session.
func pass(session string) coord.TicketFor {
	return coord.TicketFor{
		Purpose: "ws", User: "ada", Session: session, Origin: "https://chat.example", Scope: "room:1", TTL: 30 * time.Second,
	}
}

// using puts a ticket to the use it was issued for.
func using(t coord.TicketFor) coord.TicketUse {
	return coord.TicketUse{Purpose: t.Purpose, Origin: t.Origin, Scope: t.Scope}
}

func (f *fixture) issue(b coord.Backend, t coord.TicketFor) coord.Ticket {
	f.Helper()
	ticket, err := b.Tickets().Issue(f.ctx, t)
	must(f, "Issue", err)
	return ticket
}

func (f *fixture) redeem(b coord.Backend, secret string, t coord.TicketFor) error {
	_, err := b.Tickets().Redeem(f.ctx, secret, using(t))
	return err
}

func (f *fixture) reap() (n int) {
	f.Helper()
	for {
		deleted, err := f.one.Tickets().Reap(f.ctx)
		must(f, "Reap", err)
		if deleted == 0 {
			return n
		}
		n += deleted
	}
}

var ticketTests = []test{
	{"what has expired takes no place of what is good", func(f *fixture) {
		long, short := pass("s"), pass("s")
		long.TTL, short.TTL = time.Hour, time.Second
		first := f.issue(f.one, long)
		for range coord.MaxTickets - 1 {
			f.issue(f.two, short)
		}
		f.store.Advance(2 * time.Second)
		for range coord.MaxTickets - 1 {
			f.issue(f.two, long)
		}
		must(f, "Redeem of the first, one of five that are good", f.redeem(f.two, first.Secret, long))
	}},
	{"a ticket opens once, on any handle", func(f *fixture) {
		t := pass("s")
		ticket := f.issue(f.one, t)
		if bits, err := base64.RawURLEncoding.DecodeString(ticket.Secret); err != nil || len(bits) != 16 {
			f.Errorf("the secret %q is not 128 bits in base64url", ticket.Secret)
		}
		equal(f, "Expires", ticket.Expires, f.store.Now().Add(t.TTL))
		what, err := f.two.Tickets().Redeem(f.ctx, ticket.Secret, using(t))
		must(f, "Redeem", err)
		equal(f, "what the ticket was for", what, t)
		for _, b := range f.handles() {
			is(f, "Redeem, again", f.redeem(b, ticket.Secret, t), coord.ErrNotFound)
		}
	}},
	{"secrets differ", func(f *fixture) {
		seen := map[string]bool{}
		for range 50 {
			seen[f.issue(f.one, pass("s")).Secret] = true
		}
		equal(f, "how many different secrets 50 tickets have", len(seen), 50)
	}},
	{"defaults and optional fields", func(f *fixture) {
		bare := coord.TicketFor{Purpose: "p", User: "u", Session: "s"}
		ticket := f.issue(f.one, bare)
		equal(f, "Expires with the default TTL", ticket.Expires, f.store.Now().Add(30*time.Second))
		is(f, "Redeem with an origin of a ticket that allows none",
			f.redeem(f.two, ticket.Secret, coord.TicketFor{Purpose: "p", Origin: "https://evil.example"}), coord.ErrConflict)
		must(f, "Redeem without origin and scope", f.redeem(f.two, f.issue(f.one, bare).Secret, bare))
		odd := coord.TicketFor{
			Purpose: "π", User: "Zoë 😀", Session: strings.Repeat("s", 200), Origin: "null",
			Scope: "%_'\"\\", TTL: time.Hour,
		}
		what, err := f.two.Tickets().Redeem(f.ctx, f.issue(f.one, odd).Secret, using(odd))
		must(f, "Redeem", err)
		equal(f, "what the ticket was for", what, odd)
	}},
	{"of 32 racers one wins", func(f *fixture) {
		for range 5 {
			t := pass("s")
			ticket := f.issue(f.one, t)
			var won atomic.Int64
			f.together(32, func(_ int, b coord.Backend) {
				switch err := f.redeem(b, ticket.Secret, t); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, coord.ErrNotFound):
					f.Errorf("Redeem in a race: %v; want ErrNotFound", err)
				}
			})
			equal(f, "how many of 32 racers got in", won.Load(), 1)
		}
	}},
	{"a ticket expires", func(f *fixture) {
		t := pass("s")
		early, late := f.issue(f.one, t), f.issue(f.one, t)
		f.store.Advance(t.TTL - time.Microsecond)
		must(f, "Redeem a microsecond before the end", f.redeem(f.two, early.Secret, t))
		f.store.Advance(2 * time.Microsecond)
		is(f, "Redeem a microsecond after the end", f.redeem(f.two, late.Secret, t), coord.ErrExpired)
		is(f, "Redeem of an expired ticket, again", f.redeem(f.two, late.Secret, t), coord.ErrNotFound)
	}},
	{"a wrong use burns the ticket", func(f *fixture) {
		t := pass("s")
		for name, use := range map[string]coord.TicketUse{
			"purpose":   {Purpose: "other", Origin: t.Origin, Scope: t.Scope},
			"origin":    {Purpose: t.Purpose, Origin: "https://chat.example.evil", Scope: t.Scope},
			"no origin": {Purpose: t.Purpose, Scope: t.Scope},
			"scope":     {Purpose: t.Purpose, Origin: t.Origin, Scope: "room:2"},
			"no scope":  {Purpose: t.Purpose, Origin: t.Origin},
			"case":      {Purpose: t.Purpose, Origin: "https://Chat.example", Scope: t.Scope},
		} {
			ticket := f.issue(f.one, t)
			what, err := f.two.Tickets().Redeem(f.ctx, ticket.Secret, use)
			is(f, "Redeem with another "+name, err, coord.ErrConflict)
			equal(f, "what a refused Redeem tells", what, coord.TicketFor{})
			is(f, "Redeem after one with another "+name, f.redeem(f.one, ticket.Secret, t), coord.ErrNotFound)
		}
	}},
	{"a sixth ticket replaces the oldest of its session", func(f *fixture) {
		other := pass("other")
		foreign := f.issue(f.one, other)
		var tickets []coord.Ticket
		for i := range coord.MaxTickets + 2 {
			t := pass("s")
			t.TTL = time.Hour - time.Duration(i)*time.Minute // the oldest would last longest
			tickets = append(tickets, f.issue(f.handles()[i%2], t))
			f.store.Advance(time.Millisecond)
		}
		for i, ticket := range tickets {
			err := f.redeem(f.two, ticket.Secret, pass("s"))
			if i < 2 {
				is(f, "Redeem of a ticket that was replaced", err, coord.ErrNotFound)
			} else {
				must(f, "Redeem of one of the five newest", err)
			}
		}
		must(f, "Redeem of a ticket of another session", f.redeem(f.two, foreign.Secret, other))
	}},
	{"redeemed tickets make room", func(f *fixture) {
		t := pass("s")
		kept := f.issue(f.one, t)
		for range 2 * coord.MaxTickets {
			f.store.Advance(time.Millisecond)
			must(f, "Redeem", f.redeem(f.two, f.issue(f.one, t).Secret, t))
		}
		must(f, "Redeem of the oldest", f.redeem(f.two, kept.Secret, t))
	}},
	{"tickets redeemed at once, of those issued at once, keep to five", func(f *fixture) {
		for range 5 {
			var secrets [20]string
			f.together(len(secrets), func(i int, b coord.Backend) {
				ticket, err := b.Tickets().Issue(f.ctx, pass("s"))
				if secrets[i] = ticket.Secret; err != nil {
					f.Errorf("Issue: %v", err)
				}
			})
			var good atomic.Int64
			f.together(len(secrets), func(i int, b coord.Backend) {
				switch err := f.redeem(b, secrets[i], pass("s")); {
				case err == nil:
					good.Add(1)
				case !errors.Is(err, coord.ErrNotFound):
					f.Errorf("Redeem: %v; want ErrNotFound", err)
				}
			})
			equal(f, "how many of 20 tickets issued and redeemed at once were good", good.Load(), coord.MaxTickets)
		}
	}},
	{"tickets issued at once keep to five", func(f *fixture) {
		var mu sync.Mutex
		var secrets []string
		f.together(20, func(_ int, b coord.Backend) {
			ticket, err := b.Tickets().Issue(f.ctx, pass("s"))
			if err != nil {
				f.Errorf("Issue: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			secrets = append(secrets, ticket.Secret)
		})
		good := 0
		for _, secret := range secrets {
			switch err := f.redeem(f.one, secret, pass("s")); {
			case err == nil:
				good++
			case !errors.Is(err, coord.ErrNotFound):
				f.Errorf("Redeem: %v; want ErrNotFound", err)
			}
		}
		equal(f, "how many of 20 tickets issued at once for one session are good", good, coord.MaxTickets)
	}},
	{"Reap deletes what has expired", func(f *fixture) {
		short, long := pass("short"), pass("long")
		long.TTL = time.Hour
		f.issue(f.one, short)
		f.issue(f.one, short)
		kept := f.issue(f.one, long)
		equal(f, "how many tickets Reap deleted at once", f.reap(), 0)
		f.store.Advance(time.Minute)
		equal(f, "how many tickets Reap deleted after a minute", f.reap(), 2)
		equal(f, "how many tickets Reap deleted then", f.reap(), 0)
		must(f, "Redeem of a ticket that lasts an hour", f.redeem(f.two, kept.Secret, long))
	}},
	{"odd secrets are not found", func(f *fixture) {
		good := f.issue(f.one, pass("s")).Secret
		for _, secret := range []string{
			"", " ", good + " ", good[:21], good + "A", strings.ToLower(good) + "\x00", "\x00", "\xff\xfe", strings.Repeat("A", 22),
			strings.Repeat("é", 11), strings.Repeat("A", 1<<20), "' OR 1=1 --", "%%%%%%%%%%%%%%%%%%%%%%", coord.NewTicketSecret(),
		} {
			is(f, "Redeem of an odd secret", f.redeem(f.two, secret, pass("s")), coord.ErrNotFound)
		}
		must(f, "Redeem of the good one", f.redeem(f.two, good, pass("s")))
	}},
	{"a secret is in no error", func(f *fixture) {
		secret := coord.NewTicketSecret()
		if err := f.redeem(f.one, secret, pass("s")); strings.Contains(err.Error(), secret) {
			f.Errorf("the error holds the secret: %v", err)
		}
	}},
}
