package sqlite

import (
	"context"
	"slices"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/feed"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type broadcaster struct{ b *backend }

// Concurrent publishes of one process share a transaction.
const (
	publishBatch   = 200     // calls
	publishBytes   = 4 << 20 // of payload, which takes several times as much as a statement
	publishFlights = 1       // transactions at a time: there is one writer
)

func (br broadcaster) Publish(ctx context.Context, events ...coord.NewEvent) ([]coord.Position, error) {
	positions, err := br.b.publishes.Do(ctx, row.Tagged(events))
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return positions, nil
}

// publishShared publishes the events of several calls.
func (b *backend) publishShared(ctx context.Context, calls [][]row.NewEvent) (results [][]coord.Position, err error) {
	var positions []coord.Position
	err = b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		positions, err = publish(ctx, tx.Tx, tx.now, slices.Concat(calls...))
		return err
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	b.ring(news{events: true})
	return row.Share(calls, positions), nil
}

// publish appends events to their topics: first the topics' counters, whose new
// values number the events.
func publish(ctx context.Context, tx bun.Tx, now row.Time, events []row.NewEvent) ([]coord.Position, error) {
	// Each topic by its number of new events and the tag of the last.
	total := make(map[string]coord.Position)
	for _, e := range events {
		total[e.Topic] = coord.Position{Seq: total[e.Topic].Seq + 1, Tag: e.Tag}
	}
	var list row.Values
	for topic, p := range total {
		list.Add("(?, ?, ?)", topic, p.Seq, int64(p.Tag))
	}
	var rows []row.Head
	err := tx.NewRaw(`INSERT INTO coord_topics AS t (topic, seq, tag) VALUES `+list.String()+`
		ON CONFLICT (topic) DO UPDATE SET seq = t.seq + excluded.seq, tag = excluded.tag
		RETURNING topic, seq, tag`, list.Args...).Scan(ctx, &rows)
	if err != nil {
		return nil, err
	}
	next := make(map[string]int64)
	for _, r := range rows {
		next[r.Topic] = r.Seq - total[r.Topic].Seq + 1
	}
	list = row.Values{}
	positions := make([]coord.Position, len(events))
	for i, e := range events {
		positions[i] = coord.Position{Seq: next[e.Topic], Tag: e.Tag}
		next[e.Topic]++
		list.Add("(?, ?, ?, ?, ?, ?)", e.Topic, positions[i].Seq, int64(e.Tag), e.Kind, row.Bytes(e.Payload), now)
	}
	_, err = tx.NewRaw(`INSERT INTO coord_events (topic, seq, tag, kind, payload, at) VALUES `+list.String(), list.Args...).Exec(ctx)
	return positions, err
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
	err := br.b.db.Read.NewRaw(`SELECT h.seq AS head, h.tag AS head_tag, e.seq IS NOT NULL AS found,
			h.topic, COALESCE(e.seq, 0) AS seq, COALESCE(e.tag, 0) AS tag, COALESCE(e.kind, '') AS kind, e.payload, e.at
		FROM coord_topics h LEFT JOIN coord_events e ON e.topic = h.topic AND e.seq >= ?
		WHERE h.topic = ? ORDER BY e.seq LIMIT ?`, from.Seq, topic, limit+1).Scan(ctx, &rows)
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
	err := br.b.db.Read.NewRaw(`SELECT topic, seq, tag FROM coord_topics WHERE topic IN (?)`, bun.List(topics)).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return row.Heads(topics, rows), nil
}

func (br broadcaster) Trim(ctx context.Context, r coord.EventRetention) (int, error) {
	n := 0
	if r.Age > 0 {
		deleted, err := br.trim(ctx, func(now row.Time) (string, []any) {
			return `SELECT id FROM coord_events WHERE at < ?0 AND substr(topic, 1, length(?1)) = ?1 ORDER BY at, id`,
				[]any{after(now, -r.Age), r.Prefix}
		})
		if n += deleted; err != nil {
			return n, err
		}
	}
	if r.Keep > 0 {
		deleted, err := br.trim(ctx, func(row.Time) (string, []any) {
			// CROSS JOIN keeps the topics outside.
			return `SELECT e.id FROM coord_topics t CROSS JOIN coord_events e ON e.topic = t.topic AND e.seq <= t.seq - ?0
				WHERE substr(t.topic, 1, length(?1)) = ?1`, []any{r.Keep, r.Prefix}
		})
		if n += deleted; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (br broadcaster) trim(ctx context.Context, which func(now row.Time) (string, []any)) (int, error) {
	return br.b.reap(ctx, func(tx bun.Tx, now row.Time) *bun.RawQuery {
		ids, args := which(now)
		return tx.NewRaw(`DELETE FROM coord_events WHERE id IN (`+ids+` LIMIT ?2)`, append(args, reapBatch)...)
	})
}
