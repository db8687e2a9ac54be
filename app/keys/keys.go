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

// Seal returns a secret as it is to be stored: sealed when there is a key-encryption key, and as it is
// otherwise. It opens only for the same owner. It does not wait.
func (k *Keys) Seal(owner string, secret []byte) ([]byte, error) {
	if !k.sealing {
		return secret, nil
	}
	sealed, err := k.Secrets.Seal(purpose, owner, secret)
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

// ofRing is a transaction for a ring, with a line of the audit log unless there is no action.
func ofRing(fenced Fenced, e audit.Entry) keyring.Fenced {
	return func(ctx context.Context, fn func(context.Context, coord.Tx) error) error {
		return fenced(ctx, func(ctx context.Context, u store.Unit) error {
			if err := fn(ctx, u.Coord); err != nil || e.Action == "" {
				return err
			}
			return audit.Write(ctx, u, e)
		})
	}
}

// RotateDue does what is due to the rings, for the one replica that leads: see [keyring.Ring.Rotate].
// Secrets that are sealed with a key that no longer seals are sealed anew, so that none is retired
// while it is needed. It returns how many rings and secrets it has changed.
func (k *Keys) RotateDue(ctx context.Context, st *store.Store, fenced Fenced) (done int, err error) {
	done, oldest, err := k.reseal(ctx, st, fenced, func(v int64) bool { return v != 0 && v != k.Secrets.Active() })
	if err != nil {
		return done, err
	}
	for _, r := range k.rings() {
		o := keyring.Rotation{}
		if r == k.Secrets {
			o.InUse = oldest
		}
		changed, err := r.Rotate(ctx, ofRing(fenced, audit.Entry{}), o)
		if err != nil {
			return done, err
		}
		if changed {
			k.log.InfoContext(ctx, "keys rotated", "ring", r.Name(), "active", r.Active())
			done++
		}
	}
	return done, nil
}

// reseal seals stored secrets with the active key, or stores them as they are when there is no
// key-encryption key, those whose version is stale. It returns the oldest version that is used by the
// others, 0 when they are not sealed. One that can't be opened is left.
func (k *Keys) reseal(ctx context.Context, st *store.Store, fenced Fenced, stale func(version int64) bool) (done int, oldest int64, err error) {
	if err := k.Secrets.Reload(ctx); err != nil {
		return 0, 0, err
	}
	all, err := st.WebhookSecrets(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, stored := range all {
		v := version(stored.Secret)
		if stale(v) {
			secret, err := k.Open(ctx, stored.Owner(), stored.Secret)
			switch {
			case errors.Is(err, keyring.ErrForged):
				k.log.WarnContext(ctx, "the secret of a webhook can't be opened", "task_id", stored.TaskID, "error", err)
				continue
			case err != nil:
				return done, 0, err
			}
			again, err := k.Seal(stored.Owner(), secret)
			if err != nil {
				return done, 0, err
			}
			changed := false
			err = fenced(ctx, func(ctx context.Context, u store.Unit) error {
				changed, err = u.ReplaceWebhookSecret(ctx, stored, again)
				return err
			})
			if err != nil {
				return done, 0, err
			}
			if changed {
				done, v = done+1, version(again)
			}
		}
		if v > 0 && (oldest == 0 || v < oldest) {
			oldest = v
		}
	}
	return done, oldest, nil
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
	secrets, oldest, err := k.reseal(ctx, c.store, c.fenced, func(v int64) bool {
		return v != k.Secrets.Active() && (v != 0 || k.sealing)
	})
	if err != nil {
		return secrets, err
	}
	for _, r := range k.rings() {
		o := keyring.Rotation{Early: true}
		if r == k.Secrets {
			o.InUse = oldest
		}
		entry := audit.Entry{Action: audit.KeysRotated, Target: r.Name()}
		if _, err := r.Rotate(ctx, ofRing(c.fenced, entry), o); err != nil {
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
	k := c.keys
	entry := audit.Entry{Action: audit.KeyRevoked, Target: ring, Details: map[string]any{"version": key}}
	switch ring {
	case Tokens:
		return k.Tokens.Revoke(ctx, ofRing(c.fenced, entry), key)
	case Secrets:
		if key == k.Secrets.Active() {
			if _, err := k.Secrets.Rotate(ctx, ofRing(c.fenced, audit.Entry{}), keyring.Rotation{AtOnce: true}); err != nil {
				return err
			}
		}
		if _, _, err := k.reseal(ctx, c.store, c.fenced, func(v int64) bool { return v == key }); err != nil {
			return err
		}
		return k.Secrets.Revoke(ctx, ofRing(c.fenced, entry), key)
	default:
		return ErrNoRing
	}
}

// Unseal stores all secrets as they are, for a version of the program that can't open them. It returns
// how many were sealed.
func (c Changes) Unseal(ctx context.Context) (secrets int, err error) {
	plain := *c.keys
	plain.sealing = false
	secrets, _, err = plain.reseal(ctx, c.store, c.fenced, func(v int64) bool { return v != 0 })
	if err != nil || secrets == 0 {
		return secrets, err
	}
	return secrets, c.fenced(ctx, func(ctx context.Context, u store.Unit) error {
		return audit.Write(ctx, u, audit.Entry{Action: audit.SecretsUnsealed, Target: Secrets, Details: map[string]any{"count": secrets}})
	})
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

// List returns the keys of both rings, and how many secrets are not sealed.
func (k *Keys) List(ctx context.Context, st *store.Store) (list []Key, unsealed int, err error) {
	stored, err := st.WebhookSecrets(ctx)
	if err != nil {
		return nil, 0, err
	}
	uses := make(map[int64]int)
	for _, s := range stored {
		uses[version(s.Secret)]++
	}
	for _, r := range k.rings() {
		if err := r.Reload(ctx); err != nil {
			return nil, 0, err
		}
		for _, key := range r.Stored().Keys {
			one := Key{Ring: r.Name(), Version: key.Version, State: key.State, Since: key.ChangedAt.UTC(), SealedBy: key.SealedBy}
			if r == k.Secrets {
				one.Secrets = uses[key.Version]
			}
			list = append(list, one)
		}
	}
	return list, uses[0], nil
}
