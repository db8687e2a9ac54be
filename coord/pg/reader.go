package pg

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/feed"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// reader finds new events for the streams of this process.
//
// It keeps the snapshot of its last look and asks for the events of the
// transactions that were not visible then. So a late commit is found, and a
// transaction that stays open anywhere delays nobody's events but its own. It
// has a connection of its own; when that is new, or a pooler has connected it
// with another server or one that crashed, the streams compare themselves with
// the store.
type reader struct {
	b    *backend
	work chan struct{} // one slot: there is, or may be, something new
}

// lookTimeout is how long a server may be silent before the reader tries another
// connection.
const lookTimeout = 10 * time.Second

func newReader(b *backend) *reader { return &reader{b: b, work: make(chan struct{}, 1)} }

// wake makes the reader look at once.
func (r *reader) wake() {
	select {
	case r.work <- struct{}{}:
	default:
	}
}

func (r *reader) run(ctx context.Context) {
	const least, most = 50 * time.Millisecond, 5 * time.Second
	pause := least
	for ctx.Err() == nil {
		looked, err := r.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if looked {
			pause = least
		}
		if pause == least {
			r.b.log().WarnContext(ctx, "event reader lost its connection", "error", err)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
		}
		pause = min(2*pause, most)
	}
}

// follow reads with one connection until that fails. looked is true when it
// worked for a while.
func (r *reader) follow(ctx context.Context) (looked bool, err error) {
	era := r.b.route.era.Load()
	conn, seen, err := r.connect(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	poll := time.NewTimer(r.pause())
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-era.over:
			return true, errReadOnly
		case <-r.work:
		case <-poll.C:
		}
		looking, cancel := context.WithTimeout(ctx, lookTimeout)
		seen, err = r.look(looking, conn, seen)
		cancel()
		if err != nil {
			return true, err
		}
		poll.Reset(r.pause())
	}
}

// pause is the time until the next look, of its own for each replica.
func (r *reader) pause() time.Duration { return r.b.o.Poll/2 + rand.N(r.b.o.Poll/2) }

// connect opens the connection and takes its first snapshot.
func (r *reader) connect(ctx context.Context) (conn bun.Conn, seen snapshot, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if conn, err = r.b.coordination.Conn(ctx); err != nil {
		return conn, seen, err
	}
	if err = r.primary(ctx, conn); err == nil {
		seen, err = r.snapshot(ctx, conn)
	}
	if err == nil {
		err = r.b.feed.Resync(ctx)
	}
	if err != nil {
		_ = conn.Close()
	}
	return conn, seen, err
}

// primary refuses a server in recovery: its snapshots don't tell of the transactions that are
// running, so that what these commit would be taken for seen.
func (r *reader) primary(ctx context.Context, conn bun.Conn) error {
	now := r.b.route.era.Load()
	var recovering []bool
	if err := conn.NewRaw(`SELECT pg_is_in_recovery()`).Scan(ctx, &recovering); err != nil {
		return err
	}
	if len(recovering) == 1 && recovering[0] {
		return now.standby()
	}
	return nil
}

func (r *reader) snapshot(ctx context.Context, conn bun.Conn) (snapshot, error) {
	var text []string
	if err := conn.NewRaw(`SELECT `+snapshotSQL).Scan(ctx, &text); err != nil {
		return snapshot{}, err
	}
	return parseSnapshot(text[0])
}

// look delivers what is visible now and was not in the snapshot seen, and
// returns the new snapshot.
func (r *reader) look(ctx context.Context, conn bun.Conn, seen snapshot) (snapshot, error) {
	if !r.b.feed.Listening() {
		// Nobody listens, so nothing is read. Who came meanwhile must look for
		// themselves.
		now, err := r.snapshot(ctx, conn)
		if err == nil && now.server != seen.server {
			err = r.primary(ctx, conn)
		}
		if err == nil && r.b.feed.Listening() {
			err = r.b.feed.Resync(ctx)
		}
		return now, err
	}
	rows, err := conn.QueryContext(ctx, `SELECT * FROM coord_news(?, ?)`, seen.next, "{"+strings.Join(seen.running, ",")+"}")
	if err != nil {
		return seen, err
	}
	defer rows.Close()
	const most = 500 // events handed on together
	var current text
	events := make([]feed.Event, 0, most)
	for rows.Next() {
		var topic, kind text
		var seq, tag, prev number
		var at row.Time
		var payload []byte
		if err := rows.Scan(&topic, &seq, &tag, &prev, &at, &kind, &payload); err != nil {
			return seen, err
		}
		if current == "" {
			current = kind
			continue
		}
		events = append(events, feed.Event{Event: coord.Event{
			Topic: string(topic), Position: coord.Position{Seq: int64(seq), Tag: coord.Tag(tag)},
			Kind: string(kind), Payload: payload, At: at.Time,
		}, Prev: coord.Tag(prev)})
		if len(events) == most {
			r.b.feed.Deliver(events)
			events = events[:0]
		}
	}
	if err := rows.Err(); err != nil {
		return seen, err
	}
	r.b.feed.Deliver(events)
	now, err := parseSnapshot(string(current))
	if err == nil && now.server != seen.server {
		// The other server, or this one since a crash, may have given transactions
		// numbers that were visible.
		if err = r.primary(ctx, conn); err == nil {
			err = r.b.feed.Resync(ctx)
		}
	}
	return now, err
}

// snapshot says which transactions of a server were visible: those below next
// that are not among running.
type snapshot struct {
	server  string // since when it runs, and has been without a crash
	next    string
	running []string
}

// snapshotSQL is what parseSnapshot reads. A server that crashed may give transactions
// numbers again that were visible. Behind a pooler nothing else tells of that: the time
// of its start stays, but its statistics begin anew.
const snapshotSQL = `extract(epoch FROM pg_postmaster_start_time()) || '/' ||
	extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) || ':' || pg_current_snapshot()`

// parseSnapshot reads what tells the server and the text form of pg_snapshot,
// xmin:xmax:xip,xip…
func parseSnapshot(text string) (snapshot, error) {
	server, rest, _ := strings.Cut(text, ":")
	_, rest, _ = strings.Cut(rest, ":")
	next, running, ok := strings.Cut(rest, ":")
	if _, err := strconv.ParseUint(next, 10, 64); err != nil || !ok {
		return snapshot{}, strconv.ErrSyntax
	}
	s := snapshot{server: server, next: next}
	if running != "" {
		s.running = strings.Split(running, ",")
	}
	return s, nil
}
