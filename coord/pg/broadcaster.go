package pg

import (
	"context"
	"slices"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/feed"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type broadcaster struct{ b *backend }

// Concurrent publishes of one replica share a statement.
const (
	publishBatch   = 200     // calls
	publishBytes   = 4 << 20 // of payload, which takes several times as much as a statement
	publishFlights = 2       // statements at a time
)

func (br broadcaster) Publish(ctx context.Context, events ...coord.NewEvent) ([]coord.Position, error) {
	positions, err := br.b.publishes.Do(ctx, row.Tagged(events))
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return positions, nil
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

// publish appends events to their topics in one statement: the topics' counters
// are bumped in order of the topics, so that publishers can't deadlock, and the
// lock on a counter puts the commits of its topic in the order of the sequence.
func publish(ctx context.Context, db bun.IDB, events []row.NewEvent) ([]coord.Position, error) {
	var list row.Values
	for i, e := range events {
		list.Add("(?::int, ?, ?::bigint, ?, ?::bytea)", i, e.Topic, int64(e.Tag), e.Kind, row.Bytes(e.Payload))
	}
	var rows []row.Event
	err := db.NewRaw(`WITH input (ord, topic, tag, kind, payload) AS (VALUES `+list.String()+`),
		numbered AS (
			SELECT *, row_number() OVER (PARTITION BY topic ORDER BY ord) AS n, count(*) OVER (PARTITION BY topic) AS total
			FROM input
		), bumped AS (
			INSERT INTO coord_topics AS t (topic, seq, tag)
			SELECT topic, total, tag FROM numbered WHERE n = total ORDER BY topic COLLATE "C"
			ON CONFLICT (topic) DO UPDATE SET seq = t.seq + excluded.seq, tag = excluded.tag
			RETURNING topic, seq
		)
		INSERT INTO coord_events (topic, seq, tag, kind, payload, at)
		SELECT n.topic, b.seq - n.total + n.n, n.tag, n.kind, n.payload, coord_clock()
		FROM numbered n JOIN bumped b ON b.topic = n.topic
		RETURNING topic, seq`, list.Args...).Scan(ctx, &rows)
	if err != nil {
		return nil, err
	}
	// The events of a topic got consecutive numbers in the order of the list.
	next := make(map[string]int64)
	for _, r := range rows {
		if first, ok := next[r.Topic]; !ok || r.Seq < first {
			next[r.Topic] = r.Seq
		}
	}
	positions := make([]coord.Position, len(events))
	for i, e := range events {
		positions[i] = coord.Position{Seq: next[e.Topic], Tag: e.Tag}
		next[e.Topic]++
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
	// One statement, so that head and events are of one snapshot. The event at the
	// position itself comes along, for its tag.
	var rows []struct {
		row.Event
		Head    int64 `bun:"head"`
		HeadTag int64 `bun:"head_tag"`
		Found   bool  `bun:"found"`
	}
	err := br.b.db.NewRaw(`SELECT h.seq AS head, h.tag AS head_tag, e.seq IS NOT NULL AS found,
			h.topic, COALESCE(e.seq, 0) AS seq, COALESCE(e.tag, 0) AS tag, COALESCE(e.kind, '') AS kind, e.payload, e.at
		FROM coord_topics h LEFT JOIN LATERAL (
			SELECT * FROM coord_events e WHERE e.topic = h.topic AND e.seq >= ? ORDER BY e.seq LIMIT ?
		) AS e ON true WHERE h.topic = ? ORDER BY e.seq`, from.Seq, limit+1, topic).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	var head coord.Position
	found := make([]coord.Event, 0, len(rows))
	for _, r := range rows {
		head = coord.Position{Seq: r.Head, Tag: coord.Tag(r.HeadTag)}
		if r.Found {
			found = append(found, r.Coord())
		}
	}
	events, err := feed.Verify(topic, from, head, found)
	return events[:min(len(events), limit)], err
}

func (br broadcaster) Heads(ctx context.Context, topics ...string) (map[string]coord.Position, error) {
	if len(topics) == 0 {
		return row.Heads(nil, nil), nil
	}
	var rows []row.Head
	err := br.b.db.NewRaw(`SELECT topic, seq, tag FROM coord_topics WHERE topic IN (?)`, bun.List(topics)).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return row.Heads(topics, rows), nil
}

func (br broadcaster) Trim(ctx context.Context, r coord.EventRetention) (int, error) {
	n := 0
	if r.Age > 0 {
		deleted, err := br.trim(ctx, `SELECT topic, seq FROM coord_events
			WHERE at < coord_now() - ? * interval '1 microsecond' AND starts_with(topic, ?) ORDER BY at LIMIT ? FOR UPDATE SKIP LOCKED`,
			row.Micros(r.Age), r.Prefix)
		if n += deleted; err != nil {
			return n, err
		}
	}
	if r.Keep > 0 {
		deleted, err := br.trim(ctx, `SELECT e.topic, e.seq FROM coord_topics t
			JOIN coord_events e ON e.topic = t.topic AND e.seq <= t.seq - ? WHERE starts_with(t.topic, ?) LIMIT ? FOR UPDATE OF e SKIP LOCKED`,
			r.Keep, r.Prefix)
		if n += deleted; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (br broadcaster) trim(ctx context.Context, which string, args ...any) (int, error) {
	res, err := br.b.db.NewRaw(`DELETE FROM coord_events WHERE (topic, seq) IN (`+which+`)`,
		append(args, reapBatch)...).Exec(ctx)
	if err != nil {
		return 0, storeError(ctx, err)
	}
	n, _ := res.RowsAffected()
	return int(n), nil
}
