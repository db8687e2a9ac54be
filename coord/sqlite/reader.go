package sqlite

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// reader finds new events for the streams of this process.
//
// There is one writer at a time, so the events that are new since the last look
// are those with higher ids. Ids are never used again, even when all events are
// trimmed.
type reader struct {
	b    *backend
	work chan struct{} // one slot: there is, or may be, something new
}

func newReader(b *backend) *reader { return &reader{b: b, work: make(chan struct{}, 1)} }

// wake makes the reader look at once.
func (r *reader) wake() {
	select {
	case r.work <- struct{}{}:
	default:
	}
}

func (r *reader) run(ctx context.Context) {
	persist(ctx, r.follow, func(err error) { r.b.log().WarnContext(ctx, "event reader failed", "error", err) })
}

// follow reads until that fails. looked is true when it worked for a while.
func (r *reader) follow(ctx context.Context) (looked bool, err error) {
	seen, err := r.last(ctx)
	if err != nil {
		return false, err
	}
	if err := r.b.feed.Resync(ctx); err != nil {
		return false, err
	}
	for {
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-r.work:
		}
		if seen, err = r.look(ctx, seen); err != nil {
			return true, err
		}
	}
}

// last returns the highest id that an event has ever had.
func (r *reader) last(ctx context.Context) (int64, error) {
	var ids []int64
	err := r.b.db.Read.NewRaw(`SELECT seq FROM sqlite_sequence WHERE name = 'coord_events'`).Scan(ctx, &ids)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	return ids[0], nil
}

// look delivers the events behind the id seen and returns the last one's.
func (r *reader) look(ctx context.Context, seen int64) (int64, error) {
	if !r.b.feed.Listening() {
		// Nobody listens, so nothing is read. Who came meanwhile must look for
		// themselves.
		last, err := r.last(ctx)
		if err == nil && r.b.feed.Listening() {
			err = r.b.feed.Resync(ctx)
		}
		return last, err
	}
	const most = 500 // events handed on together
	for {
		var rows []struct {
			ID int64 `bun:"id"`
			row.Event
		}
		err := r.b.db.Read.NewRaw(`SELECT id, topic, seq, tag, kind, payload, at FROM coord_events
			WHERE id > ? ORDER BY id LIMIT ?`, seen, most).Scan(ctx, &rows)
		if err != nil {
			return seen, err
		}
		events := make([]coord.Event, len(rows))
		for i, e := range rows {
			events[i], seen = e.Coord(), e.ID
		}
		r.b.feed.Deliver(events)
		if len(rows) < most {
			return seen, nil
		}
	}
}

// persist runs a loop again when it fails, each time a little later. It reports
// the first failure after a time in which it worked.
func persist(ctx context.Context, loop func(context.Context) (worked bool, err error), report func(error)) {
	const least, most = 50 * time.Millisecond, 5 * time.Second
	pause := least
	for ctx.Err() == nil {
		worked, err := loop(ctx)
		if ctx.Err() != nil {
			return
		}
		if worked {
			pause = least
		}
		if pause == least {
			report(err)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
		}
		pause = min(2*pause, most)
	}
}
