package web

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/http"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/keyring"
)

// cursorPurpose is what cursors are signed for.
const cursorPurpose = "cursor"

// before is where a page of a list ends that goes back in time: before the id of that name in the
// query, or where the cursor of another page says, 0 for the newest.
func (h *handler) before(r *http.Request) (int64, error) {
	before, err := number(r, "before")
	cursor := r.URL.Query().Get("cursor")
	if err != nil || cursor == "" {
		return before, err
	}
	if before != 0 {
		return 0, &coord.InvalidError{Field: "cursor", Reason: "must not be given together with before"}
	}
	data, err := h.cursors.Verify(r.Context(), cursorPurpose, cursor)
	if err != nil && !errors.Is(err, keyring.ErrForged) {
		return 0, err
	}
	list, is := bytes.CutPrefix(data, []byte(r.URL.Path+"\x00"))
	if err != nil || !is || len(list) != 8 {
		return 0, &coord.InvalidError{Field: "cursor", Reason: "must be what this list has returned as next, and may be too old; begin anew"}
	}
	return int64(binary.BigEndian.Uint64(list)), nil
}

// next is the cursor for what comes behind a page that ends with an id, "" when there is no more. It
// is left out when nothing can be signed: the id does as well.
func (h *handler) next(r *http.Request, more bool, last int64) string {
	if !more {
		return ""
	}
	cursor, err := h.cursors.Sign(cursorPurpose, binary.BigEndian.AppendUint64([]byte(r.URL.Path+"\x00"), uint64(last)))
	if err != nil {
		h.log.DebugContext(r.Context(), "a list has no cursor", "error", err)
	}
	return cursor
}
