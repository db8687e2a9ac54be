package coord

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"time"
)

// Directory says who is connected where.
//
// A replica joins as a [Member] with a lease, and registers keys under it: one
// for each connection, say. What a member has registered lives as long as its
// lease, so that keeping thousands of entries alive is one renewal, and those of a
// replica that vanished are gone when its lease ends. Leases are counted by the
// store's clock.
//
// A key has one entry. Whoever registers it takes it over, and each time it gets
// a higher epoch. Every change names the epoch that it means: one that comes late,
// from a registration that was taken over, changes nothing.
type Directory interface {
	// Join makes a new member. One that is joined again by the same process, under
	// whatever name, is another one.
	Join(ctx context.Context, n NewMember) (Member, error)
	// Members lists the members whose lease has not ended, the oldest first.
	Members(ctx context.Context) ([]MemberInfo, error)
	// Lookup returns the live entries of those keys, at most MaxBatch. A key
	// without one is missing from the map; an outage is an ErrUnavailable, and
	// never means that nobody is there.
	Lookup(ctx context.Context, keys ...string) (map[string]Entry, error)
	// List returns a page of live entries, in the order of their keys.
	List(ctx context.Context, f EntryFilter) ([]Entry, error)
	// Sweep removes what members left whose lease has ended, a bounded number of
	// entries, and returns them, each to one caller. Call it until it returns none.
	// When an answer is lost, so is what it would have told.
	Sweep(ctx context.Context) ([]Entry, error)
	// Changes returns a channel that receives when members or entries may have
	// changed, and a function that gives the channel up. A hint is only that: it may
	// come late, for nothing, or not at all. A lease that ends sends none until it
	// is swept.
	Changes() (changes <-chan struct{}, stop func())
}

// Member is this replica's own part of a [Directory]. When its lease has ended, or
// it has left, it can change nothing more: Register, Update and Renew return
// [ErrFenced], all that it had registered is lost, and it is to join anew. It is
// safe for concurrent use.
type Member interface {
	ID() MemberID
	// Register makes an entry of a key, and takes it over from whoever has it. The
	// epoch is higher than any that the key has had, also when its entry was removed
	// meanwhile.
	Register(ctx context.Context, key string, data []byte) (Registration, error)
	// Update replaces the data of an entry. ErrFenced when the registration is no
	// longer the one that holds the key.
	Update(ctx context.Context, r Registration, data []byte) error
	// Deregister removes entries, at most MaxBatch. Of a registration that is no
	// longer the one that holds its key nothing is removed, and that is no error.
	Deregister(ctx context.Context, rs ...Registration) error
	// Renew extends the lease, by one statement whatever the number of entries, and
	// returns the registrations that others, or the member itself by a further
	// Register, have taken over since. Each is returned again until a Renew that
	// begins after its answer has arrived.
	Renew(ctx context.Context) (lost []Registration, err error)
	// Deadline is until when this process may take its lease for granted. It counts
	// on the monotonic clock from before the last successful Join or Renew, and ends
	// a tenth of the lease, at most 2 s, before the lease. For authors of drivers:
	// the seam keeps it.
	Deadline() time.Time
	// Leave ends the lease and removes all entries. One whose lease has ended has
	// left already, and its entries stay for Sweep.
	Leave(ctx context.Context) error
}

// MaxEntryData is how many bytes the data of a member or an entry may have.
const MaxEntryData = 4096

// NewMember is a member to be.
type NewMember struct {
	Name  string        // for people to read; 1–200 bytes
	Lease time.Duration // 1 s–24 h; default 30 s
	Data  []byte        // at most MaxEntryData
}

// MemberID names a member: 128 random bits in base64url, so that one which a
// restored database has forgotten is never taken for another.
type MemberID string

// NewMemberID returns a random id; for authors of drivers.
func NewMemberID() MemberID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return MemberID(base64.RawURLEncoding.EncodeToString(b[:]))
}

// MemberInfo is what others see of a member.
type MemberInfo struct {
	ID         MemberID
	Name       string
	Data       []byte
	Since      time.Time
	LeaseUntil time.Time
}

// Registration is a key that a member holds, or held.
type Registration struct {
	Key   string // 1–200 bytes
	Epoch int64
}

// Entry is a key that is registered.
type Entry struct {
	Registration
	Member     MemberID
	MemberName string
	Data       []byte    // at most MaxEntryData
	Since      time.Time // when it was registered
	UpdatedAt  time.Time // when its data was set
}

// EntryFilter narrows a listing of entries.
type EntryFilter struct {
	Prefixes []string // keys that begin with one of these, at most MaxBatch; none: all
	After    string   // keys behind this one, in the order of bytes
	Limit    int      // 1–1000; default 100
}
