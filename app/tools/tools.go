// Package tools lets the server call tools in a person's browser: to confirm
// something, to pick, to fill in a form.
//
// A call is a durable one of package coord, whose target is one connection of one
// person. It travels as an event of the person's own topic, in an [Envelope] that
// no client can make, and is stored in the same transaction. Whoever waits for
// the answer may do so on any replica.
package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

const (
	maxKey         = 100      // bytes of an idempotency key
	maxArgs        = 64 << 10 // bytes
	minTimeout     = time.Second
	maxTimeout     = time.Hour
	defaultTimeout = time.Minute
)

// MaxWait is the longest that [Service.Wait] waits.
const MaxWait = 30 * time.Second

// ErrForbidden means that somebody may not call tools of that person.
var ErrForbidden = errors.New("only the person and administrators may call tools in their browser")

// ReasonGone is the Error of a call that was cancelled because the connection that
// was to answer it had ended. The tool may or may not have been used.
const ReasonGone = "the connection is gone"

// reasonCancelled is the Error of a call that was cancelled by request.
const reasonCancelled = "cancelled"

// Connections says which connections people have.
type Connections interface {
	// Connections lists those of a person, on all replicas, the one most recently
	// active first. That they can't be looked up is an error, and not an empty list.
	Connections(ctx context.Context, user int64) ([]string, error)
}

// Service is safe for concurrent use.
type Service struct {
	store       *store.Store
	calls       coord.Calls
	connections Connections

	drain    sync.Once
	draining chan struct{}
}

// New returns the service.
func New(st *store.Store, backend coord.Backend, c Connections) *Service {
	return &Service{store: st, calls: backend.Calls(), connections: c, draining: make(chan struct{})}
}

// Call calls a tool in one of a person's connections, the one most recently
// active. timeout is 1 s–1 h, 0 means a minute. With a key, at best a UUID, that
// the same caller has used before, the earlier call is returned as it stands.
//
// Errors: ErrForbidden; coord.ErrInvalid with the field; coord.ErrConflict when the
// person has no connection or the key was used for another call.
func (s *Service) Call(
	ctx context.Context, by store.User, user int64, tool string, args json.RawMessage, timeout time.Duration, key string,
) (coord.Call, error) {
	if !may(by, user) {
		return coord.Call{}, ErrForbidden
	}
	if timeout == 0 {
		timeout = defaultTimeout
	}
	if trimmed := bytes.TrimSpace(args); len(trimmed) == 0 || string(trimmed) == "null" {
		args = json.RawMessage("{}")
	}
	if err := errors.Join(checkTool(tool), checkArgs(args), checkTimeout(timeout), checkKey(key)); err != nil {
		return coord.Call{}, err
	}
	var compact bytes.Buffer // so that spaces make no other call of it
	if err := json.Compact(&compact, args); err != nil {
		return coord.Call{}, err
	}
	n := coord.NewCall{Kind: tool, Payload: compact.Bytes(), TTL: timeout}
	if key != "" {
		n.Key = fmt.Sprintf("tool:%d:%s", by.ID, key)
		earlier, err := s.calls.Find(ctx, n.Key)
		if !errors.Is(err, coord.ErrNotFound) {
			return same(earlier, user, n, err)
		}
	}
	connections, err := s.connections.Connections(ctx, user)
	if err != nil {
		return coord.Call{}, err
	}
	if len(connections) == 0 {
		return coord.Call{}, conflict("the person is not connected")
	}
	n.Target = target(user, connections[0])
	var opened coord.Call
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) (err error) {
		if opened, err = u.Coord.OpenCall(ctx, n); err != nil || opened.Duplicate {
			return err
		}
		return publish(ctx, u, user, Envelope{
			Kind: KindCall, Connection: connections[0],
			Call: opened.ID, Tool: tool, Args: args, Deadline: opened.Deadline,
		})
	})
	return same(opened, user, n, err)
}

// same refuses a call that was made earlier with the same key, if it is another.
func same(c coord.Call, user int64, n coord.NewCall, err error) (coord.Call, error) {
	if err != nil {
		return coord.Call{}, err
	}
	if owner, _, _ := parseTarget(c.Target); owner != user || c.Kind != n.Kind || !bytes.Equal(c.Payload, n.Payload) {
		return coord.Call{}, conflict("the Idempotency-Key was used for another call")
	}
	return c, nil
}

// Get returns a call of a person to that person, to administrators, and to nobody
// else: coord.ErrNotFound.
func (s *Service) Get(ctx context.Context, by store.User, id coord.CallID) (coord.Call, error) {
	c, err := s.calls.Get(ctx, id)
	if err == nil {
		if user, _, ok := parseTarget(c.Target); !ok || !may(by, user) {
			err = coord.ErrNotFound
		}
	}
	if errors.Is(err, coord.ErrNotFound) {
		return coord.Call{}, noCall()
	}
	return c, err
}

// Wait returns a call when it has ended, or as it stands when it has not within
// atMost, MaxWait at the longest, or the replica is stopping. Errors as those of
// Get.
func (s *Service) Wait(ctx context.Context, by store.User, id coord.CallID, atMost time.Duration) (coord.Call, error) {
	c, err := s.Get(ctx, by, id)
	if err != nil || c.Ended() || atMost <= 0 {
		return c, err
	}
	waiting, cancel := context.WithTimeout(ctx, min(atMost, MaxWait))
	defer cancel()
	go func() {
		select {
		case <-s.draining:
			cancel()
		case <-waiting.Done():
		}
	}()
	ended, err := s.calls.Wait(waiting, id)
	switch {
	case err == nil:
		return ended, nil
	case waiting.Err() != nil && ctx.Err() == nil:
		return s.Get(ctx, by, id)
	case errors.Is(err, coord.ErrNotFound):
		err = noCall()
	}
	return coord.Call{}, err
}

// Drain ends every Wait at once, now and later, with the call as it stands. It may
// be called again.
func (s *Service) Drain() { s.drain.Do(func() { close(s.draining) }) }

// Cancel ends a call without a result, unless it has ended before, and returns it as
// it stands. The connection is told. Errors as those of Get.
func (s *Service) Cancel(ctx context.Context, by store.User, id coord.CallID) (coord.Call, error) {
	c, err := s.Get(ctx, by, id)
	if err != nil || c.Ended() {
		return c, err
	}
	user, connection, _ := parseTarget(c.Target)
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		if err := u.Coord.CancelCall(ctx, id, reasonCancelled); err != nil {
			return err
		}
		return publish(ctx, u, user, Envelope{Kind: KindCancel, Connection: connection, Call: id, Reason: reasonCancelled})
	})
	if err != nil && !isOver(err) {
		return coord.Call{}, err
	}
	return s.Get(ctx, by, id)
}

// Answer ends a call with what the client of a connection says: a result, or a
// text that says why there is none. Who answers is known from the connection, and
// never told by the client; another's call is as if it were not there.
//
// Errors: coord.ErrInvalid with the field; coord.ErrNotFound; coord.ErrConflict when
// the call was answered or cancelled before; coord.ErrExpired when it is too late.
func (s *Service) Answer(
	ctx context.Context, user int64, connection string, call coord.CallID, result json.RawMessage, errorText string,
) error {
	if !utf8.Valid(result) {
		return invalid("result", "must be JSON in UTF-8")
	}
	err := s.calls.Answer(ctx, coord.Answer{ID: call, Target: target(user, connection), Result: result, Error: errorText})
	switch {
	case errors.Is(err, coord.ErrNotFound):
		return noCall()
	case errors.Is(err, coord.ErrConflict):
		return conflict("the call was answered or cancelled before")
	case errors.Is(err, coord.ErrExpired):
		return &store.ReasonError{Err: coord.ErrExpired, Reason: "the time to answer the call is over"}
	}
	return err
}

// ConnectionGone ends the open calls of a connection that is no more, with
// ReasonGone, so that whoever waits can call again at once. It asks the store, so
// whoever knows that a connection was sent no call may leave it: a call that is
// under way to it all the same ends at its deadline.
func (s *Service) ConnectionGone(ctx context.Context, user int64, connection string) error {
	open, err := s.calls.Pending(ctx, target(user, connection))
	for _, c := range open {
		if cancelErr := s.calls.Cancel(ctx, c.ID, ReasonGone); !isOver(cancelErr) {
			err = errors.Join(err, cancelErr)
		}
	}
	return err
}

// isOver reports whether an error says that a call has ended before.
func isOver(err error) bool {
	return errors.Is(err, coord.ErrConflict) || errors.Is(err, coord.ErrExpired) || errors.Is(err, coord.ErrNotFound)
}

func may(by store.User, user int64) bool { return by.ID == user || by.Role == store.Admin }

// target is who alone may answer.
func target(user int64, connection string) string {
	return auth.UserTopic(user) + "/conn:" + connection
}

func parseTarget(target string) (user int64, connection string, ok bool) {
	owner, connection, found := strings.Cut(target, "/conn:")
	number, isUser := strings.CutPrefix(owner, "user:")
	user, err := strconv.ParseInt(number, 10, 64)
	return user, connection, found && isUser && err == nil
}

func noCall() error {
	return &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such call"}
}

func conflict(reason string) error { return &store.ReasonError{Err: coord.ErrConflict, Reason: reason} }

func invalid(field, reason string) error { return &coord.InvalidError{Field: field, Reason: reason} }

func checkTool(tool string) error {
	good := tool != "" && len(tool) <= 100
	for _, r := range tool {
		good = good && (r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	}
	if !good {
		return invalid("tool", "must be a name of at most 100 small letters, digits, points, hyphens and underscores")
	}
	return nil
}

func checkArgs(args json.RawMessage) error {
	var object map[string]json.RawMessage
	switch err := json.Unmarshal(args, &object); {
	case len(args) > maxArgs:
		return invalid("args", fmt.Sprintf("may have at most %d bytes", maxArgs))
	case err != nil || object == nil || !utf8.Valid(args):
		return invalid("args", "must be a JSON object in UTF-8")
	}
	return nil
}

func checkTimeout(timeout time.Duration) error {
	if timeout < minTimeout || timeout > maxTimeout {
		return invalid("timeout_s", fmt.Sprintf("must be between %.0f and %.0f", minTimeout.Seconds(), maxTimeout.Seconds()))
	}
	return nil
}

func checkKey(key string) error {
	for _, r := range key {
		if r < ' ' || r > '~' {
			return invalid("Idempotency-Key", "may hold only printable ASCII characters")
		}
	}
	if len(key) > maxKey {
		return invalid("Idempotency-Key", fmt.Sprintf("may have at most %d bytes", maxKey))
	}
	return nil
}
