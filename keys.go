package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"text/tabwriter"
	"time"

	"github.com/tandemhq/tandem/app/keys"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/keyring"
)

const kekEnv = "TANDEM_KEY_ENCRYPTION_KEY"

// keks reads the key-encryption keys.
func (c *Config) keks() ([]keyring.KEK, error) {
	list := make([]keyring.KEK, len(c.KEKs))
	for i, text := range c.KEKs {
		kek, err := keyring.ParseKEK(text)
		if err != nil {
			return nil, &settingError{kekEnv, fmt.Sprintf("is wrong: its key number %d is not 32 bytes in base64; tandem keys new-kek prints one", i+1)}
		}
		list[i] = kek
	}
	return list, nil
}

// kekIDs are the names of the key-encryption keys.
func (c *Config) kekIDs() []string {
	list, _ := c.keks() // checked already
	ids := make([]string, len(list))
	for i, kek := range list {
		ids[i] = kek.ID()
	}
	return ids
}

// newKeys opens the shared keys, which needs the schema.
func newKeys(ctx context.Context, b coord.Backend, c *Config, log *slog.Logger) (*keys.Keys, func(), error) {
	keks, err := c.keks()
	if err != nil {
		return nil, nil, err
	}
	k, err := keys.Open(ctx, b, keys.Options{KEKs: keks, Logger: log})
	if missing, ok := errors.AsType[*keyring.KEKError](err); ok && !missing.Broken {
		return nil, nil, &settingError{kekEnv, fmt.Sprintf(
			"lacks %s, which seals key %d of the ring %s; add that key, behind the new one if there is one",
			missing.SealedBy, missing.Version, missing.Ring)}
	}
	if err != nil {
		return nil, nil, err
	}
	return k, k.Close, nil
}

// sharedKeys are what commands that manage keys work with.
type sharedKeys struct {
	Keys  *keys.Keys
	Store *store.Store
}

type keysCmd struct {
	List   keysListCmd   `cmd:"" default:"withargs" help:"List the keys (the default)."`
	Rotate keysRotateCmd `cmd:"" help:"Add the next keys, and seal everything with the newest: it signs an hour later."`
	Revoke keysRevokeCmd `cmd:"" help:"Retire a key at once. What it has signed is void."`
	Unseal keysUnsealCmd `cmd:"" help:"Store the secrets of webhooks as they are, before going back to a version that can't open them."`
	NewKEK keysNewKEKCmd `cmd:"" name:"new-kek" help:"Print a new key for TANDEM_KEY_ENCRYPTION_KEY."`
}

// changeKeys calls act when nobody else changes keys by a command.
func changeKeys(e *env, c *Config, act func(keys.Changes) error) error {
	if err := c.check(); err != nil {
		return err
	}
	if err := c.databaseThere(); err != nil {
		return err
	}
	a, err := c.application(e.stdout)
	if err != nil {
		return err
	}
	if c.Log == "info" { // what a server tells as it starts is not for here
		c.Log = "warn"
	}
	s, cleanup, err := initializeKeys(e.ctx, c, a, false, c.logger(e.stderr))
	if err != nil {
		return err
	}
	defer cleanup()
	ctx, cancel := context.WithTimeout(e.ctx, 10*time.Minute) // all secrets may have to be sealed anew
	defer cancel()
	return s.Keys.Change(ctx, s.Store, "command line", act)
}

type keysListCmd struct {
	JSON bool `name:"json" help:"Print JSON, one object per line."`
}

// Run lists the keys.
func (l keysListCmd) Run(e *env, c *Config) error {
	return withReadOnly(e, c, func(d *database) error {
		list, unsealed, err := keys.List(e.ctx, d.ring, d.readStore())
		if err != nil {
			return err
		}
		if l.JSON {
			enc := json.NewEncoder(e.stdout)
			for _, k := range list {
				if err := enc.Encode(k); err != nil {
					return err
				}
			}
			return nil
		}
		w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, "RING\tVERSION\tSTATE\tSINCE\tSEALED BY")
		plain := 0
		for _, k := range list {
			by := k.SealedBy
			switch {
			case k.State == coord.KeyRetired:
				by = "-"
			case by == "":
				by = "nothing"
				plain++
			}
			_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", k.Ring, k.Version, k.State, k.Since.Format(time.RFC3339), by)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if plain > 0 || unsealed > 0 {
			_, err = fmt.Fprintf(e.stdout, "%d keys and %d secrets of webhooks are not sealed: who reads the database has them. "+
				"Set %s on all replicas, and run tandem keys rotate.\n", plain, unsealed, kekEnv)
		}
		return err
	})
}

type keysRotateCmd struct{}

// Run begins a rotation.
func (keysRotateCmd) Run(e *env, c *Config) error {
	return changeKeys(e, c, func(change keys.Changes) error {
		secrets, err := change.Rotate(e.ctx)
		if err == nil {
			_, err = fmt.Fprintf(e.stdout, "rotating: a new key signs when all replicas have known it for an hour; "+
				"%d secrets of webhooks sealed\n", secrets)
		}
		return err
	})
}

type keysRevokeCmd struct {
	Ring    string `arg:"" help:"The ring, as tandem keys lists it."`
	Version int64  `arg:"" help:"The version of the key."`
}

// Run revokes a key.
func (k keysRevokeCmd) Run(e *env, c *Config) error {
	return changeKeys(e, c, func(change keys.Changes) error {
		if err := change.Revoke(e.ctx, k.Ring, k.Version); err != nil {
			return err
		}
		_, err := fmt.Fprintf(e.stdout, "revoked key %d of the ring %s\n", k.Version, k.Ring)
		return err
	})
}

type keysUnsealCmd struct{}

// Run unseals the secrets of webhooks.
func (keysUnsealCmd) Run(e *env, c *Config) error {
	return changeKeys(e, c, func(change keys.Changes) error {
		n, err := change.Unseal(e.ctx)
		if err == nil {
			_, err = fmt.Fprintf(e.stdout, "%d secrets of webhooks are stored as they are now\n", n)
		}
		return err
	})
}

type keysNewKEKCmd struct{}

// Run prints a key-encryption key, which is stored nowhere.
func (keysNewKEKCmd) Run(e *env) error {
	_, err := fmt.Fprintln(e.stdout, keyring.NewKEK())
	return err
}
