package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"maps"
	"slices"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type broadcaster struct{ b *backend }

// Concurrent publishes of one process share a transaction.
const (
	publishBatch   = 200     // calls
	publishBytes   = 4 << 20 // of events, which take several times as much as a statement
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
		positions, err = tx.publish(ctx, slices.Concat(calls...))
		return err
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	b.ring(news{events: true})
	return row.Share(calls, positions), nil
}

// publish appends events to their topics. Nobody else can meanwhile.
func (t transaction) publish(ctx context.Context, events []row.NewEvent) ([]coord.Position, error) {
	heads, err := t.heads(ctx, events)
	if err != nil {
		return nil, err
	}
	bumped := make(map[string]bool)
	positions := make([]coord.Position, len(events))
	for i, e := range events {
		if e.Key != "" {
			earlier, err := t.eventByKey(ctx, e.Topic, e.Key)
			if err != nil {
				return nil, err
			}
			if earlier != coord.Start {
				positions[i] = earlier
				continue
			}
		}
		prev := heads[e.Topic]
		positions[i] = coord.Position{Seq: prev.Seq + 1, Tag: e.Tag}
		_, err := t.exec(ctx, t.prepared.insertEvent, e.Topic, positions[i].Seq, int64(e.Tag), int64(prev.Tag), t.now.UnixMicro(),
			e.Kind, null(e.Key), row.Bytes(e.Payload))
		if err != nil {
			return nil, err
		}
		heads[e.Topic], bumped[e.Topic] = positions[i], true
	}
	changed := make([][3]any, 0, len(bumped))
	for topic := range bumped {
		changed = append(changed, [3]any{topic, heads[topic].Seq, heads[topic].Tag})
	}
	list, err := json.Marshal(changed)
	if err != nil || len(changed) == 0 {
		return positions, err
	}
	_, err = t.exec(ctx, t.prepared.bump, string(list))
	return positions, err
}

// heads returns the last positions of the topics of events that have one.
func (t transaction) heads(ctx context.Context, events []row.NewEvent) (map[string]coord.Position, error) {
	topics := make(map[string]bool, len(events))
	for _, e := range events {
		topics[e.Topic] = true
	}
	list, err := names(slices.Collect(maps.Keys(topics)))
	if err != nil {
		return nil, err
	}
	heads := make(map[string]coord.Position, len(topics))
	err = t.each(ctx, t.prepared.heads, []any{list}, func(rows *sql.Rows) error {
		var h row.Head
		err := rows.Scan(&h.Topic, into(&h.Seq), into(&h.Tag))
		heads[h.Topic] = h.Position()
		return err
	})
	return heads, err
}

// eventByKey returns the position of the topic's event with that key, or Start.
func (t transaction) eventByKey(ctx context.Context, topic, key string) (coord.Position, error) {
	var h row.Head
	err := t.each(ctx, t.prepared.eventByKey, []any{topic, key}, func(rows *sql.Rows) error {
		return rows.Scan(into(&h.Seq), into(&h.Tag))
	})
	return h.Position(), err
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
	// One statement, so that head and events are of one snapshot.
	var rows []row.Found
	err := br.b.db.Read.NewRaw(`SELECT h.seq AS head, h.tag AS head_tag, e.seq IS NOT NULL AS found, h.topic,
			COALESCE(e.seq, 0) AS seq, COALESCE(e.tag, 0) AS tag, COALESCE(e.prev, 0) AS prev, COALESCE(e.kind, '') AS kind, e.payload, e.at
		FROM coord_topics h LEFT JOIN coord_events e ON e.topic = h.topic AND e.seq > ?
		WHERE h.topic = ? ORDER BY e.seq LIMIT ?`, from.Seq, topic, limit).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return row.Behind(topic, from, rows)
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

func (br broadcaster) Trim(ctx context.Context, r coord.EventRetention) (n int, err error) {
	least, beyond := row.Prefixed(r.Prefix)
	if r.Age > 0 {
		n, err = br.trim(ctx, func(now row.Time) (string, []any) {
			if r.Prefix == "" {
				// The oldest have the lowest ids. Younger ones among them, as after a step
				// of the clock, are in nobody's way for long.
				return `SELECT id FROM (SELECT id, at FROM coord_events WHERE id > 0 ORDER BY id LIMIT 2 * ?0) WHERE at < ?1 LIMIT ?0`,
					[]any{reapBatch, after(now, -r.Age)}
			}
			// CROSS JOIN keeps the topics outside.
			return `SELECT e.id FROM coord_topics t
				CROSS JOIN coord_events first ON first.topic = t.topic AND first.seq = (SELECT min(seq) FROM coord_events WHERE topic = t.topic)
				CROSS JOIN coord_events e ON e.topic = t.topic AND e.seq < first.seq + ?0
				WHERE t.topic >= ?2 AND t.topic < ?3 AND first.at < ?1 AND e.at < ?1 LIMIT ?0`,
				[]any{reapBatch, after(now, -r.Age), least, beyond}
		})
		if err != nil {
			return n, err
		}
	}
	if r.Keep > 0 {
		deleted, err := br.trim(ctx, func(row.Time) (string, []any) {
			return `SELECT e.id FROM coord_topics t CROSS JOIN coord_events e ON e.topic = t.topic AND e.seq <= t.seq - ?1
				WHERE t.topic >= ?2 AND t.topic < ?3 LIMIT ?0`, []any{reapBatch, r.Keep, least, beyond}
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
		return tx.NewRaw(`DELETE FROM coord_events WHERE id IN (`+ids+`)`, args...)
	})
}
