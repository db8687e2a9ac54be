// Package keys has the two rings of keys that the replicas of the application share, and what is done
// to them: rotation, revocation, and the sealing of what the database holds.
package keys

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/keyring"
	"github.com/tandemhq/tandem/coord/leader"
)

// The names of the rings.
const (
	Tokens  = "tokens"  // signs what is given away: links and cursors
	Secrets = "secrets" // seals what is kept: secrets of webhooks
)

// office is what the command line leads under while it changes a ring.
const office = "keys"

// Options configure [Open].
type Options struct {
	KEKs   []keyring.KEK // see [keyring.Options]; without any the secrets that are kept are not sealed
	Logger *slog.Logger
}

// Keys are the rings. They are safe for concurrent use.
type Keys struct {
	Tokens  *keyring.Ring
	Secrets *keyring.Ring

	backend coord.Backend
	sealing bool
	log     *slog.Logger
}

// Open opens the rings, and makes them when they are not there. Errors: those of [keyring.Open].
func Open(ctx context.Context, backend coord.Backend, o Options) (*Keys, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	k := &Keys{backend: backend, sealing: len(o.KEKs) > 0, log: o.Logger}
	var err error
	if k.Tokens, err = keyring.Open(ctx, backend, keyring.Options{Name: Tokens, KEKs: o.KEKs, Logger: o.Logger}); err != nil {
		return nil, err
	}
	if k.Secrets, err = keyring.Open(ctx, backend, keyring.Options{Name: Secrets, KEKs: o.KEKs, Logger: o.Logger}); err != nil {
		k.Tokens.Close()
		return nil, err
	}
	return k, nil
}

// Close ends what keeps the rings up to date.
func (k *Keys) Close() {
	k.Tokens.Close()
	k.Secrets.Close()
}

// rings are both.
func (k *Keys) rings() []*keyring.Ring { return []*keyring.Ring{k.Secrets, k.Tokens} }

// What is sealed begins with this. A secret that is not does with a chance of 1 in 2⁶⁴.
var mark = []byte("\x00sealed\x00")

// purpose is that of secrets of webhooks.
const purpose = "webhook"

// Seal returns a secret as the transaction is to store it: sealed when there is a key-encryption key,
// and as it is otherwise. It opens only for the same owner. Errors: those of [keyring.Ring.SealIn].
func (k *Keys) Seal(ctx context.Context, tx coord.Tx, owner string, secret []byte) ([]byte, error) {
	if !k.sealing {
		return secret, nil
	}
	return k.seal(ctx, tx, owner, secret)
}

func (k *Keys) seal(ctx context.Context, tx coord.Tx, owner string, secret []byte) ([]byte, error) {
	sealed, err := k.Secrets.SealIn(ctx, tx, purpose, owner, secret)
	if err != nil {
		return nil, err
	}
	return append(bytes.Clone(mark), sealed...), nil
}

// Open returns a secret that was stored, sealed or not. Not for use inside of a unit of work. Errors:
// [keyring.ErrForged], [coord.ErrUnavailable].
func (k *Keys) Open(ctx context.Context, owner string, stored []byte) ([]byte, error) {
	sealed, is := bytes.CutPrefix(stored, mark)
	if !is {
		return stored, nil
	}
	return k.Secrets.Open(ctx, purpose, owner, sealed)
}

// version is that of the key that a stored secret is sealed with, 0 when it is not.
func version(stored []byte) int64 {
	sealed, is := bytes.CutPrefix(stored, mark)
	if !is {
		return 0
	}
	return keyring.SealedWith(sealed)
}

// Fenced runs fn in one transaction that commits only while a leader's term lasts.
type Fenced = func(ctx context.Context, fn func(ctx context.Context, u store.Unit) error) error

// ofRing is a transaction for a ring, and in the same one what comes after, if anything.
func ofRing(fenced Fenced, after func(ctx context.Context, u store.Unit) error) keyring.Fenced {
	return func(ctx context.Context, fn func(context.Context, coord.Tx) error) error {
		return fenced(ctx, func(ctx context.Context, u store.Unit) error {
			if err := fn(ctx, u.Coord); err != nil || after == nil {
				return err
			}
			return after(ctx, u)
		})
	}
}

// noted writes a line of the audit log.
func noted(e audit.Entry) func(context.Context, store.Unit) error {
	return func(ctx context.Context, u store.Unit) error { return audit.Write(ctx, u, e) }
}

// RotateDue does what is due to the rings, for the one replica that leads: see [keyring.Ring.Rotate].
// Secrets that are sealed with a key that no longer seals are sealed anew, so that none is retired
// while it is needed. It returns how many rings and secrets it has changed.
func (k *Keys) RotateDue(ctx context.Context, st *store.Store, fenced Fenced) (done int, err error) {
	p, failed := k.reseal(ctx, st, fenced, pass{seal: k.seal, stale: func(v int64) bool { return v != 0 && v != k.Secrets.Active() }})
	done = p.done
	for _, r := range k.rings() {
		o := keyring.Rotation{}
		if r == k.Secrets {
			if failed != nil { // it is not known what is in use; the other ring has nothing to do with it
				continue
			}
			o.InUse = p.oldest
		}
		changed, err := r.Rotate(ctx, ofRing(fenced, nil), o)
		failed = errors.Join(failed, err)
		if changed {
			k.log.InfoContext(ctx, "keys rotated", "ring", r.Name(), "active", r.Active())
			done++
		}
	}
	return done, failed
}

// pass is one pass over all secrets, and what came of it.
type pass struct {
	stale func(version int64) bool // which ones are to be stored anew
	seal  func(ctx context.Context, tx coord.Tx, owner string, secret []byte) ([]byte, error)

	done   int
	found  bool            // some were stale that can be opened
	oldest int64           // version that is in use now, 0 when nothing is sealed
	lost   map[string]bool // as they are stored: those that can't be opened, with any key
}

// reseal stores secrets anew, those that are stale. One that can't be opened is left.
func (k *Keys) reseal(ctx context.Context, st *store.Store, fenced Fenced, p pass) (pass, error) {
	p.done, p.found, p.oldest, p.lost = 0, false, 0, make(map[string]bool)
	if err := k.Secrets.Reload(ctx); err != nil {
		return p, err
	}
	all, err := st.WebhookSecrets(ctx)
	if err != nil {
		return p, err
	}
	for _, stored := range all {
		v := version(stored.Secret)
		if p.stale(v) {
			secret, err := k.Open(ctx, stored.Owner(), stored.Secret)
			switch {
			case errors.Is(err, keyring.ErrForged):
				k.log.WarnContext(ctx, "the secret of a webhook can't be opened", "task_id", stored.TaskID, "error", err)
				p.lost[string(stored.Secret)] = true
				continue
			case err != nil:
				return p, err
			}
			p.found = true
			var again []byte
			changed := false
			err = fenced(ctx, func(ctx context.Context, u store.Unit) (err error) {
				if again, err = p.seal(ctx, u.Coord, stored.Owner(), secret); err == nil {
					changed, err = u.ReplaceWebhookSecret(ctx, stored, again)
				}
				return err
			})
			if err != nil {
				return p, err
			}
			if changed { // else it is another one by now, or elsewhere
				p.done, v = p.done+1, version(again)
			}
		}
		if v > 0 && (p.oldest == 0 || v < p.oldest) {
			p.oldest = v
		}
	}
	return p, nil
}

// resealAll goes over all secrets until none is stale, and returns how many were.
func (k *Keys) resealAll(ctx context.Context, st *store.Store, fenced Fenced, p pass) (done int, last pass, err error) {
	for p.found = true; p.found && err == nil; {
		p, err = k.reseal(ctx, st, fenced, p)
		done += p.done
	}
	return done, p, err
}

// Changes are what the command line does to the rings.
type Changes struct {
	keys   *Keys
	store  *store.Store
	fenced Fenced
}

// Change calls fn with the rings, once nobody else changes them so. It waits for who does.
func (k *Keys) Change(ctx context.Context, st *store.Store, candidate string, fn func(c Changes) error) error {
	term, err := leader.Campaign(ctx, k.backend.Elector(), leader.Options{Name: office, Candidate: candidate, Logger: k.log})
	if err != nil {
		return err
	}
	defer func() { _ = term.Resign(ctx) }() // otherwise its lease ends
	return fn(Changes{k, st, func(ctx context.Context, fn func(context.Context, store.Unit) error) error {
		return st.InTx(ctx, func(ctx context.Context, u store.Unit) error {
			if err := u.Coord.Fence(ctx, term.Term); err != nil {
				return err
			}
			return fn(ctx, u)
		})
	}})
}

// Rotate adds the next key to each ring that has none, and does what else is due; it seals all keys
// under the first key-encryption key, and all secrets with the active key if there is one. It returns how
// many secrets it has sealed.
func (c Changes) Rotate(ctx context.Context) (secrets int, err error) {
	k := c.keys
	secrets, last, err := k.resealAll(ctx, c.store, c.fenced, pass{seal: k.seal, stale: func(v int64) bool {
		return v != k.Secrets.Active() && (v != 0 || k.sealing)
	}})
	if err != nil {
		return secrets, err
	}
	for _, r := range k.rings() {
		o := keyring.Rotation{Early: true}
		if r == k.Secrets {
			o.InUse = last.oldest
		}
		if _, err := r.Rotate(ctx, ofRing(c.fenced, noted(audit.Entry{Action: audit.KeysRotated, Target: r.Name()})), o); err != nil {
			return secrets, err
		}
	}
	return secrets, nil
}

// ErrNoRing means that there is no ring of that name.
var ErrNoRing = fmt.Errorf("%w: the rings are %s and %s", coord.ErrNotFound, Tokens, Secrets)

// Revoke retires a key at once. What it has signed is void; what it has sealed is sealed with another
// one before. Errors: ErrNoRing, coord.ErrConflict when there is no such key that is not retired.
func (c Changes) Revoke(ctx context.Context, ring string, key int64) error {
	revoked := noted(audit.Entry{Action: audit.KeyRevoked, Target: ring, Details: map[string]any{"version": key}})
	switch ring {
	case Tokens:
		return c.keys.Tokens.Revoke(ctx, ofRing(c.fenced, revoked), key)
	case Secrets:
		return c.revokeSecrets(ctx, key, revoked)
	default:
		return ErrNoRing
	}
}

// errInUse means that something is sealed with the key that was to be retired.
var errInUse = errors.New("keys: a secret is sealed with the key")

// revokeSecrets lets another key seal, seals anew what the one to revoke has sealed, and retires it,
// if then, with nobody else sealing, there is nothing of it.
func (c Changes) revokeSecrets(ctx context.Context, key int64, revoked func(context.Context, store.Unit) error) error {
	k := c.keys
	for {
		if err := k.Secrets.Reload(ctx); err != nil {
			return err
		}
		if key == k.Secrets.Active() {
			rotated := noted(audit.Entry{Action: audit.KeysRotated, Target: Secrets})
			// Nothing is retired on the way: what is in use is not known yet.
			if _, err := k.Secrets.Rotate(ctx, ofRing(c.fenced, rotated), keyring.Rotation{AtOnce: true, InUse: 1}); err != nil {
				return err
			}
		}
		last, err := k.reseal(ctx, c.store, c.fenced, pass{seal: k.seal, stale: func(v int64) bool { return v != 0 && v == key }})
		if err != nil {
			return err
		}
		if last.found { // and it may have become active meanwhile
			continue
		}
		err = k.Secrets.Revoke(ctx, ofRing(c.fenced, func(ctx context.Context, u store.Unit) error {
			all, err := u.WebhookSecrets(ctx)
			if err != nil {
				return err
			}
			for _, stored := range all {
				if version(stored.Secret) == key && !last.lost[string(stored.Secret)] {
					return errInUse
				}
			}
			return revoked(ctx, u)
		}), key)
		if !errors.Is(err, errInUse) {
			return err
		}
	}
}

// Unseal stores all secrets as they are, for a version of the program that can't open them. It returns
// how many were sealed.
func (c Changes) Unseal(ctx context.Context) (secrets int, err error) {
	plain := func(_ context.Context, _ coord.Tx, _ string, secret []byte) ([]byte, error) { return secret, nil }
	secrets, _, err = c.keys.resealAll(ctx, c.store, c.fenced, pass{seal: plain, stale: func(v int64) bool { return v != 0 }})
	if err != nil || secrets == 0 {
		return secrets, err
	}
	return secrets, c.fenced(ctx, noted(audit.Entry{Action: audit.SecretsUnsealed, Target: Secrets, Details: map[string]any{"count": secrets}}))
}

// Key is a key of a ring, as it is told of.
type Key struct {
	Ring     string         `json:"ring"`
	Version  int64          `json:"version"`
	State    coord.KeyState `json:"state"`
	Since    time.Time      `json:"since"`
	SealedBy string         `json:"sealed_by"` // the ID of a key-encryption key; "" when it is stored as it is
	Secrets  int            `json:"secrets"`   // that are sealed with it
}

// List returns the keys of both rings, and how many secrets are not sealed. It needs no ring that is open, nor a
// key-encryption key: load reads a ring as it is stored.
func List(ctx context.Context, load func(ctx context.Context, ring string) (coord.Ring, error), st *store.Store) (
	list []Key, unsealed int, err error,
) {
	stored, err := st.WebhookSecrets(ctx)
	if err != nil {
		return nil, 0, err
	}
	uses := make(map[int64]int)
	for _, s := range stored {
		uses[version(s.Secret)]++
	}
	for _, name := range []string{Secrets, Tokens} {
		r, err := load(ctx, name)
		if err != nil {
			return nil, 0, err
		}
		for _, key := range r.Keys {
			one := Key{Ring: name, Version: key.Version, State: key.State, Since: key.ChangedAt.UTC(), SealedBy: key.SealedBy}
			if name == Secrets {
				one.Secrets = uses[key.Version]
			}
			list = append(list, one)
		}
	}
	return list, uses[0], nil
}
