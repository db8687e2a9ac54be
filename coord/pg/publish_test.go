package pg

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/batch"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// A topic is locked by somebody, and more publish than may wait. Those beyond that are
// told at once, and nothing of theirs is stored.
func TestPublishersAreHeldBack(t *testing.T) {
	b := openBackend(t, migrated(t))
	b.publishes = batch.New(publishBatch, 1, b.publishShared).Bound(publishBytes, row.Size).Refuse(5, 1000)
	br := broadcaster{b}
	publish := func(payload string) error {
		_, err := br.Publish(t.Context(), coord.NewEvent{Topic: "t", Kind: "k", Payload: []byte(payload)})
		return err
	}
	if err := publish("first"); err != nil {
		t.Fatal(err)
	}
	tx, err := b.coordination.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(t.Context(), `SELECT FROM coord_topics FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	var publishers sync.WaitGroup
	var mu sync.Mutex
	stored, refused := []string{"first"}, 0
	began := time.Now()
	for i := range 40 {
		publishers.Go(func() {
			payload := strconv.Itoa(i)
			err := publish(payload)
			mu.Lock()
			defer mu.Unlock()
			pressure, ok := errors.AsType[*coord.BackpressureError](err)
			switch {
			case err == nil:
				stored = append(stored, payload)
			case !ok || !errors.Is(err, coord.ErrBackpressure) || pressure.Waiting != 5 || pressure.Lag < 0 || pressure.Lag > time.Since(began):
				t.Errorf("Publish: %v", err)
			default:
				refused++
				if refused == 40-5-1 { // all that will be
					if err := tx.Rollback(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	publishers.Wait()
	events, err := br.Read(context.WithoutCancel(t.Context()), "t", coord.Start, 100)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != len(stored) {
		t.Errorf("%d events are stored, and %d were acknowledged", len(events), len(stored))
	}
	for _, e := range events {
		if !strings.Contains(" "+strings.Join(stored, " ")+" ", " "+string(e.Payload)+" ") {
			t.Errorf("the event %s was refused, and is stored", e.Payload)
		}
	}
}
