package auth

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/keyring"
)

// How long links are good.
const (
	InvitationTTL    = 7 * 24 * time.Hour // by default
	minInvitationTTL = time.Minute
	maxInvitationTTL = 30 * 24 * time.Hour
	ResetTTL         = 24 * time.Hour
)

// The paths of links, before their secrets: browsers send to nobody what is behind the #.
const (
	InvitationPath = "/#invite="
	ResetPath      = "/#reset="
)

// Signer signs for all replicas, see [keyring.Ring].
type Signer interface {
	Sign(purpose string, data []byte) (string, error)
	Verify(ctx context.Context, purpose, token string) ([]byte, error)
}

// The purposes for which secrets of links are signed.
const (
	setupLink  = "set-up link"
	personLink = "link" // invitations and resets
)

// newLinkSecret returns 128 random bits, signed, and the hash under which they are stored.
func (s *Service) newLinkSecret(purpose string) (secret string, hash []byte, err error) {
	if s.o.Tokens == nil {
		secret, hash = newSecret()
		return secret, hash, nil
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	secret, err = s.o.Tokens.Sign(purpose, b[:])
	return secret, hashSecret(secret), err
}

// unsigned is how long a secret is that was made before they were signed, or is not: see newSecret.
const unsigned = 43

// checkLinkSecret refuses what nobody has signed before anything is looked for.
func (s *Service) checkLinkSecret(ctx context.Context, purpose, secret string) error {
	if s.o.Tokens == nil || len(secret) == unsigned {
		return nil
	}
	_, err := s.o.Tokens.Verify(ctx, purpose, secret)
	if errors.Is(err, keyring.ErrForged) {
		err = ErrLink
	}
	return err
}

// NewInvitation is an invitation to be made.
type NewInvitation struct {
	Role   store.Role
	RoomID int64         // into which it leads; 0: none
	TTL    time.Duration // 0: InvitationTTL
}

// Invite makes an invitation and returns it with its secret, which is stored nowhere.
// Errors: coord.ErrInvalid with the field, *ForbiddenError.
func (s *Service) Invite(ctx context.Context, by store.User, n NewInvitation) (link store.Link, secret string, err error) {
	if n.TTL == 0 {
		n.TTL = InvitationTTL
	}
	if err := checkRole(n.Role); err != nil {
		return link, "", err
	}
	if n.TTL < minInvitationTTL || n.TTL > maxInvitationTTL {
		return link, "", invalid("expires_in_s",
			fmt.Sprintf("must be between %.0f and %.0f", minInvitationTTL.Seconds(), maxInvitationTTL.Seconds()))
	}
	secret, hash, err := s.newLinkSecret(personLink)
	if err != nil {
		return link, "", err
	}
	err = s.asAdmin(ctx, by, func(ctx context.Context, u store.Unit) error {
		if n.RoomID != 0 {
			room, err := u.MyRoom(ctx, by, n.RoomID)
			if errors.Is(err, coord.ErrNotFound) || err == nil && (room.Kind == store.Direct || s.o.Join == nil) {
				err = invalid("room_id", "there is no such room")
			}
			if err != nil {
				return err
			}
		}
		link, err = u.AddLink(ctx, store.NewLink{
			Kind: store.Invitation, Hash: hash, Role: n.Role, RoomID: n.RoomID, ByID: by.ID, TTL: n.TTL,
		})
		if err != nil {
			return err
		}
		details := map[string]any{"id": link.ID, "role": n.Role, "expires_at": link.ExpiresAt}
		if n.RoomID != 0 {
			details["room_id"] = n.RoomID
		}
		return audit.Write(ctx, u, audit.Entry{By: by, Action: audit.InvitationMade, Details: details})
	})
	return link, secret, err
}

// Invitations lists the invitations that are good, the newest first.
func (s *Service) Invitations(ctx context.Context) ([]store.Link, error) {
	return s.store.Invitations(ctx)
}

// Withdraw voids an invitation. Errors: coord.ErrNotFound, *ForbiddenError.
func (s *Service) Withdraw(ctx context.Context, by store.User, id int64) error {
	return s.asAdmin(ctx, by, func(ctx context.Context, u store.Unit) error {
		role, err := u.Withdraw(ctx, id)
		if errors.Is(err, coord.ErrNotFound) {
			return &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such invitation"}
		}
		if err != nil {
			return err
		}
		return audit.Write(ctx, u, audit.Entry{
			By: by, Action: audit.InvitationWithdrawn, Details: map[string]any{"id": id, "role": role},
		})
	})
}

// Link says what a link is for, and uses nothing up. Errors: ErrLink, *LimitedError.
func (s *Service) Link(ctx context.Context, secret string) (store.Link, error) {
	if err := s.checkLinkSecret(ctx, personLink, secret); err != nil {
		return store.Link{}, err
	}
	if err := s.chargeLink(ctx); err != nil {
		return store.Link{}, err
	}
	link, err := s.store.Link(ctx, hashSecret(secret))
	return link, badLink(err)
}

// linkOf is [Service.Link] for a link of one kind.
func (s *Service) linkOf(ctx context.Context, kind store.LinkKind, secret string) (store.Link, error) {
	link, err := s.Link(ctx, secret)
	if err == nil && link.Kind != kind {
		err = ErrLink
	}
	return link, err
}

// Accept makes the account of an invitation, of which nothing is left, and signs its owner
// in. Errors: ErrLink, coord.ErrInvalid with the field, coord.ErrConflict when the name is
// taken, *LimitedError.
func (s *Service) Accept(ctx context.Context, secret, name, password string) (in SignedIn, err error) {
	link, err := s.linkOf(ctx, store.Invitation, secret)
	if err != nil {
		return in, err
	}
	if err := errors.Join(CheckName(name), CheckPassword(password)); err != nil {
		return in, err
	}
	hash, err := s.hasher.hash(ctx, password)
	if err != nil {
		return in, err
	}
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		if err := u.UseLink(ctx, link.ID); err != nil {
			return badLink(err)
		}
		user, err := u.AddUser(ctx, store.NewUser{Name: name, Role: link.Role, PasswordHash: hash})
		if err != nil {
			return nameTaken(err, name)
		}
		if link.RoomID != 0 && s.o.Join != nil {
			if err := s.o.Join(ctx, u, user, link.RoomID); err != nil {
				return err
			}
		}
		err = audit.Write(ctx, u, audit.Entry{
			By: user, Action: audit.UserCreated, Target: user.Name,
			Details: map[string]any{"role": user.Role, "invitation": link.ID, "invited_by": link.By},
		})
		if err != nil {
			return err
		}
		in, err = signIn(ctx, u, user)
		return err
	})
	return in, err
}

// MakeReset returns the secret of a link by which somebody gives themself another password,
// in place of an earlier one. Errors: coord.ErrNotFound, coord.ErrConflict for who is
// deactivated, *ForbiddenError.
func (s *Service) MakeReset(ctx context.Context, by store.User, user int64) (link store.Link, secret string, err error) {
	secret, hash, err := s.newLinkSecret(personLink)
	if err != nil {
		return link, "", err
	}
	err = s.change(ctx, by, user, func(ctx context.Context, u store.Unit, of store.User) error {
		if of.Deactivated {
			return &store.ReasonError{Err: coord.ErrConflict, Reason: "they are deactivated"}
		}
		link, err = u.AddLink(ctx, store.NewLink{Kind: store.Reset, Hash: hash, UserID: user, ByID: by.ID, TTL: ResetTTL})
		if err != nil {
			return err
		}
		return audit.Write(ctx, u, audit.Entry{
			By: by, Action: audit.ResetMade, Target: of.Name, Details: map[string]any{"expires_at": link.ExpiresAt},
		})
	})
	return link, secret, err
}

// ResetPassword gives an account another password by a link, of which nothing is left,
// ends all its sessions and tokens, and signs its owner in. Errors: ErrLink,
// coord.ErrInvalid with the field, *LimitedError.
func (s *Service) ResetPassword(ctx context.Context, secret, password string) (in SignedIn, err error) {
	link, err := s.linkOf(ctx, store.Reset, secret)
	if err != nil {
		return in, err
	}
	if err := CheckPassword(password); err != nil {
		return in, err
	}
	hash, err := s.hasher.hash(ctx, password)
	if err != nil {
		return in, err
	}
	var user store.User
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) (err error) {
		// Before the link, in the order of who deactivates somebody.
		if user, err = u.LockUser(ctx, link.UserID); err != nil {
			return badLink(err)
		}
		if err := u.UseLink(ctx, link.ID); err != nil {
			return badLink(err)
		}
		if err := u.SetPassword(ctx, user.ID, hash); err != nil {
			return err
		}
		ended, err := end(ctx, u, store.Ending{User: user.ID})
		if err != nil {
			return err
		}
		err = audit.Write(ctx, u, audit.Entry{
			By: user, Action: audit.PasswordReset, Target: user.Name, Details: map[string]any{"sessions_ended": len(ended)},
		})
		if err != nil {
			return err
		}
		in, err = signIn(ctx, u, user)
		return err
	})
	if err == nil {
		s.forgive(ctx, user)
	}
	return in, err
}

func badLink(err error) error {
	if errors.Is(err, coord.ErrNotFound) {
		return ErrLink
	}
	return err
}
