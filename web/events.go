package web

import (
	"net/http"

	"github.com/tandemhq/tandem/app/auth"
)

// serveSocket opens a WebSocket, which lives on.
func (h *handler) serveSocket(w http.ResponseWriter, r *http.Request) {
	if err := h.hub.Serve(w, r); err != nil {
		h.fail(w, r, err)
	}
}

// serveEvents sends the events of topics until the client is gone.
func (h *handler) serveEvents(w http.ResponseWriter, r *http.Request) {
	if _, given := bearer(r); !given && !h.config.OriginAllowed(r) {
		h.fail(w, r, problem{Status: http.StatusForbidden, Detail: "the request comes from a page of another site"})
		return
	}
	s, err := h.session(r)
	if err == nil {
		err = auth.May(s, auth.Read)
	}
	if err == nil {
		query := r.URL.Query()
		after := r.Header.Get("Last-Event-ID")
		if after == "" { // which a page can't set when it begins
			after = query.Get("last_event_id")
		}
		err = h.hub.ServeEvents(w, r, s, query["topic"], after)
	}
	if err != nil {
		h.fail(w, r, err)
	}
}
