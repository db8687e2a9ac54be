//go:build unix

package checker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
)

// ledger is what is known of what was published. It is safe for concurrent use.
type ledger struct {
	mu  sync.Mutex
	ids map[string]bool // acknowledged; false: rolled back
}

func newLedger() *ledger { return &ledger{ids: make(map[string]bool)} }

func (l *ledger) note(committed bool, ids ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.ids[id] = committed
	}
}

// counts returns how many ids were acknowledged, and rolled back.
func (l *ledger) counts() (acknowledged, rolledBack int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, committed := range l.ids {
		if committed {
			acknowledged++
		} else {
			rolledBack++
		}
	}
	return acknowledged, rolledBack
}

// publisher publishes events of its own, in rooms that it is given.
type publisher struct {
	t        *testing.T
	name     string
	backend  coord.Backend
	ledger   *ledger
	person   *person // who says something
	replicas []*replica
	rng      *rand.Rand
	made     int
}

func (p *publisher) id() string {
	p.made++
	return fmt.Sprintf("%s-%d", p.name, p.made)
}

// text has a random length: mostly it is short, sometimes more than a notification carries.
func (p *publisher) text(most int) string {
	n := 10 + p.rng.IntN(300)
	switch p.rng.IntN(200) {
	case 0:
		n = 200_000
	case 1, 2, 3:
		n = 8_000 + p.rng.IntN(8_000)
	}
	return strings.Repeat("x", min(n, most))
}

// events are some for a few of the rooms.
func (p *publisher) events(rooms []room) (events []coord.NewEvent, ids []string) {
	for range 1 + p.rng.IntN(3) {
		id := p.id()
		ids = append(ids, id)
		events = append(events, coord.NewEvent{
			Topic: rooms[p.rng.IntN(len(rooms))].topic(), Kind: "checker.note",
			Payload: fmt.Appendf(nil, `{"client_id":%q,"text":%q}`, id, p.text(1<<20)),
		})
	}
	return events, ids
}

// publish publishes outside of transactions.
func (p *publisher) publish(ctx context.Context, rooms []room) error {
	events, ids := p.events(rooms)
	if _, err := p.backend.Broadcaster().Publish(ctx, events...); err != nil {
		return err
	}
	p.ledger.note(true, ids...)
	return nil
}

var errOnPurpose = errors.New("rolled back on purpose")

// transact publishes in a transaction, which may last a little, and may be rolled back. Where transactions
// have numbers it often has its own before others that are committed first.
func (p *publisher) transact(ctx context.Context, rooms []room, most time.Duration) error {
	events, ids := p.events(rooms)
	rollBack := p.rng.IntN(6) == 0
	lasts := time.Duration(p.rng.Int64N(int64(most) + 1))
	err := p.backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
		if lasts > 0 {
			if err := takeNumber(ctx, tx); err != nil {
				return err
			}
			wait(ctx, lasts)
		}
		if err := tx.Publish(ctx, events...); err != nil {
			return err
		}
		if rollBack {
			return errOnPurpose
		}
		return nil
	})
	if err != nil && !errors.Is(err, errOnPurpose) {
		return err
	}
	p.ledger.note(!rollBack, ids...)
	return nil
}

// takeNumber gives a transaction of PostgreSQL its number.
func takeNumber(ctx context.Context, tx coord.Tx) error {
	_, err := tx.Unwrap().(bun.Tx).ExecContext(ctx, `SELECT pg_current_xact_id()`)
	return err
}

// post says something in a room by HTTP: the message and its event are one transaction.
func (p *publisher) post(ctx context.Context, rooms []room) error {
	id := p.id()
	err := p.person.post(ctx, p.replicas, p.rng.IntN(len(p.replicas)), rooms[p.rng.IntN(len(rooms))].id, id, p.text(16_000))
	if err == nil {
		p.ledger.note(true, id)
	}
	return err
}

// send says something over a client's connection.
func (p *publisher) send(ctx context.Context, c *client.Client, rooms []room) error {
	id := p.id()
	_, err := c.Send(ctx, client.NewMessage{Room: rooms[p.rng.IntN(len(rooms))].id, ClientID: id, Text: p.text(16_000)})
	if err == nil {
		p.ledger.note(true, id)
	}
	return err
}

// repeat does something again and again, with pauses, as long as it storms.
func (p *publisher) repeat(storm, done context.Context, pause time.Duration, what func(ctx context.Context) error) {
	for wait(storm, time.Duration(p.rng.Int64N(int64(2*pause)))) {
		if err := what(done); err != nil && done.Err() == nil {
			p.t.Errorf("%s: %v", p.name, err)
			return
		}
	}
}
