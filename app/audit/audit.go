// Package audit keeps who did what: a line is written in the unit of work of what it
// tells of, so that there is neither without the other.
//
// A line has no secret in it, and nothing that somebody chose stands in it unchecked:
// names are those of the store, and what else there is to say is JSON.
package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// Action is what was done.
type Action string

// The actions. What is before the dot is the group.
const (
	SetUp               Action = "account.set_up"  // the first administrator
	UserCreated         Action = "account.created" // at the command line, or by an invitation
	RoleChanged         Action = "account.role"    // details: from, to
	Deactivated         Action = "account.deactivated"
	Reactivated         Action = "account.reactivated"
	PasswordChanged     Action = "account.password"   // by its owner
	ResetMade           Action = "account.reset_made" // a link for another password
	PasswordReset       Action = "account.reset"      // by such a link
	SignedIn            Action = "session.signed_in"  // details: sessions_ended, of those too many
	SignInFailed        Action = "session.failed"     // the target is who it was to be, if there is such a person
	SignedOut           Action = "session.signed_out"
	SessionsRevoked     Action = "session.revoked"      // details: count
	TokenCreated        Action = "token.created"        // details: id, name, scopes, expires_in_s
	TokenRevoked        Action = "token.revoked"        // details: id, name
	InvitationMade      Action = "invitation.created"   // details: id, role, room_id, expires_at
	InvitationWithdrawn Action = "invitation.withdrawn" // details: id, role
	TaskCreated         Action = "task.created"         // the target is the task, as of those below
	TaskChanged         Action = "task.changed"
	TaskPaused          Action = "task.paused"
	TaskResumed         Action = "task.resumed"
	TaskDeleted         Action = "task.deleted"
	WebhookMade         Action = "task.webhook_created" // or given another secret
	WebhookRemoved      Action = "task.webhook_removed"
	KeysRotated         Action = "keys.rotated"  // at the command line; the target is the ring
	KeyRevoked          Action = "keys.revoked"  // details: version
	SecretsUnsealed     Action = "keys.unsealed" // details: count, of secrets of webhooks
)

// Actions are all of them.
var Actions = []Action{
	SetUp, UserCreated, RoleChanged, Deactivated, Reactivated, PasswordChanged, ResetMade, PasswordReset,
	SignedIn, SignInFailed, SignedOut, SessionsRevoked, TokenCreated, TokenRevoked, InvitationMade, InvitationWithdrawn,
	TaskCreated, TaskChanged, TaskPaused, TaskResumed, TaskDeleted, WebhookMade, WebhookRemoved,
	KeysRotated, KeyRevoked, SecretsUnsealed,
}

const (
	// Who is nobody in the store: a person of such a name has an id.
	operator = "(command line)"
	unknown  = "(unknown)"
)

// Client is where a request comes from.
type Client struct {
	Address string // of the network
	Network string // the address as limits count it
	Agent   string // the program, as it calls itself
}

type clientKey struct{}

// WithClient returns a context for what is done for a request.
func WithClient(ctx context.Context, c Client) context.Context {
	c.Agent = clean(c.Agent)
	return context.WithValue(ctx, clientKey{}, c)
}

// ClientOf returns where the request comes from for which something is done; the zero value
// when that is no request.
func ClientOf(ctx context.Context) Client {
	c, _ := ctx.Value(clientKey{}).(Client)
	return c
}

const maxAgent = 200 // bytes

// clean is one short line of text.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, text)
	if len(text) > maxAgent {
		text = strings.ToValidUTF8(text[:maxAgent], "")
	}
	return text
}

// Entry is a line to be written.
type Entry struct {
	By      store.User     // the zero value: the command line, or with a client, somebody unknown
	Action  Action         //
	Target  string         // the name of who or what it was done to; empty: By
	Details map[string]any // no secrets
}

// Write writes a line, with the address of the context's request.
func Write(ctx context.Context, u store.Unit, e Entry) error {
	client := ClientOf(ctx)
	line := store.AuditLine{
		ActorID: e.By.ID, Actor: e.By.Name, Action: string(e.Action), Target: e.Target, Address: client.Address,
		Details: json.RawMessage(`{}`),
	}
	switch {
	case e.By.ID != 0:
	case client.Address == "":
		line.Actor = operator
	default:
		line.Actor = unknown
	}
	if len(e.Details) > 0 {
		var err error
		if line.Details, err = json.Marshal(e.Details); err != nil {
			return err
		}
	}
	return u.AddAudit(ctx, line)
}

// Service reads the log. It is safe for concurrent use.
type Service struct{ store *store.Store }

// New returns the service.
func New(st *store.Store) *Service { return &Service{st} }

const (
	defaultPage = 50
	maxPage     = 200
)

// Filter narrows a listing.
type Filter struct {
	ActorID int64     // 0: of everybody
	Action  string    // an action, or a group such as "session"; empty: every one
	Target  string    // empty: every one
	Since   time.Time // zero: from the beginning
	Until   time.Time // zero: up to now
	Before  int64     // only earlier lines; 0: from the newest
	Limit   int       // 1–200; default 50
}

// List lists lines, the newest first. more says that there are earlier ones. Errors:
// coord.ErrInvalid with the field.
func (s *Service) List(ctx context.Context, f Filter) (lines []store.AuditLine, more bool, err error) {
	if f.Limit == 0 {
		f.Limit = defaultPage
	}
	if f.Limit < 1 || f.Limit > maxPage {
		return nil, false, &coord.InvalidError{Field: "limit", Reason: fmt.Sprintf("must be between 1 and %d", maxPage)}
	}
	actions, err := named(f.Action)
	if err != nil {
		return nil, false, err
	}
	lines, err = s.store.Audit(ctx, store.AuditFilter{
		ActorID: f.ActorID, Actions: actions, Target: f.Target, Since: f.Since, Until: f.Until, Before: f.Before, Limit: f.Limit + 1,
	})
	if more = len(lines) > f.Limit; more {
		lines = lines[:f.Limit]
	}
	return lines, more, err
}

// named are the actions of that name or group.
func named(name string) (actions []string, err error) {
	if name == "" {
		return nil, nil
	}
	for _, a := range Actions {
		if string(a) == name || strings.HasPrefix(string(a), name+".") {
			actions = append(actions, string(a))
		}
	}
	if len(actions) == 0 {
		return nil, &coord.InvalidError{Field: "action", Reason: "is neither an action nor a group of them"}
	}
	return actions, nil
}
