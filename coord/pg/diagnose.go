package pg

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/lib/pq"
	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// Diagnosis looks at what backends share, without being one: it starts nothing, and stores
// nothing.
type Diagnosis struct {
	DB        *bun.DB // as the work goes, see OpenDB
	ListenURL string  // as a backend listens
}

// Ring is [coord.Keyring].Load of a ring of which nothing is known.
func (d Diagnosis) Ring(ctx context.Context, name string) (coord.Ring, error) {
	r, err := row.LoadRing(ctx, d.DB, clock, coord.Ring{Name: name})
	return r, storeError(ctx, err)
}

// OtherConns is how many connections a backend takes at most, beside those of the work pool
// and the one that listens.
const OtherConns = limiterConns + coordinationConns + probeConns

// diagnosis is the channel of a Diagnosis, on which no backend listens.
const diagnosis = "coord_diagnosis"

// Hear listens, as a backend does, sends a notification by way of DB, and returns how long
// it took to arrive. When it does not arrive the error is that of ctx, which should end
// within seconds: behind a pooler nobody says that nothing will be heard.
func (d Diagnosis) Hear(ctx context.Context) (took time.Duration, err error) {
	to, err := listenText(d.ListenURL)
	if err != nil {
		return 0, err
	}
	until, abandon := context.WithCancel(ctx)
	failed := make(chan error, 1)
	l := pq.NewDialListener(endingDialer{dialer(), until}, to, listenPauseMax, listenPauseMax,
		func(event pq.ListenerEventType, err error) {
			if event == pq.ListenerEventDisconnected || event == pq.ListenerEventConnectionAttemptFailed {
				select {
				case failed <- err:
				default:
				}
			}
		})
	defer func() {
		abandon()
		go func() { // as a session of a listener is ended
			_ = l.Close()
			for range l.Notify {
			}
		}()
	}()
	listening := make(chan error, 1)
	go func() { listening <- l.Listen(diagnosis) }()
	text := rand.Text()
	var began time.Time
	for {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case err := <-failed:
			return 0, err
		case err := <-listening:
			if err != nil {
				return 0, err
			}
			began = time.Now()
			if _, err := d.DB.NewRaw(`SELECT pg_notify(?, ?)`, diagnosis, text).Exec(ctx); err != nil {
				return 0, storeError(ctx, err)
			}
		case n := <-l.Notify:
			if n != nil && n.Extra == text {
				return time.Since(began), nil
			}
		}
	}
}

// Members is [coord.Directory].Members. In a database without the schema there are none.
func (d Diagnosis) Members(ctx context.Context) ([]coord.MemberInfo, error) {
	list, err := directory{d.backend()}.Members(ctx)
	return list, unlessEmpty(err)
}

// Leaders is [coord.Elector].Leaders. In a database without the schema there are none.
func (d Diagnosis) Leaders(ctx context.Context) ([]coord.Leadership, error) {
	list, err := elector{d.backend()}.Leaders(ctx)
	return list, unlessEmpty(err)
}

func (d Diagnosis) backend() *backend { return &backend{db: d.DB, coordination: d.DB} }

func unlessEmpty(err error) error {
	if e, ok := errors.AsType[*pq.Error](err); ok && e.Code == undefinedTable {
		return nil
	}
	return err
}
