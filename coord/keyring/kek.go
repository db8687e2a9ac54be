package keyring

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/tandemhq/tandem/coord"
)

// KEK is a key-encryption key, which the store does not have.
type KEK struct {
	id  string
	key []byte
}

const kekSize = 32 // bytes

// NewKEK returns another key-encryption key, for [ParseKEK].
func NewKEK() string {
	var b [kekSize]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return base64.StdEncoding.EncodeToString(b[:])
}

var errKEK = errors.New("a key-encryption key is 32 bytes in base64")

// ParseKEK reads a key-encryption key: 32 bytes in base64. The error repeats nothing of it.
func ParseKEK(text string) (KEK, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(text))
	if err != nil || len(b) != kekSize {
		return KEK{}, errKEK
	}
	id := sha256.Sum256(subkey(b, "kek", "id"))
	return KEK{id: "kek_" + hex.EncodeToString(id[:4]), key: subkey(b, "kek", "seal")}, nil
}

// ID names the key, and says nothing about it.
func (k KEK) ID() string { return k.id }

// String returns the ID.
func (k KEK) String() string { return k.id }

// GoString returns the ID.
func (k KEK) GoString() string { return k.id }

// KEKError says that a key is sealed under a key-encryption key that the program was not given.
type KEKError struct {
	Ring     string
	Version  int64
	SealedBy string // the ID of the one that is missing
	Broken   bool   // it was given, and does not open the key: what is stored was changed
}

func (e *KEKError) Error() string {
	if e.Broken {
		return fmt.Sprintf("keyring: key %d of the ring %q is sealed by %s and can't be opened: it was changed in the store", e.Version, e.Ring, e.SealedBy)
	}
	return fmt.Sprintf("keyring: key %d of the ring %q is sealed by the key-encryption key %s, which is not here", e.Version, e.Ring, e.SealedBy)
}

// where a key belongs, so that it can be moved nowhere else.
func place(ring string, version int64) string { return fmt.Sprintf("%d %s", version, ring) }

// sealing is the KEK that seals anew, nil when there is none.
func (r *Ring) sealing() *KEK {
	if len(r.o.KEKs) == 0 {
		return nil
	}
	return &r.o.KEKs[0]
}

// sealingAs is the KEK that a key is sealed under, nil when it is not: who can use that key has it.
func (r *Ring) sealingAs(k coord.Key) (*KEK, error) {
	if k.SealedBy == "" {
		return nil, nil
	}
	for i := range r.o.KEKs {
		if r.o.KEKs[i].id == k.SealedBy {
			return &r.o.KEKs[i], nil
		}
	}
	return nil, &KEKError{Ring: r.o.Name, Version: k.Version, SealedBy: k.SealedBy}
}

// sealKey returns a secret as it is to be stored, sealed under kek if there is one.
func (r *Ring) sealKey(kek *KEK, version int64, secret []byte) coord.KeyChange {
	c := coord.KeyChange{Version: version, Material: secret}
	if kek != nil {
		c.Material, c.SealedBy = seal(kek.key, nil, secret, place(r.o.Name, version)), kek.id
	}
	return c
}

// open returns the secret of a key that is stored.
func (r *Ring) open(k coord.Key) ([]byte, *KEKError) {
	if k.SealedBy == "" {
		return k.Material, nil
	}
	for _, kek := range r.o.KEKs {
		if kek.id != k.SealedBy {
			continue
		}
		secret, err := unseal(kek.key, k.Material, place(r.o.Name, k.Version))
		if err != nil {
			return nil, &KEKError{Ring: r.o.Name, Version: k.Version, SealedBy: k.SealedBy, Broken: true}
		}
		return secret, nil
	}
	return nil, &KEKError{Ring: r.o.Name, Version: k.Version, SealedBy: k.SealedBy}
}

func (r *Ring) newKey(kek *KEK, version int64, state coord.KeyState) coord.KeyChange {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails, see its documentation
	c := r.sealKey(kek, version, secret)
	c.State = state
	return c
}
