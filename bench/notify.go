package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lib/pq"

	"github.com/tandemhq/tandem/coord"
)

// notifyCallers is how many publish at a time.
const notifyCallers = 32

// measureNotify measures publishing on one topic beside what is usual: a transaction that
// inserts the event and notifies, which the server commits one at a time. Each side has a
// listener.
func measureNotify(ctx context.Context, sub subject, length time.Duration, _ func(string)) (row, error) {
	st, err := sub.store(ctx)
	if err != nil {
		return row{}, err
	}
	defer st.close()
	s := st.(*pgStore)
	other, err := s.connect(ctx, true)
	if err != nil {
		return row{}, err
	}
	defer other.Close(ctx)
	listener := pq.NewListener(s.url, time.Second, time.Minute, nil)
	defer listener.Close()
	if err := listener.Listen("floor_events"); err != nil {
		return row{}, err
	}
	go func() {
		for range listener.NotificationChannel() { // until it is closed
		}
	}()

	const topic = "publish-notify"
	payload := make([]byte, 200)
	publish := func(ctx context.Context, _ int) (int, error) {
		_, err := s.b.Broadcaster().Publish(ctx, coord.NewEvent{Topic: topic, Kind: "bench", Payload: payload})
		return 1, err
	}
	insert, err := s.db.PrepareContext(ctx, `WITH event AS (`+pgStatements.publish+` RETURNING seq)
		SELECT pg_notify('floor_events', seq::text) FROM event`)
	if err != nil {
		return row{}, err
	}
	defer func() { _ = insert.Close() }()
	var number atomic.Int64
	transact := func(ctx context.Context, _ int) (int, error) {
		_, err := insert.ExecContext(ctx, topic, number.Add(1), payload)
		return 1, err
	}
	return compare(ctx, length, repeated(topic, notifyCallers, publish), "insert, notify", repeated(topic, notifyCallers, transact))
}
