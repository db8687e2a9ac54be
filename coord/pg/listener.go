package pg

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"

	"github.com/tandemhq/tandem/coord"
)

// listener wakes this process when a replica rings, and whenever the connection was
// away and may have missed a ring.
//
// A connection can be dead and nothing says so, or lead to a pooler that forgets who
// listens. So a listener that has heard nothing for a while, and one that has just
// begun, presses its own replica's doorbell and must hear that. One that doesn't is
// abandoned, without asking it or waiting for it, and the next has a connection of its
// own.
type listener struct {
	b *backend
	// After so long a silence the doorbell is pressed, and after as long again the
	// connection is given up.
	silence time.Duration

	known, up bool // what was logged: whether others are heard
}

const (
	silence = 4 * time.Second
	// The pause before another attempt grows from the first to the second, and to the
	// third when a connection was fine but what was rung did not arrive.
	listenPause    = 100 * time.Millisecond
	listenPauseMax = 5 * time.Second
	deafPause      = time.Minute
)

func newListener(b *backend) *listener { return &listener{b: b, silence: silence} }

func (l *listener) run(ctx context.Context) {
	pause := listenPause
	for {
		s := session{listener: l, failed: make(chan error, 1), listening: make(chan error, 1)}
		err := s.run(ctx)
		if ctx.Err() != nil {
			return
		}
		l.note(ctx, false, err)
		most := listenPauseMax
		switch {
		case !s.last.IsZero():
			pause = listenPause
			if o := l.b.o.Observer; o != nil {
				o.Observe(ctx, coord.Observation{Op: "listener.restart", Items: 1, Err: err, Took: time.Since(s.last)})
			}
		case s.began:
			pause, most = max(pause, listenPauseMax), deafPause
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, most)
	}
}

// note logs whether others are heard, when that changes.
func (l *listener) note(ctx context.Context, up bool, err error) {
	if l.known && l.up == up {
		return
	}
	l.known, l.up = true, up
	if o, ok := l.b.o.Observer.(coord.ListenerObserver); ok {
		o.Listening(ctx, err)
	}
	if up {
		l.b.log().InfoContext(ctx, "listening for other replicas")
	} else {
		l.b.log().WarnContext(ctx, "not listening: other replicas' news arrives by polling", "error", err)
	}
}

// session is a listener on one connection.
type session struct {
	*listener
	failed    chan error // the connection could not be had, or is lost
	listening chan error // the answer to LISTEN
	began     bool       // that was yes
	last      time.Time  // when something was heard
}

// run listens until ctx ends or the connection fails.
func (s *session) run(ctx context.Context) error {
	ctx, abandon := context.WithCancel(ctx)
	era := s.b.route.era.Load()
	l := pq.NewDialListener(endingDialer{dialer(), ctx}, s.b.listenText, listenPause, listenPause,
		func(event pq.ListenerEventType, err error) {
			if event == pq.ListenerEventDisconnected || event == pq.ListenerEventConnectionAttemptFailed {
				select {
				case s.failed <- err:
				default:
				}
			}
		})
	defer func() {
		abandon()
		// Close may have to wait for a lock, and what the listener still has to say would
		// keep it from ending.
		go func() {
			_ = l.Close()
			for range l.Notify {
			}
		}()
	}()
	go func() { s.listening <- l.Listen(channel) }()
	patience := time.NewTimer(lookTimeout)
	defer patience.Stop()
	for pressed := true; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-era.over:
			return errReadOnly
		case err := <-s.failed:
			return err
		case err := <-s.listening:
			if err != nil {
				return err
			}
			s.began = true
			s.b.wake(anything) // what rang until now was not heard
			s.b.bell.press()
			patience.Reset(s.silence)
		case n := <-l.Notify:
			if n != nil {
				s.hear(ctx, n)
				pressed = false
				// Not all replicas at once: whoever rings first rings for all.
				patience.Reset(s.silence - rand.N(s.silence/4))
			}
		case <-patience.C:
			if pressed {
				return s.deaf()
			}
			pressed = true
			s.b.bell.press()
			patience.Reset(s.silence)
		}
	}
}

func (s *session) hear(ctx context.Context, n *pq.Notification) {
	s.last = time.Now()
	s.note(ctx, true, nil)
	from, what, _ := strings.Cut(n.Extra, " ")
	if from == s.b.bell.id {
		return
	}
	// A version that rings in another way is understood as well.
	heard, err := strconv.ParseUint(what, 10, 32)
	if err != nil {
		heard = uint64(anything)
	}
	s.b.wake(news(heard))
}

// deaf says why a connection is given up.
func (s *session) deaf() error {
	switch {
	case !s.last.IsZero():
		return fmt.Errorf("%w: nothing was heard for %v", coord.ErrUnavailable, time.Since(s.last).Round(time.Millisecond))
	case s.began:
		return fmt.Errorf("%w: a ring of this replica did not come back within %v; does the address lead to a pooler?",
			coord.ErrUnavailable, s.silence)
	}
	return fmt.Errorf("%w: no answer within %v", coord.ErrUnavailable, lookTimeout)
}

// endingDialer makes connections that are closed with a context, whatever state their
// network is in.
type endingDialer struct {
	*netDialer
	until context.Context //nolint:containedctx // lib/pq brings none that ends
}

func (d endingDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.until, cancel)()
	conn, err := d.netDialer.DialContext(ctx, network, address)
	if err == nil {
		context.AfterFunc(d.until, func() { _ = conn.Close() })
	}
	return conn, err
}
