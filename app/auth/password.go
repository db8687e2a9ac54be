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

const (
	hashWait  = 5 * time.Second // how long a password waits for its turn to be hashed
	hashQueue = 64              // how many wait, of each that is hashed at a time
)

// hasher bounds the memory and processors that hashing takes.
type hasher struct {
	params argon2id.Params
	turns  chan struct{}
	places chan struct{}          // of those who have a turn or wait for one
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
		turns:  make(chan struct{}, o.Parallel),
		places: make(chan struct{}, (hashQueue+1)*o.Parallel),
	}
	h.dummy = sync.OnceValues(func() (string, error) { return argon2id.CreateHash("", &h.params) })
	return h
}

// turn waits for a turn, which done ends. coord.ErrUnavailable when too many wait, or
// for too long.
func (h *hasher) turn(ctx context.Context) (done func(), err error) {
	busy := fmt.Errorf("%w: too many passwords are being checked", coord.ErrUnavailable)
	select {
	case h.places <- struct{}{}:
	default:
		return nil, busy
	}
	timer := time.NewTimer(hashWait)
	defer timer.Stop()
	select {
	case h.turns <- struct{}{}:
		return func() {
			<-h.turns
			<-h.places
		}, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = busy
	}
	<-h.places
	return nil, err
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

// CheckName says what is wrong with the name of a new user.
func CheckName(name string) error {
	name = strings.TrimSpace(name)
	err := checkLine("name", name, maxName)
	if err == nil && strings.ContainsFunc(name, ignorable) {
		err = invalid("name", invisible)
	}
	return err
}

const invisible = "may not contain control or invisible characters"

// ignorable finds what shows nothing, and is no control character.
func ignorable(r rune) bool {
	const emptyBraille = '\u2800'
	return unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) || r == emptyBraille
}

// checkLine says what is wrong with a line of text that somebody chose.
func checkLine(field, text string, most int) error {
	reason := ""
	switch {
	case text == "":
		reason = "must not be empty"
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unpronounceable):
		reason = invisible
	case utf8.RuneCountInString(text) > most:
		reason = fmt.Sprintf("may have at most %d characters", most)
	}
	return invalid(field, reason)
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
