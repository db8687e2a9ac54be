package auth

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/alexedwards/argon2id"

	"github.com/tandemhq/tandem/coord"
)

const (
	maxName     = 64 // characters
	minPassword = 8  // bytes
	maxPassword = 256
)

// Hashing is the cost of a password's hash, by argon2id (RFC 9106).
type Hashing struct {
	Memory     uint32 // KiB
	Iterations uint32
	Parallel   int // how many are computed at a time; default the number of processors
}

// DefaultHashing follows the OWASP recommendation; some 20 ms of a processor.
var DefaultHashing = Hashing{Memory: 19 * 1024, Iterations: 2}

// hashWait is how long a password waits for its turn to be hashed.
const hashWait = 5 * time.Second

// hasher bounds the memory and processors that hashing takes.
type hasher struct {
	params argon2id.Params
	turns  chan struct{}
	dummy  func() (string, error) // compared with for names that do not exist
}

func newHasher(o Hashing) *hasher {
	if o.Parallel == 0 {
		o.Parallel = runtime.GOMAXPROCS(0)
	}
	h := &hasher{
		params: argon2id.Params{
			Memory: o.Memory, Iterations: o.Iterations, Parallelism: 1, SaltLength: 16, KeyLength: 32,
		},
		turns: make(chan struct{}, o.Parallel),
	}
	h.dummy = sync.OnceValues(func() (string, error) { return argon2id.CreateHash("", &h.params) })
	return h
}

// turn waits for a turn; the function returned ends it.
func (h *hasher) turn(ctx context.Context) (done func(), err error) {
	timer := time.NewTimer(hashWait)
	defer timer.Stop()
	select {
	case h.turns <- struct{}{}:
		return func() { <-h.turns }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, fmt.Errorf("%w: too many passwords are being checked", coord.ErrUnavailable)
	}
}

func (h *hasher) hash(ctx context.Context, password string) (string, error) {
	done, err := h.turn(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	return argon2id.CreateHash(password, &h.params)
}

// compare takes the same time for an empty hash, which matches nothing.
func (h *hasher) compare(ctx context.Context, password, hash string) (bool, error) {
	done, err := h.turn(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	against := hash
	if hash == "" {
		if against, err = h.dummy(); err != nil {
			return false, err
		}
	}
	match, err := argon2id.ComparePasswordAndHash(password, against)
	return match && hash != "", err
}

// CheckName says what is wrong with the name of a user.
func CheckName(name string) error {
	name = strings.TrimSpace(name)
	reason := ""
	switch {
	case name == "":
		reason = "must not be empty"
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unpronounceable):
		reason = "may not contain control or invisible characters"
	case utf8.RuneCountInString(name) > maxName:
		reason = fmt.Sprintf("may have at most %d characters", maxName)
	}
	return invalid("name", reason)
}

// unpronounceable finds what makes two names look the same.
func unpronounceable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || (unicode.IsSpace(r) && r != ' ')
}

// CheckPassword says what is wrong with a password that somebody chose.
func CheckPassword(password string) error {
	reason := ""
	switch {
	case len(password) < minPassword:
		reason = fmt.Sprintf("must have at least %d characters", minPassword)
	case len(password) > maxPassword:
		reason = fmt.Sprintf("may have at most %d bytes", maxPassword)
	}
	return invalid("password", reason)
}

func invalid(field, reason string) error {
	if reason == "" {
		return nil
	}
	return &coord.InvalidError{Field: field, Reason: reason}
}
