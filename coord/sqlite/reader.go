package sqlite

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/feed"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// reader finds new events for the streams of this process.
//
// There is one writer at a time, so the events that are new since the last look
// are those with higher ids. Ids are never used again, even when all events are
// trimmed, unless the file is restored from a backup under way.
type reader struct {
	b    *backend
	work chan struct{} // one slot: there is, or may be, something new
	// opened was taken before anybody could subscribe, so that the first streams
	// need no comparing. It is nil once it is used.
	opened *mark
	// passed: something came while nobody listened, and was not looked at.
	passed atomic.Bool
}

func newReader(b *backend) *reader { return &reader{b: b, work: make(chan struct{}, 1)} }

// ring tells the reader of new events. Without streams nobody looks: who comes later
// looks for themselves.
func (r *reader) ring() {
	if r.b.feed.Listening() {
		r.wake()
	} else {
		r.passed.Store(true)
	}
}

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
	var seen mark
	if r.opened != nil {
		seen, r.opened = *r.opened, nil
	} else if seen, err = r.resync(ctx); err != nil {
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

// mark is the last event that was seen.
type mark struct {
	ID  int64 `bun:"id"`  // the highest that an event has ever had
	Tag int64 `bun:"tag"` // of that event; -1 when it was trimmed
}

// last returns the mark of the present.
func (r *reader) last(ctx context.Context) (mark, error) {
	var marks []mark
	err := r.b.db.Read.NewRaw(`SELECT s.seq AS id, COALESCE(e.tag, -1) AS tag
		FROM sqlite_sequence s LEFT JOIN coord_events e ON e.id = s.seq WHERE s.name = 'coord_events'`).Scan(ctx, &marks)
	if err != nil || len(marks) == 0 {
		return mark{Tag: -1}, err
	}
	return marks[0], nil
}

// holds reports whether the history up to a mark is the one that it was taken
// of. That its event was trimmed meanwhile is no matter.
func (r *reader) holds(ctx context.Context, m mark) (bool, error) {
	var holds []bool
	err := r.b.db.Read.NewRaw(`SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'coord_events'), 0) >= ?0
		AND NOT EXISTS (SELECT 1 FROM coord_events WHERE id = ?0 AND tag <> ?1)`, m.ID, m.Tag).Scan(ctx, &holds)
	return len(holds) == 1 && holds[0], err
}

// resync makes all streams compare themselves with the store, and looks only for
// what follows.
func (r *reader) resync(ctx context.Context) (mark, error) {
	last, err := r.last(ctx)
	if err != nil {
		return last, err
	}
	return last, r.b.feed.Resync(ctx)
}

// look delivers the events behind what was seen and returns the last one's mark.
func (r *reader) look(ctx context.Context, seen mark) (mark, error) {
	if r.passed.Swap(false) {
		return r.resync(ctx)
	}
	const most = 500 // events handed on together
	for {
		var rows []struct {
			ID int64 `bun:"id"`
			row.Event
			Prev int64 `bun:"prev"`
		}
		err := r.b.db.Read.NewRaw(`SELECT id, topic, seq, tag, prev, kind, payload, at FROM coord_events
			WHERE id > ? ORDER BY id LIMIT ?`, seen.ID, most).Scan(ctx, &rows)
		if err != nil {
			return seen, err
		}
		// Not before the reading: these events are the next ones only if the history
		// up to them is the same.
		if holds, err := r.holds(ctx, seen); err != nil {
			return seen, err
		} else if !holds {
			return r.resync(ctx)
		}
		events := make([]feed.Event, len(rows))
		for i, e := range rows {
			events[i], seen = feed.Event{Event: e.Coord(), Prev: coord.Tag(e.Prev)}, mark{e.ID, e.Tag}
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
