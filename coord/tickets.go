package coord

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"time"
)

// Tickets lets a caller that is known by other means open one connection,
// once, on any replica.
//
// Tickets fail closed: when the store can't be reached, Redeem returns
// ErrUnavailable and nobody gets in.
type Tickets interface {
	// Issue makes a ticket. Only a hash of its secret is stored. At most
	// MaxTickets tickets of one session are good at a time; a further one
	// replaces the oldest. A ticket may be lost when the store crashes soon after it
	// was issued; that lets nobody in.
	Issue(ctx context.Context, t TicketFor) (Ticket, error)
	// Redeem burns the ticket and then says what it was for. It succeeds at most
	// once per ticket over all replicas. Errors: ErrNotFound (unknown, redeemed or
	// replaced), ErrExpired, ErrConflict when it was issued for another purpose,
	// origin or scope, ErrUnavailable. The ticket is burnt in every case but the
	// last, where it may be.
	Redeem(ctx context.Context, secret string, use TicketUse) (TicketFor, error)
	// Reap deletes a bounded number of expired tickets and returns how many. Call
	// it until it returns 0.
	Reap(ctx context.Context) (int, error)
}

// MaxTickets is how many tickets of one session are good at a time.
const MaxTickets = 5

// TicketFor says what a ticket is good for.
type TicketFor struct {
	Purpose string        // such as "ws"; 1–100 bytes
	User    string        // 1–200 bytes
	Session string        // 1–200 bytes
	Origin  string        // the exact Origin header to come; empty: none may come
	Scope   string        // optional, such as a room; at most 200 bytes
	TTL     time.Duration // 1 s–1 h; default 30 s
}

// Ticket is what the caller gets.
type Ticket struct {
	Secret  string // 128 random bits, base64url; never logged
	Expires time.Time
}

// TicketUse is what a redeemed ticket must have been issued for.
type TicketUse struct {
	Purpose string
	Origin  string
	Scope   string
}

// Fits reports whether a ticket for t may be put to this use; for authors of
// drivers.
func (u TicketUse) Fits(t TicketFor) bool {
	return u.Purpose == t.Purpose && u.Origin == t.Origin && u.Scope == t.Scope
}

// secretLen is the length of every secret: 16 bytes in base64url.
const secretLen = 22

// TicketHash is what is stored of a secret.
type TicketHash [sha256.Size]byte

// HashTicket returns the hash under which a secret is stored; for authors of
// drivers.
func HashTicket(secret string) TicketHash { return sha256.Sum256([]byte(secret)) }

// NewTicketSecret returns a secret of 128 random bits; for authors of drivers.
func NewTicketSecret() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return base64.RawURLEncoding.EncodeToString(b[:])
}
