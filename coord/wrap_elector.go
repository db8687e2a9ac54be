package coord

import (
	"context"
	"time"
)

type electorSeam struct {
	*seam
	driver Elector
}

func (c *Candidacy) complete() error {
	if c.Holder == "" {
		c.Holder = newHolder()
	}
	orDefault(&c.Lease, 15*time.Second)
	return invalid(
		text("Candidacy.Name", c.Name, 1, maxName),
		text("Candidacy.Candidate", c.Candidate, 1, maxName),
		text("Candidacy.Holder", c.Holder, 1, maxName),
		termLease("Candidacy.Lease", c.Lease),
	)
}

func termLease(field string, lease time.Duration) error {
	return span(field, lease, minLease, 10*time.Minute)
}

func (t Term) check() error { return text("Term.Name", t.Name, 1, maxName) }

// begun spares the store a term that never began.
func (t Term) begun(call func() error) func() error {
	if t.Epoch > 0 {
		return call
	}
	return func() error { return ErrFenced }
}

func (s electorSeam) Stand(ctx context.Context, c Candidacy) (l Leadership, err error) {
	bad := c.complete()
	err = s.do(ctx, "elector.stand", c.Name, 1, bad, func() (err error) {
		l, err = s.driver.Stand(ctx, c)
		return err
	})
	return l, err
}

func (s electorSeam) Extend(ctx context.Context, t Term, lease time.Duration) (l Leadership, err error) {
	bad := invalid(t.check(), termLease("lease", lease))
	err = s.do(ctx, "elector.extend", t.Name, 1, bad, t.begun(func() (err error) {
		l, err = s.driver.Extend(ctx, t, lease)
		return err
	}))
	return l, err
}

func (s electorSeam) Resign(ctx context.Context, t Term) error {
	return s.do(ctx, "elector.resign", t.Name, 1, t.check(), t.begun(func() error { return s.driver.Resign(ctx, t) }))
}

func (s electorSeam) Leaders(ctx context.Context) (list []Leadership, err error) {
	err = s.do(ctx, "elector.leaders", "", 1, nil, func() (err error) {
		list, err = s.driver.Leaders(ctx)
		return err
	})
	return list, err
}

func (s electorSeam) Changes() (<-chan struct{}, func()) { return s.driver.Changes() }
