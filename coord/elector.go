package coord

import (
	"context"
	"time"
)

// Elector lets one candidate at a time lead under a name. Who leads holds a lease, which
// they extend, and each term has an epoch that is higher than all before it. Package
// coord/leader is the campaign above this.
//
// That a leader believes to lead is not enough to write: it may have stood still since it
// looked. What it writes in one transaction with [Tx.Fence] has an effect only while its
// term lasts, and no new term begins before that transaction has ended. So two terms never
// overlap in effect.
type Elector interface {
	// Stand asks to lead. When nobody does, a term of the caller's begins; Mine says so.
	// Otherwise it returns who leads, and does not wait for them. It may say that of a leader
	// whose term has just ended, too, such as while a transaction with its Fence is under way.
	// A holder that stands again while it leads begins another term, and the one before is
	// over: so does who has not heard the answer.
	//
	// A lease that ends later than it ever could, since the clock stepped back, is shortened
	// to its length from now.
	//
	// Errors: ErrInvalid; ErrUnavailable; ErrUnknownOutcome, after which the same holder may
	// stand again.
	Stand(ctx context.Context, c Candidacy) (Leadership, error)
	// Extend lets the lease of a term end that long from now. Errors: ErrFenced when the
	// term is over, which it is for good as soon as its lease has ended.
	Extend(ctx context.Context, t Term, lease time.Duration) (Leadership, error)
	// Resign ends a term; another may begin at once. It waits for transactions with a Fence of
	// the term. Errors: ErrFenced when it is over already.
	Resign(ctx context.Context, t Term) error
	// Leaders lists who leads, by name.
	Leaders(ctx context.Context) ([]Leadership, error)
	// Changes returns a channel that receives when somebody may have resigned, and a
	// function that gives the channel up. A hint is only that: it may come late, for nothing,
	// or not at all. A lease that ends sends none.
	Changes() (changes <-chan struct{}, stop func())
}

// Candidacy is a wish to lead.
type Candidacy struct {
	Name      string // under which one leads; 1–200 bytes. Each that has ever had a leader is remembered
	Candidate string // for people to read; 1–200 bytes
	// Holder is who stands. The same one must not stand under a name twice at a time, nor
	// while it leads; 1–200 bytes, by default a random text.
	Holder string
	Lease  time.Duration // how long a term lasts unless it is extended; 1 s–10 min, default 15 s
}

// Term names a time during which one candidate leads, and is what fences.
type Term struct {
	Name  string
	Epoch int64 // those of a name only grow; above 0
}

// Leadership is who leads.
type Leadership struct {
	Term             // the last one, when nobody leads
	Candidate string // "" when nobody leads
	Since     time.Time
	Until     time.Time // by the store's clock, as Since: when the lease ends
	Mine      bool      // the term is the caller's own
}

// StoredLeadership is what a store that decides in Go keeps of a name, the zero value when
// nobody has ever led; for authors of drivers.
type StoredLeadership struct {
	Epoch     int64  // of the last term
	Holder    string // of it
	Candidate string
	Lease     time.Duration
	Since     time.Time
	Until     time.Time // zero when they have resigned
}

// Lasts reports whether the term of an epoch is not over at now.
func (s StoredLeadership) Lasts(epoch int64, now time.Time) bool {
	return s.Epoch == epoch && now.Before(s.Until)
}

// Stand returns what the candidacy makes of it at now; mine says that a term has begun.
func (s StoredLeadership) Stand(c Candidacy, now time.Time) (next StoredLeadership, mine bool) {
	if !s.Lasts(s.Epoch, now) || s.Holder == c.Holder {
		next = StoredLeadership{Epoch: s.Epoch + 1, Holder: c.Holder, Candidate: c.Candidate, Since: now}
		return next.Extend(c.Lease, now), true
	}
	if most := now.Add(s.Lease); s.Until.After(most) {
		s.Until = most
	}
	return s, false
}

// Extend returns what an extension makes of it at now.
func (s StoredLeadership) Extend(lease time.Duration, now time.Time) StoredLeadership {
	s.Lease = lease.Truncate(time.Microsecond)
	s.Until = now.Add(s.Lease)
	return s
}

// Resigned returns what a resignation makes of it.
func (s StoredLeadership) Resigned() StoredLeadership { return StoredLeadership{Epoch: s.Epoch} }

// Leadership returns what is told of it.
func (s StoredLeadership) Leadership(name string, mine bool) Leadership {
	return Leadership{Term: Term{name, s.Epoch}, Candidate: s.Candidate, Since: s.Since, Until: s.Until, Mine: mine}
}
