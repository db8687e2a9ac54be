package sqlite

import (
	"context"
	"time"

	"github.com/uptrace/bun"
)

// A file that nobody else has written to for a while is looked at less often.
const (
	quietAfter = 10 * time.Second
	quietPolls = 4 // this many times the poll interval
)

// listen wakes this process when the file changes, which is how another process
// rings.
func (b *backend) listen(ctx context.Context) {
	persist(ctx, b.watch, func(err error) {
		b.log().WarnContext(ctx, "not watching the file: other processes' news arrives late", "error", err)
	})
}

// watch looks at the file's version with one connection until that fails. The
// version is of use only to the connection that read it; what was committed
// before the first reading is taken as news.
func (b *backend) watch(ctx context.Context) (watched bool, err error) {
	conn, err := b.db.Read.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	var seen int64
	var changed time.Time
	var announced map[int64]bool // running runs that were asked to stop
	var epoch int64              // of the directory
	for {
		var versions []int64
		if err := conn.NewRaw(`PRAGMA data_version`).Scan(ctx, &versions); err != nil {
			return watched, err
		}
		if !watched || versions[0] != seen {
			watched, seen, changed = true, versions[0], time.Now()
			asked, err := askedToStop(ctx, conn)
			if err != nil {
				return watched, err
			}
			fresh := false
			for id := range asked {
				fresh = fresh || !announced[id]
			}
			announced = asked
			last, err := lastEpoch(ctx, conn)
			if err != nil {
				return watched, err
			}
			entries := last != epoch
			epoch = last
			b.ring(news{events: true, runs: true, cancels: fresh, calls: true, entries: entries, receipts: true, leaders: true, keys: true})
		}
		pause := b.o.Poll
		if time.Since(changed) > quietAfter {
			pause *= quietPolls
		}
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// askedToStop returns the running runs that were.
func askedToStop(ctx context.Context, conn bun.Conn) (map[int64]bool, error) {
	var ids []int64
	if err := conn.NewRaw(`SELECT id FROM coord_runs WHERE cancel_requested AND `+inFlight).Scan(ctx, &ids); err != nil {
		return nil, err
	}
	asked := make(map[int64]bool, len(ids))
	for _, id := range ids {
		asked[id] = true
	}
	return asked, nil
}
