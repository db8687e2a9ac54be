package auth

import (
	"context"
	"errors"

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// In what follows by is the administrator who does it, or the zero value for who runs the
// program, at the command line. That they still are one, and that the session of the
// context has not ended, is checked where it counts, in the unit of work.

// People lists everybody by name.
func (s *Service) People(ctx context.Context) ([]store.Person, error) { return s.store.People(ctx) }

// Person returns somebody, or coord.ErrNotFound.
func (s *Service) Person(ctx context.Context, id int64) (store.Person, error) {
	p, err := s.store.Person(ctx, id)
	return p, noPerson(err)
}

// PersonNamed returns the user of that name, or coord.ErrNotFound.
func (s *Service) PersonNamed(ctx context.Context, name string) (store.User, error) {
	user, err := s.store.UserByName(ctx, name)
	return user, noPerson(err)
}

// SetRole gives somebody another role. Their connections begin anew; links that an
// administrator has made who is none any more are void. Errors: coord.ErrInvalid,
// coord.ErrNotFound, coord.ErrConflict for the last administrator, *ForbiddenError.
func (s *Service) SetRole(ctx context.Context, by store.User, user int64, role store.Role) error {
	if err := checkRole(role); err != nil {
		return err
	}
	return s.change(ctx, by, user, func(ctx context.Context, u store.Unit, was store.User) error {
		if was.Role == role {
			return nil
		}
		if err := keepAdmin(ctx, u, was); err != nil {
			return err
		}
		if err := u.SetRole(ctx, user, role); err != nil {
			return err
		}
		if was.Role == store.Admin {
			if err := u.DropLinks(ctx, user); err != nil {
				return err
			}
		}
		changed, err := event(user, KindChanged, struct {
			Role store.Role `json:"role"`
		}{role})
		if err != nil {
			return err
		}
		if err := u.Coord.Publish(ctx, changed); err != nil {
			return err
		}
		return audit.Write(ctx, u, audit.Entry{
			By: by, Action: audit.RoleChanged, Target: was.Name, Details: map[string]any{"from": was.Role, "to": role},
		})
	})
}

// SetActive deactivates somebody, which ends all their sessions and tokens and voids the
// links that they have made, or lets them sign in again. What they have written stays,
// and so do tasks, which are of rooms and not of people. Errors: as of [Service.SetRole].
func (s *Service) SetActive(ctx context.Context, by store.User, user int64, active bool) error {
	return s.change(ctx, by, user, func(ctx context.Context, u store.Unit, was store.User) error {
		if was.Deactivated != active {
			return nil
		}
		action := audit.Reactivated
		if !active {
			action = audit.Deactivated
			if err := keepAdmin(ctx, u, was); err != nil {
				return err
			}
		}
		if err := u.SetActive(ctx, user, active); err != nil {
			return err
		}
		if err := u.DropLinks(ctx, user); err != nil {
			return err
		}
		if _, err := end(ctx, u, store.Ending{User: user}); err != nil {
			return err
		}
		return audit.Write(ctx, u, audit.Entry{By: by, Action: action, Target: was.Name})
	})
}

// EndSessionsOf ends all sessions and tokens of somebody, and returns how many. Errors:
// coord.ErrNotFound, *ForbiddenError.
func (s *Service) EndSessionsOf(ctx context.Context, by store.User, user int64) (n int, err error) {
	err = s.change(ctx, by, user, func(ctx context.Context, u store.Unit, of store.User) error {
		ended, err := end(ctx, u, store.Ending{User: user})
		if n = len(ended); err != nil || n == 0 {
			return err
		}
		return audit.Write(ctx, u, audit.Entry{
			By: by, Action: audit.SessionsRevoked, Target: of.Name, Details: map[string]any{"count": n},
		})
	})
	return n, err
}

// change is [Service.asAdmin] with somebody whom nobody else changes meanwhile.
func (s *Service) change(
	ctx context.Context, by store.User, user int64, act func(context.Context, store.Unit, store.User) error,
) error {
	return s.asAdmin(ctx, by, func(ctx context.Context, u store.Unit) error {
		of, err := u.LockUser(ctx, user)
		if err != nil {
			return noPerson(err)
		}
		return act(ctx, u, of)
	})
}

// asAdmin calls act in a unit of work, when no one else makes administrators or takes their
// place, if who acts may do so.
func (s *Service) asAdmin(ctx context.Context, by store.User, act func(context.Context, store.Unit) error) error {
	return s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		if err := u.LockAdmins(ctx); err != nil {
			return err
		}
		if by.ID != 0 {
			now, err := u.User(ctx, by.ID)
			if err == nil && (now.Deactivated || now.Role != store.Admin) {
				err = &ForbiddenError{Reason: "only administrators may do that"}
			}
			if err == nil {
				err = s.stillSignedIn(ctx, u)
			}
			if err != nil {
				return err
			}
		}
		return act(ctx, u)
	})
}

// keepAdmin returns coord.ErrConflict when somebody is the only administrator. No other
// unit of work may change who is one.
func keepAdmin(ctx context.Context, u store.Unit, user store.User) error {
	if user.Role != store.Admin || user.Deactivated {
		return nil
	}
	n, err := u.CountAdmins(ctx)
	if err == nil && n <= 1 {
		err = &store.ReasonError{Err: coord.ErrConflict, Reason: "there must be an administrator: make somebody else one first"}
	}
	return err
}

func noPerson(err error) error {
	if errors.Is(err, coord.ErrNotFound) {
		return &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such person"}
	}
	return err
}
