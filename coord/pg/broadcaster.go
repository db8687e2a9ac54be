package pg

import (
	"context"
	"slices"
	"strings"

	"github.com/lib/pq"
	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type broadcaster struct{ b *backend }

// Concurrent publishes of one replica share a statement.
const (
	publishBatch   = 200     // calls
	publishBytes   = 4 << 20 // of events, which take several times as much as a statement
	publishFlights = 3       // statements at a time, when they take long
)

func (br broadcaster) Publish(ctx context.Context, events ...coord.NewEvent) ([]coord.Position, error) {
	return share(ctx, br.b, br.b.publishes, row.Tagged(events))
}

// publishShared publishes the events of several calls.
func (b *backend) publishShared(ctx context.Context, calls [][]row.NewEvent) ([][]coord.Position, error) {
	positions, err := publish(ctx, b.db, slices.Concat(calls...))
	if err != nil {
		return nil, storeError(ctx, err)
	}
	b.ring(newEvents)
	return row.Share(calls, positions), nil
}

// publish appends events to their topics by one statement.
func publish(ctx context.Context, db bun.IDB, events []row.NewEvent) ([]coord.Position, error) {
	first, twins := row.Distinct(events)
	slices.SortStableFunc(first, func(a, b int) int { return strings.Compare(events[a].Topic, events[b].Topic) })
	l := newLetters(events, first)
	found, err := l.publish(ctx, db)
	if err != nil {
		return nil, err
	}
	positions := make([]coord.Position, len(events))
	for i, k := range first {
		positions[k] = found[i]
	}
	for k, of := range twins {
		positions[k] = positions[of]
	}
	return positions, nil
}

// letters are events, topic by topic, in the form that coord_publish takes. The
// payloads go as one: an array of them would be about three times as much for the
// server to read.
type letters struct {
	topics, kinds, keys      pq.StringArray
	ends, places, tags, cuts pq.Int64Array
	payloads                 []byte
	keyed                    bool // one of them has a key at least
}

// newLetters takes the events that are in those places.
func newLetters(events []row.NewEvent, order []int) letters {
	l := letters{cuts: pq.Int64Array{1}, payloads: make([]byte, 0, row.PayloadBytes(events))}
	for i, k := range order {
		e := events[k]
		if last := len(l.topics) - 1; last < 0 || l.topics[last] != e.Topic {
			l.topics, l.ends = append(l.topics, e.Topic), append(l.ends, 0)
		}
		topic := len(l.topics)
		l.ends[topic-1] = int64(i + 1)
		l.places, l.tags = append(l.places, int64(topic)), append(l.tags, int64(e.Tag))
		l.kinds, l.keys, l.keyed = append(l.kinds, e.Kind), append(l.keys, e.Key), l.keyed || e.Key != ""
		l.payloads = append(l.payloads, e.Payload...)
		l.cuts = append(l.cuts, int64(len(l.payloads)+1))
	}
	return l
}

// publish returns the position of each.
func (l letters) publish(ctx context.Context, db bun.IDB) (positions []coord.Position, err error) {
	if l.keyed {
		var rows []row.Head
		err = db.NewRaw(`SELECT seq, tag FROM coord_publish_once(?, ?, ?, ?, ?, ?, ?, ?)`,
			l.topics, l.ends, l.places, l.tags, l.kinds, l.cuts, l.payloads, l.keys).Scan(ctx, &rows)
		for _, r := range rows {
			positions = append(positions, r.Position())
		}
		return positions, err
	}
	var lasts pq.Int64Array
	err = db.NewRaw(`SELECT coord_publish(?, ?, ?, ?, ?, ?, ?)`,
		l.topics, l.ends, l.places, l.tags, l.kinds, l.cuts, l.payloads).Scan(ctx, &lasts)
	if err != nil {
		return nil, err
	}
	for i, tag := range l.tags {
		topic := l.places[i] - 1
		positions = append(positions, coord.Position{Seq: lasts[topic] - l.ends[topic] + int64(i+1), Tag: coord.Tag(tag)})
	}
	return positions, nil
}

func (br broadcaster) Subscribe(ctx context.Context, from map[string]coord.Position) (coord.Stream, error) {
	s, err := br.b.feed.Subscribe(ctx, from)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return s, nil
}

func (br broadcaster) Read(ctx context.Context, topic string, from coord.Position, limit int) ([]coord.Event, error) {
	if from == coord.Head {
		return nil, nil
	}
	var rows []struct {
		row.Found
		Standby bool `bun:"standby"`
	}
	now := br.b.route.era.Load()
	// One statement, so that head and events are of one snapshot, and of one server.
	err := br.b.db.NewRaw(`SELECT pg_is_in_recovery() AS standby, COALESCE(h.seq, 0) AS head, COALESCE(h.tag, 0) AS head_tag,
			e.seq IS NOT NULL AS found, COALESCE(h.topic, '') AS topic,
			COALESCE(e.seq, 0) AS seq, COALESCE(e.tag, 0) AS tag, COALESCE(e.prev, 0) AS prev, COALESCE(e.kind, '') AS kind, e.payload, e.at
		FROM (VALUES (1)) AS always LEFT JOIN (coord_topics h LEFT JOIN LATERAL (
			SELECT * FROM coord_events e WHERE e.topic = h.topic AND e.seq > ? ORDER BY e.seq LIMIT ?
		) AS e ON true) ON h.topic = ? ORDER BY e.seq`, from.Seq, limit, topic).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	found := make([]row.Found, len(rows))
	for i, r := range rows {
		if r.Standby {
			return nil, now.standby()
		}
		found[i] = r.Found
	}
	return row.Behind(topic, from, found)
}

func (br broadcaster) Heads(ctx context.Context, topics ...string) (map[string]coord.Position, error) {
	if len(topics) == 0 {
		return row.Heads(nil, nil), nil
	}
	var rows []struct {
		row.Head
		Standby bool `bun:"standby"`
	}
	now := br.b.route.era.Load()
	err := br.b.db.NewRaw(`SELECT pg_is_in_recovery() AS standby, COALESCE(topic, '') AS topic, COALESCE(seq, 0) AS seq, COALESCE(tag, 0) AS tag
		FROM (VALUES (1)) AS always LEFT JOIN coord_topics ON topic IN (?)`, bun.List(topics)).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	var heads []row.Head
	for _, r := range rows {
		if r.Standby {
			return nil, now.standby()
		}
		if r.Topic != "" {
			heads = append(heads, r.Head)
		}
	}
	return row.Heads(topics, heads), nil
}

// Trim searches an index whatever the planner thinks of the tables: each LIMIT is there
// for that.
func (br broadcaster) Trim(ctx context.Context, r coord.EventRetention) (n int, err error) {
	if r.Age > 0 {
		// The oldest have the lowest transactions. Younger ones among them, as of a long
		// transaction, are in nobody's way for long. Those that were restored from another
		// server may have higher ones than any here, and are looked at besides.
		which := `SELECT topic, seq FROM coord_events
			WHERE (topic, seq) IN (
				(SELECT topic, seq FROM coord_events ORDER BY xid LIMIT 2 * ?0)
				UNION ALL
				(SELECT topic, seq FROM coord_events WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()) ORDER BY xid LIMIT 2 * ?0)
			) AND at < coord_now() - ?1 * interval '1 microsecond'
			LIMIT ?0 FOR UPDATE SKIP LOCKED`
		if r.Prefix != "" {
			which = `SELECT old.topic, old.seq FROM coord_topics t
				CROSS JOIN LATERAL (SELECT seq, at FROM coord_events WHERE topic = t.topic ORDER BY seq LIMIT 1) AS first
				CROSS JOIN LATERAL (
					SELECT topic, seq FROM coord_events
					WHERE topic = t.topic AND seq < first.seq + ?0 AND at < coord_now() - ?1 * interval '1 microsecond'
					ORDER BY seq LIMIT ?0 FOR UPDATE SKIP LOCKED
				) AS old
				WHERE starts_with(t.topic, ?2) AND first.at < coord_now() - ?1 * interval '1 microsecond' LIMIT ?0`
		}
		if n, err = br.trim(ctx, which, row.Micros(r.Age), r.Prefix); err != nil {
			return n, err
		}
	}
	if r.Keep > 0 {
		deleted, err := br.trim(ctx, `SELECT old.topic, old.seq FROM coord_topics t CROSS JOIN LATERAL (
				SELECT topic, seq FROM coord_events WHERE topic = t.topic AND seq <= t.seq - ?1 ORDER BY seq LIMIT ?0 FOR UPDATE SKIP LOCKED
			) AS old WHERE starts_with(t.topic, ?2) LIMIT ?0`, r.Keep, r.Prefix)
		if n += deleted; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (br broadcaster) trim(ctx context.Context, which string, args ...any) (int, error) {
	res, err := br.b.db.NewRaw(`DELETE FROM coord_events WHERE (topic, seq) IN (`+which+`)`,
		append([]any{reapBatch}, args...)...).Exec(ctx)
	if err != nil {
		return 0, storeError(ctx, err)
	}
	n, _ := res.RowsAffected()
	return int(n), nil
}
