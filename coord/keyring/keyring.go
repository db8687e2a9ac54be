// Package keyring signs and seals with keys that all replicas of a program share and that are
// replaced in time, on top of a [coord.Keyring].
//
//	ring, err := keyring.Open(ctx, backend, keyring.Options{Name: "tokens"})
//	token, err := ring.Sign("invitation", id)      // on one replica
//	id, err := ring.Verify(ctx, "invitation", token) // on another
//
// What any replica has signed or sealed every replica verifies and opens, while keys are
// replaced too. A new key is known for Options.Overlap before it signs. Whoever meets a version
// that they don't know loads the ring again before they refuse it, and when that can't be done
// says [coord.ErrUnavailable] and not that it is forged. A key that no longer signs is kept for
// Options.Keep, and then its secret is gone.
//
// What has been loaded goes on signing and verifying while the store is away, for Options.Stale.
package keyring

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// ErrForged means that something was not signed or sealed by the ring for that purpose, or is
// good no longer: its key is retired, or it was revoked.
var ErrForged = errors.New("keyring: forged, or good no longer")

// Options configure [Open].
type Options struct {
	Name string // of the ring; 1–200 bytes
	// KEKs seal the keys where they are stored: the first one all that is new, and each of them
	// opens what it has sealed. Without any the keys are stored as they are.
	KEKs    []KEK
	Overlap time.Duration // for how long a key is known before it signs; at least twice Poll, default 1 h
	Every   time.Duration // how often there is another key; more than Overlap, default 30 days
	// Keep is for how long a key verifies when it no longer signs; more than Stale, default 31
	// days. What is signed is good for Keep less Stale at least.
	Keep   time.Duration
	Stale  time.Duration // for how long what was loaded is used without the store; default 24 h
	Poll   time.Duration // longest wait for a change that no hint announced; default 30 s
	Logger *slog.Logger  // default: discards

	gap time.Duration // least time between two looks at the store; 1 s but in tests
}

func (o *Options) complete() error {
	for of, d := range map[*time.Duration]time.Duration{
		&o.Overlap: time.Hour, &o.Every: 30 * 24 * time.Hour, &o.Keep: 31 * 24 * time.Hour,
		&o.Stale: 24 * time.Hour, &o.Poll: 30 * time.Second, &o.gap: time.Second,
	} {
		if *of == 0 {
			*of = d
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("ring", o.Name)
	for _, rule := range []struct {
		field, reason string
		broken        bool
	}{
		{"Options.Poll", "must be above 0", o.Poll <= 0},
		{"Options.Stale", "must be above 0", o.Stale <= 0},
		{"Options.Overlap", fmt.Sprintf("is %v, must be twice Poll (%v) at least", o.Overlap, o.Poll), o.Overlap < 2*o.Poll},
		{"Options.Every", fmt.Sprintf("is %v, must be more than Overlap (%v)", o.Every, o.Overlap), o.Every <= o.Overlap},
		{"Options.Keep", fmt.Sprintf("is %v, must be more than Stale (%v)", o.Keep, o.Stale), o.Keep <= o.Stale},
	} {
		if rule.broken {
			return &coord.InvalidError{Field: rule.field, Reason: rule.reason}
		}
	}
	return nil
}

// Ring signs and seals with the keys of a ring. It is safe for concurrent use.
type Ring struct {
	backend coord.Backend
	o       Options

	known   atomic.Pointer[view]
	loading chan struct{} // one slot: one at a time, so that what is known does not grow older
	mu      sync.Mutex
	wanted  *look         // the next one, when somebody waits for it; guarded by mu
	pressed chan struct{} // one slot: somebody waits
	stop    context.CancelFunc
	done    chan struct{}
	closed  atomic.Bool
}

// view is a ring as it was loaded. It is not changed.
type view struct {
	coord.Ring
	asked    time.Time        // when it was asked for
	secrets  map[int64][]byte // of the keys that are not retired and could be opened
	unopened *KEKError        // of the last one that could not
	active   int64
	revoked  map[string]bool
}

// look is a look at the store, which several may wait for.
type look struct {
	done chan struct{}
	err  error
}

// Open loads a ring, makes its first key when it has none, which one caller does, and keeps up with
// it until Close. Errors: [*KEKError] when a key in use is sealed under none of the KEKs;
// [coord.ErrInvalid], [coord.ErrUnavailable].
func Open(ctx context.Context, backend coord.Backend, o Options) (*Ring, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	r := &Ring{
		backend: backend, o: o, loading: make(chan struct{}, 1), pressed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	r.known.Store(&view{Ring: coord.Ring{Name: o.Name}})
	changes, stopHints := backend.Keyring().Changes()
	if err := r.begin(ctx); err != nil {
		stopHints()
		return nil, err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = stop
	go func() {
		defer close(r.done)
		defer stopHints()
		r.follow(running, changes)
	}()
	return r, nil
}

// begin loads the ring, and makes its first key.
func (r *Ring) begin(ctx context.Context) error {
	for tries := 0; ; tries++ {
		if err := r.load(ctx); err != nil {
			return err
		}
		v := r.known.Load()
		switch {
		case v.unopened != nil:
			return v.unopened
		case v.Revision > 0:
			return nil
		}
		first := r.newKey(r.sealing(), 1, coord.KeyActive)
		err := r.backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
			_, err := tx.ChangeRing(ctx, coord.RingChange{Ring: r.o.Name, Keys: []coord.KeyChange{first}})
			return err
		})
		// Somebody else was first, or the answer was lost: what there is now says so.
		again := errors.Is(err, coord.ErrConflict) || errors.Is(err, coord.ErrUnknownOutcome) && tries < 3
		if err != nil && !again {
			return err
		}
	}
}

// Close ends what keeps the ring up to date. What was loaded can be used no more.
func (r *Ring) Close() {
	r.closed.Store(true)
	r.stop()
	<-r.done
}

// Name returns the ring's name.
func (r *Ring) Name() string { return r.o.Name }

// follow loads the ring when it may have changed or somebody waits for that, and else once in a
// while; soon again when that fails, for what was heard of is not known then.
func (r *Ring) follow(ctx context.Context, changes <-chan struct{}) {
	last, failing := r.known.Load().asked, false
	for ctx.Err() == nil {
		pause := r.o.Poll
		if failing {
			pause = min(pause, 5*r.o.gap)
		}
		poll := time.NewTimer(time.Until(last.Add(pause)))
		select {
		case <-ctx.Done():
		case <-changes:
		case <-r.pressed:
		case <-poll.C:
		}
		// Versions that are made up cost a look a second, whoever sends how many.
		gap := time.NewTimer(time.Until(last.Add(r.o.gap)))
		select {
		case <-ctx.Done():
		case <-gap.C:
		}
		poll.Stop()
		gap.Stop()
		last = time.Now()
		r.mu.Lock()
		waiting := r.wanted
		r.wanted = nil
		r.mu.Unlock()
		err := ctx.Err()
		if err == nil {
			err = r.load(ctx)
			if (err != nil) != failing && ctx.Err() == nil {
				failing = err != nil
				r.tell(ctx, err)
			}
		}
		if waiting != nil {
			waiting.err = err
			close(waiting.done)
		}
	}
}

// tell logs that the ring can't be loaded, or can again.
func (r *Ring) tell(ctx context.Context, err error) {
	if err == nil {
		r.o.Logger.InfoContext(ctx, "keys are loaded again")
		return
	}
	r.o.Logger.WarnContext(ctx, "keys can't be loaded; those that are known are used meanwhile",
		"until", r.known.Load().asked.Add(r.o.Stale).UTC(), "error", err)
}

// Reload loads the ring. Not for use inside of [coord.Backend.InTx]. Errors:
// [coord.ErrUnavailable].
func (r *Ring) Reload(ctx context.Context) error { return r.load(ctx) }

// wait returns when the ring has been loaded since it was called. All who wait share one look, for
// whose turn they wait for up to a second.
func (r *Ring) wait(ctx context.Context) error {
	r.mu.Lock()
	if r.wanted == nil {
		r.wanted = &look{done: make(chan struct{})}
	}
	waiting := r.wanted
	r.mu.Unlock()
	select {
	case r.pressed <- struct{}{}:
	default:
	}
	select {
	case <-waiting.done:
	case <-ctx.Done():
		return ctx.Err()
	case <-r.done:
	}
	if r.closed.Load() {
		return coord.ErrClosed
	}
	return waiting.err
}

// loadTime bounds a look at the store, for which others wait that have a look of their own to make.
const loadTime = 5 * time.Second

// load asks the store for what has changed. A secret that was opened once stays open, whatever it is
// sealed under by now.
func (r *Ring) load(ctx context.Context) error {
	select {
	case r.loading <- struct{}{}:
		defer func() { <-r.loading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	before, asked := r.known.Load(), time.Now()
	ring, err := r.backend.Keyring().Load(ctx, before.Ring)
	if err != nil {
		return err
	}
	v := r.view(before, ring, asked)
	if v.unopened != nil && before.Revision > 0 && v.Revision != before.Revision {
		r.o.Logger.WarnContext(ctx, "a key can't be opened: this replica lacks the key-encryption key that another has", "error", v.unopened)
	}
	r.known.Store(v)
	return nil
}

// view opens the keys of a ring that was loaded.
func (r *Ring) view(before *view, ring coord.Ring, asked time.Time) *view {
	v := &view{Ring: ring, asked: asked, secrets: make(map[int64][]byte), revoked: make(map[string]bool)}
	for _, k := range ring.Keys {
		if k.State == coord.KeyRetired {
			continue
		}
		if k.State == coord.KeyActive {
			v.active = k.Version
		}
		secret, err := r.open(k)
		if err != nil {
			secret = before.secretOf(k)
		}
		if secret == nil {
			v.unopened = err
			continue
		}
		v.secrets[k.Version] = secret
	}
	for _, revoked := range ring.Revocations {
		v.revoked[revoked.Token] = revoked.Token != ""
	}
	return v
}

// secretOf returns what was opened of the very key before.
func (v *view) secretOf(k coord.Key) []byte {
	for _, known := range v.Keys {
		if known.Version == k.Version && known.CreatedAt.Equal(k.CreatedAt) {
			return v.secrets[k.Version]
		}
	}
	return nil
}

// current returns what is known, unless it is too old to be used.
func (r *Ring) current() (*view, error) {
	v := r.known.Load()
	switch {
	case r.closed.Load():
		return nil, coord.ErrClosed
	case time.Since(v.asked) > r.o.Stale:
		return nil, fmt.Errorf("keyring: %w: the ring %q was loaded %v ago", coord.ErrUnavailable, r.o.Name, time.Since(v.asked).Round(time.Second))
	}
	return v, nil
}

// signing returns the key that signs and seals.
func (r *Ring) signing() (int64, []byte, error) {
	v, err := r.current()
	if err != nil {
		return 0, nil, err
	}
	secret, err := v.signing()
	return v.active, secret, err
}

func (v *view) signing() ([]byte, error) {
	secret, opened := v.secrets[v.active]
	switch {
	case opened:
		return secret, nil
	case v.active == 0: // the store is not the one that was opened
		return nil, fmt.Errorf("keyring: %w: the ring %q has no keys any more", coord.ErrUnavailable, v.Name)
	default:
		return nil, fmt.Errorf("keyring: %w: %w", coord.ErrUnavailable, v.unopened)
	}
}

// verifying returns the secret of a version, and what is known with it.
func (r *Ring) verifying(ctx context.Context, version int64) ([]byte, *view, error) {
	v, err := r.current()
	if errors.Is(err, coord.ErrUnavailable) || err == nil && version > v.LastVersion() {
		if err = r.wait(ctx); err == nil {
			v, err = r.current()
		}
	}
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("keyring: %w: %w", coord.ErrUnavailable, err)
		}
		return nil, nil, err
	}
	if secret, opened := v.secrets[version]; opened {
		return secret, v, nil
	}
	for _, k := range v.Keys {
		if k.Version == version && k.State != coord.KeyRetired {
			return nil, nil, fmt.Errorf("keyring: %w: %w", coord.ErrUnavailable, v.unopened)
		}
	}
	return nil, nil, ErrForged
}

// Both tokens and what is sealed begin with a byte for their form and the key's version.
const form = 1

func begin(version int64) []byte { return binary.AppendUvarint([]byte{form}, uint64(version)) }

// cut returns the version that something was made with, and what follows that.
func cut(b []byte) (version int64, rest []byte, err error) {
	if len(b) == 0 || b[0] != form {
		return 0, nil, ErrForged
	}
	v, n := binary.Uvarint(b[1:])
	if n <= 0 || v == 0 || v > 1<<62 || !bytes.Equal(b[:1+n], begin(int64(v))) {
		return 0, nil, ErrForged
	}
	return int64(v), b[1+n:], nil
}

// subkey derives the key for one use and purpose.
func subkey(secret []byte, use, purpose string) []byte {
	key, err := hkdf.Key(sha256.New, secret, nil, "tandem "+use+": "+purpose, 32)
	if err != nil {
		panic(err) // the length is one that there is
	}
	return key
}

const macSize = 16

func mac(secret []byte, purpose string, data []byte) []byte {
	h := hmac.New(sha256.New, subkey(secret, "sign", purpose))
	h.Write(data)
	return h.Sum(nil)[:macSize]
}

var encoding = base64.RawURLEncoding.Strict()

// Sign returns a text with data in it, which everybody can read and nobody else can make. A purpose
// keeps apart what is signed for different ends. It does not wait. Errors:
// [coord.ErrUnavailable], [coord.ErrClosed].
func (r *Ring) Sign(purpose string, data []byte) (string, error) {
	version, secret, err := r.signing()
	if err != nil {
		return "", err
	}
	signed := append(begin(version), mac(secret, purpose, data)...)
	return encoding.EncodeToString(append(signed, data...)), nil
}

// Verify returns the data that was signed. When the ring must be loaded it waits for that, and for up
// to a second before, and is not for use inside of [coord.Backend.InTx] therefore.
// Errors: [ErrForged]; [coord.ErrUnavailable] when nobody can know.
func (r *Ring) Verify(ctx context.Context, purpose, token string) ([]byte, error) {
	version, id, data, err := parse(token)
	if err != nil {
		return nil, err
	}
	secret, v, err := r.verifying(ctx, version)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(id, mac(secret, purpose, data)) || v.revoked[TokenID(token)] {
		return nil, ErrForged
	}
	return data, nil
}

func parse(token string) (version int64, mac, data []byte, err error) {
	b, err := encoding.DecodeString(token)
	if err != nil || strings.ContainsAny(token, "\r\n") { // which decoding passes over
		return 0, nil, nil, ErrForged
	}
	version, rest, err := cut(b)
	if err != nil || len(rest) < macSize {
		return 0, nil, nil, ErrForged
	}
	return version, rest[:macSize], rest[macSize:], nil
}

// TokenID is the part of a token by which it is revoked, and by which nothing can be done: "" of a
// text that is none.
func TokenID(token string) string {
	version, mac, _, err := parse(token)
	if err != nil {
		return ""
	}
	id := sha256.Sum256(append(begin(version), mac...))
	return encoding.EncodeToString(id[:macSize])
}

func aead(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err == nil {
		var sealer cipher.AEAD
		if sealer, err = cipher.NewGCM(block); err == nil {
			return sealer
		}
	}
	panic(err) // the length is one that there is
}

func seal(key, into, plain []byte, context string) []byte {
	sealer := aead(key)
	nonce := make([]byte, sealer.NonceSize())
	_, _ = rand.Read(nonce) // never fails, see its documentation
	return sealer.Seal(append(into, nonce...), nonce, plain, []byte(context))
}

func unseal(key, sealed []byte, context string) ([]byte, error) {
	sealer := aead(key)
	if len(sealed) < sealer.NonceSize() {
		return nil, ErrForged
	}
	plain, err := sealer.Open([]byte{}, sealed[:sealer.NonceSize()], sealed[sealer.NonceSize():], []byte(context))
	if err != nil {
		return nil, ErrForged
	}
	return plain, nil
}

// Seal returns what nobody can read or change without the ring. It opens only for the same purpose and
// context, such as the id of what it belongs to. It does not wait. Errors as of [Ring.Sign].
//
// The key may have been replaced or revoked already, and this replica not have heard of it. What
// must not be lost is sealed by [Ring.SealIn].
func (r *Ring) Seal(purpose, context string, plain []byte) ([]byte, error) {
	version, secret, err := r.signing()
	if err != nil {
		return nil, err
	}
	return seal(subkey(secret, "seal", purpose), begin(version), plain, context), nil
}

// SealIn is Seal for what the transaction writes: the key is the active one of the store, and stays it
// until the transaction has ended, so that who revokes the key finds all that it has sealed.
// Errors: [coord.ErrUnavailable], also when this replica can't open the key; [coord.ErrClosed].
func (r *Ring) SealIn(ctx context.Context, tx coord.Tx, purpose, context string, plain []byte) ([]byte, error) {
	if r.closed.Load() {
		return nil, coord.ErrClosed
	}
	v, asked := r.known.Load(), time.Now()
	held, err := tx.HoldRing(ctx, v.Ring)
	if err != nil {
		return nil, err
	}
	if held.Revision != v.Revision || !held.ChangedAt.Equal(v.ChangedAt) {
		v = r.view(v, held, asked)
	}
	secret, err := v.signing()
	if err != nil {
		return nil, err
	}
	return seal(subkey(secret, "seal", purpose), begin(v.active), plain, context), nil
}

// Open returns what was sealed. It waits as [Ring.Verify] does, and has the same errors.
func (r *Ring) Open(ctx context.Context, purpose, context string, sealed []byte) ([]byte, error) {
	version, rest, err := cut(sealed)
	if err != nil {
		return nil, err
	}
	secret, _, err := r.verifying(ctx, version)
	if err != nil {
		return nil, err
	}
	return unseal(subkey(secret, "seal", purpose), rest, context)
}

// SealedWith returns the version of the key that something was sealed with, 0 of what was not.
func SealedWith(sealed []byte) int64 {
	version, _, err := cut(sealed)
	if err != nil {
		return 0
	}
	return version
}

// Active returns the version of the key that signs and seals.
func (r *Ring) Active() int64 { return r.known.Load().active }

// Stored returns the ring as it was loaded last, without the secrets.
func (r *Ring) Stored() coord.Ring {
	ring := r.known.Load().Ring
	keys := make([]coord.Key, len(ring.Keys))
	for i, k := range ring.Keys {
		k.Material = nil
		keys[i] = k
	}
	ring.Keys = keys
	return ring
}
