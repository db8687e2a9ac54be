package web

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandemhq/tandem/coord"
)

// maxPresence is of how many people one request may ask who is there.
const maxPresence = 500

func (h *handler) getPresence(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	ids := strings.Split(r.URL.Query().Get("users"), ",")
	if len(ids) > maxPresence {
		reason := fmt.Sprintf("names %d people, at most %d may be asked for", len(ids), maxPresence)
		return 0, nil, &coord.InvalidError{Field: "users", Reason: reason}
	}
	users := make([]int64, len(ids))
	for i, id := range ids {
		var err error
		if users[i], err = strconv.ParseInt(id, 10, 64); err != nil {
			return 0, nil, &coord.InvalidError{Field: "users", Reason: "must be ids of people, with commas between them"}
		}
	}
	list, err := h.presence.Show(r.Context(), userOf(r), users...)
	return http.StatusOK, map[string]any{"presence": orEmpty(list)}, err
}
