package web

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/tandemhq/tandem/app/tools"
	"github.com/tandemhq/tandem/coord"
)

type callAnswer struct {
	Call tools.View `json:"call"`
}

func (h *handler) postTools(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	user, err := strconv.ParseInt(param(r, "id"), 10, 64)
	if err != nil {
		return 0, nil, coord.ErrNotFound
	}
	var body struct {
		Tool     string          `json:"tool"`
		Args     json.RawMessage `json:"args"`
		TimeoutS int             `json:"timeout_s"`
	}
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	timeout := time.Duration(min(body.TimeoutS, maxBody)) * time.Second
	call, err := h.tools.Call(r.Context(), userOf(r), user, body.Tool, body.Args, timeout, r.Header.Get("Idempotency-Key"))
	return http.StatusAccepted, callAnswer{tools.ViewOf(call)}, err
}

func callID(r *http.Request) coord.CallID { return coord.CallID(param(r, "id")) }

// getCall waits for the end of a call for as long as the caller likes, within bounds.
func (h *handler) getCall(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	wait := int64(0)
	if text := r.URL.Query().Get("wait_s"); text != "0" {
		var err error
		if wait, err = number(r, "wait_s"); err != nil {
			return 0, nil, err
		}
	}
	most := int64(tools.MaxWait / time.Second)
	call, err := h.tools.Wait(r.Context(), userOf(r), callID(r), time.Duration(min(wait, most))*time.Second)
	return http.StatusOK, callAnswer{tools.ViewOf(call)}, err
}

func (h *handler) cancelCall(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	call, err := h.tools.Cancel(r.Context(), userOf(r), callID(r))
	return http.StatusOK, callAnswer{tools.ViewOf(call)}, err
}
