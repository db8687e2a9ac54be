package row

import (
	"crypto/sha256"

	"github.com/tandemhq/tandem/coord"
)

// ReceiptKey is what is stored of a receipt's key.
func ReceiptKey(key string) []byte {
	h := sha256.Sum256([]byte(key))
	return h[:]
}

// Receipt is what coord_begin returns of a key.
type Receipt struct {
	State string `bun:"state"`
	Token int64  `bun:"token"`
	Until Time   `bun:"until"`
	Error string `bun:"error"`
	Body  []byte `bun:"body"`
}

// Coord returns the receipt of a key, or why there is none for whoever asked.
func (r Receipt) Coord(key string) (coord.Receipt, error) {
	got := coord.Receipt{Key: key, State: coord.ReceiptState(r.State), Until: r.Until.Time}
	switch got.State {
	case coord.ReceiptDone:
		got.Token, got.Outcome = r.Token, coord.ReceiptOutcome{Body: r.Body, Error: r.Error}
	case coord.ReceiptMine:
		got.Token = r.Token
	case coord.ReceiptHeld:
	default:
		return coord.Receipt{}, coord.ErrConflict
	}
	return got, nil
}
