package auth

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// Scope is what a token may be used for.
type Scope string

// The scopes.
const (
	ScopeRead  Scope = "read"  // see and hear what its owner may
	ScopeChat  Scope = "chat"  // say something, and be in rooms
	ScopeTasks Scope = "tasks" // make, change and run tasks
	ScopeAdmin Scope = "admin" // manage people, and read the audit log
)

// Right is one of the things that somebody may do.
type Right string

// The rights. Within each, rooms decide for themselves what somebody may see and do there.
const (
	Read         Right = "read"          // what there is to see for that person
	SeePeople    Right = "see_people"    // who there is, also outside of one's rooms
	Chat         Right = "chat"          // talk in rooms, join and leave them, call and answer tools
	MakeRooms    Right = "make_rooms"    // also direct ones
	ChangeTasks  Right = "change_tasks"  // also run and cancel
	MakeWebhooks Right = "make_webhooks" // whose requests come from anywhere
	ManagePeople Right = "manage_people" // invitations, roles, sessions of others
	ReadAudit    Right = "read_audit"    //
	Own          Right = "own_account"   // one's own sessions, tokens and password
)

// rights is the one table of who may do what. A right without a scope is for no token.
var rights = []struct {
	right  Right
	scope  Scope
	roles  []store.Role
	reason string // why others may not
}{
	{Read, ScopeRead, []store.Role{store.Admin, store.Member, store.Guest}, ""},
	{SeePeople, ScopeRead, []store.Role{store.Admin, store.Member}, "guests see only who is in their rooms"},
	{Chat, ScopeChat, []store.Role{store.Admin, store.Member, store.Guest}, ""},
	{MakeRooms, ScopeChat, []store.Role{store.Admin, store.Member}, "guests can't make rooms"},
	{ChangeTasks, ScopeTasks, []store.Role{store.Admin, store.Member}, "guests can't make, change or run tasks"},
	{MakeWebhooks, ScopeTasks, []store.Role{store.Admin}, "only administrators may make webhooks"},
	{ManagePeople, ScopeAdmin, []store.Role{store.Admin}, "only administrators may do that"},
	{ReadAudit, ScopeAdmin, []store.Role{store.Admin}, "only administrators may do that"},
	{Own, "", []store.Role{store.Admin, store.Member, store.Guest}, ""},
}

// ForbiddenError says why somebody may not do something.
type ForbiddenError struct {
	Reason string
	Scope  Scope // which a token lacks, if that is why
}

func (e *ForbiddenError) Error() string { return e.Reason }

// May returns nil for who has a right, and otherwise a *ForbiddenError.
func May(s store.Session, r Right) error {
	for _, row := range rights {
		if row.right != r {
			continue
		}
		switch {
		case !slices.Contains(row.roles, s.User.Role):
			return &ForbiddenError{Reason: row.reason}
		case s.Kind != store.Token || row.scope != "" && slices.Contains(strings.Fields(s.Scopes), string(row.scope)):
			return nil
		case row.scope == "":
			return &ForbiddenError{Reason: "this is for people who are signed in, no token may do it"}
		}
		return &ForbiddenError{Reason: fmt.Sprintf("the token lacks the scope %q", row.scope), Scope: row.scope}
	}
	return &ForbiddenError{Reason: "nobody may do that"}
}

// Rights lists what may be done by a session.
func Rights(s store.Session) []Right {
	list := []Right{}
	for _, row := range rights {
		if May(s, row.right) == nil {
			list = append(list, row.right)
		}
	}
	return list
}

// checkScopes returns scopes as they are stored: each once, in the order of the alphabet.
func checkScopes(role store.Role, scopes []Scope) (string, error) {
	if len(scopes) == 0 {
		return "", invalid("scopes", "must name one at least")
	}
	var list []string
	for _, scope := range scopes {
		known, useful := false, false
		for _, row := range rights {
			known = known || row.scope == scope && scope != ""
			useful = useful || row.scope == scope && slices.Contains(row.roles, role)
		}
		switch {
		case !known:
			return "", invalid("scopes", fmt.Sprintf("may be %s, %s, %s and %s", ScopeRead, ScopeChat, ScopeTasks, ScopeAdmin))
		case !useful:
			return "", invalid("scopes", fmt.Sprintf("%s is not for a %s", scope, role))
		}
		list = append(list, string(scope))
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), " "), nil
}

func checkRole(role store.Role) error {
	switch role {
	case store.Admin, store.Member, store.Guest:
		return nil
	}
	return &coord.InvalidError{Field: "role", Reason: fmt.Sprintf("must be %s, %s or %s", store.Admin, store.Member, store.Guest)}
}
