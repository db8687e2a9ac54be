package auth_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/keyring"
)

// What nobody has signed is refused before anything is looked for; links of the version before, which are
// not signed, stay good, and that version accepts those that are. With their key links are void.
func TestLinksAreSigned(t *testing.T) {
	onEach(t, func(t *testing.T, r rig) {
		ring, err := keyring.Open(t.Context(), r.backend, keyring.Options{Name: "tokens"})
		if err != nil {
			t.Fatal(err)
		}
		defer ring.Close()
		o := cheap
		o.Tokens = ring
		signing := auth.New(r.store, r.backend, o, slog.New(slog.DiscardHandler))
		before := r.Service // knows nothing of signatures

		setup, err := signing.SetupToken(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		unsigned, err := before.SetupToken(t.Context())
		if err != nil || len(setup) == len(unsigned) {
			t.Fatalf("the secrets have %d and %d bytes, %v", len(setup), len(unsigned), err)
		}
		if _, err := signing.Setup(t.Context(), "x"+setup[1:], "Ada", "correct horse"); !errors.Is(err, auth.ErrSetupToken) {
			t.Errorf("a forged set-up link: %v", err)
		}
		in, err := before.Setup(t.Context(), setup, "Ada", "correct horse")
		if err != nil {
			t.Fatalf("a signed link in the version before: %v", err)
		}
		ada := in.User

		invite := func(s *auth.Service) string {
			t.Helper()
			_, secret, err := s.Invite(t.Context(), ada, auth.NewInvitation{Role: store.Member})
			if err != nil {
				t.Fatal(err)
			}
			return secret
		}
		signed, old := invite(signing), invite(before)
		for who, s := range map[string]*auth.Service{"this version": signing, "the one before": before} {
			for what, secret := range map[string]string{"signed": signed, "not signed": old} {
				if link, err := s.Link(t.Context(), secret); err != nil || link.Kind != store.Invitation {
					t.Errorf("a link that is %s, in %s: %+v, %v", what, who, link, err)
				}
			}
		}
		if _, err := signing.Accept(t.Context(), signed, "Bob", "correct horse"); err != nil {
			t.Errorf("Accept: %v", err)
		}
		if _, err := signing.Accept(t.Context(), signed, "Eve", "correct horse"); !errors.Is(err, auth.ErrLink) {
			t.Errorf("Accept of a link that was used: %v", err)
		}

		// A store that is away is not asked about what is forged.
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		elsewhere, err := ring.Sign("another purpose", []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		for _, forged := range []string{"", "x", signed[:len(signed)-1], signed + "A", "B" + signed[1:], elsewhere, setup, strings.Repeat("A", 1000)} {
			if _, err := signing.Link(gone, forged); !errors.Is(err, auth.ErrLink) {
				t.Errorf("the forged link %q: %v", forged, err)
			}
			if _, err := signing.ResetPassword(gone, forged, "correct horse"); !errors.Is(err, auth.ErrLink) {
				t.Errorf("the forged link %q, for another password: %v", forged, err)
			}
		}
		for _, known := range []string{invite(signing), old} {
			if _, err := signing.Link(gone, known); err == nil || errors.Is(err, auth.ErrLink) {
				t.Errorf("a link that must be looked for: %v", err)
			}
		}

		_, reset, err := signing.MakeReset(t.Context(), ada, ada.ID)
		if err != nil {
			t.Fatal(err)
		}
		err = ring.Revoke(t.Context(), func(ctx context.Context, fn func(context.Context, coord.Tx) error) error {
			l, err := r.backend.Elector().Stand(ctx, coord.Candidacy{Name: "keys", Candidate: "x"})
			if err != nil {
				return err
			}
			return r.backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
				return errors.Join(tx.Fence(ctx, l.Term), fn(ctx, tx))
			})
		}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := signing.Link(t.Context(), reset); !errors.Is(err, auth.ErrLink) {
			t.Errorf("a link whose key was revoked: %v", err)
		}
		if _, err := signing.Link(t.Context(), invite(signing)); err != nil {
			t.Errorf("a link that was made since: %v", err)
		}
	})
}
