package coord

import "context"

type ticketsSeam struct {
	*seam
	driver Tickets
}

func (s ticketsSeam) Issue(ctx context.Context, t TicketFor) (ticket Ticket, err error) {
	bad := t.complete()
	err = s.do(ctx, "tickets.issue", t.User, 1, bad, func() (err error) {
		ticket, err = s.driver.Issue(ctx, t)
		return err
	})
	return ticket, err
}

// Redeem never lets the secret into an error, and spares the store one that no
// ticket can have.
func (s ticketsSeam) Redeem(ctx context.Context, secret string, use TicketUse) (t TicketFor, err error) {
	err = s.do(ctx, "tickets.redeem", "", 1, nil, func() (err error) {
		if len(secret) != secretLen {
			return ErrNotFound
		}
		t, err = s.driver.Redeem(ctx, secret, use)
		return err
	})
	return t, err
}

func (s ticketsSeam) Reap(ctx context.Context) (n int, err error) {
	err = s.do(ctx, "tickets.reap", "", 1, nil, func() (err error) {
		n, err = s.driver.Reap(ctx)
		return err
	})
	return n, err
}
