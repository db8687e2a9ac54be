package web

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
)

func userOf(r *http.Request) store.User { return sessionOf(r).User }

func (h *handler) getTasks(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	list, err := h.tasks.List(r.Context(), userOf(r))
	return http.StatusOK, map[string]any{"tasks": orEmpty(list)}, err
}

type taskAnswer struct {
	Task tasks.Task `json:"task"`
}

// readTask reads a task, of which what is only for reading is passed over.
func readTask(r *http.Request) (tasks.Definition, error) {
	var body tasks.Task
	err := readJSON(r, &body)
	if e, ok := errors.AsType[*coord.InvalidError](err); ok {
		// The decoder names also the struct that is embedded.
		return tasks.Definition{}, &coord.InvalidError{Field: strings.TrimPrefix(e.Field, "definition."), Reason: e.Reason}
	}
	return body.Definition, err
}

func (h *handler) postTasks(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	d, err := readTask(r)
	if err != nil {
		return 0, nil, err
	}
	task, err := h.tasks.Create(r.Context(), userOf(r), d)
	return http.StatusCreated, taskAnswer{task}, err
}

func (h *handler) getTask(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	task, err := h.tasks.Get(r.Context(), userOf(r), param(r, "name"))
	return http.StatusOK, taskAnswer{task}, err
}

func (h *handler) putTask(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	d, err := readTask(r)
	if err != nil {
		return 0, nil, err
	}
	task, err := h.tasks.Update(r.Context(), userOf(r), param(r, "name"), d)
	return http.StatusOK, taskAnswer{task}, err
}

func (h *handler) deleteTask(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, h.tasks.Delete(r.Context(), userOf(r), param(r, "name"))
}

func (h *handler) pauseTask(paused bool) endpoint {
	return func(_ http.ResponseWriter, r *http.Request) (int, any, error) {
		task, err := h.tasks.Pause(r.Context(), userOf(r), param(r, "name"), paused)
		return http.StatusOK, taskAnswer{task}, err
	}
}

type runAnswer struct {
	Run tasks.Run `json:"run"`
}

func (h *handler) runTask(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	// Browsers say so of what a page does, and nothing else does.
	page := r.Header.Get("Sec-Fetch-Site") == "same-origin"
	run, err := h.tasks.RunNow(r.Context(), userOf(r), param(r, "name"), r.Header.Get("Idempotency-Key"), page)
	return http.StatusAccepted, runAnswer{run}, err
}

// getRuns lists the runs of the task that the path names, or of all.
func (h *handler) getRuns(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	before, err := h.before(r)
	if err != nil {
		return 0, nil, err
	}
	limit, err := number(r, "limit")
	if err != nil {
		return 0, nil, err
	}
	query := r.URL.Query()
	list, more, err := h.tasks.Runs(r.Context(), userOf(r), tasks.RunsFilter{
		Task: param(r, "name"), Kind: query.Get("kind"), State: coord.State(query.Get("state")),
		Before: coord.RunID(before), Limit: int(min(limit, maxBody)),
	})
	next := ""
	if len(list) > 0 {
		next = h.next(r, more, int64(list[len(list)-1].ID))
	}
	return http.StatusOK, struct {
		Runs []tasks.Run `json:"runs"`
		More bool        `json:"more"`
		Next string      `json:"next,omitzero"`
	}{orEmpty(list), more, next}, err
}

func runID(r *http.Request) (coord.RunID, error) {
	id, err := strconv.ParseInt(param(r, "id"), 10, 64)
	if err != nil {
		return 0, coord.ErrNotFound
	}
	return coord.RunID(id), nil
}

func (h *handler) getRun(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := runID(r)
	if err != nil {
		return 0, nil, err
	}
	run, err := h.tasks.Run(r.Context(), userOf(r), id)
	return http.StatusOK, runAnswer{run}, err
}

func (h *handler) getLog(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := runID(r)
	if err != nil {
		return 0, nil, err
	}
	after := int64(0)
	if text := r.URL.Query().Get("after"); text != "0" { // the beginning
		if after, err = number(r, "after"); err != nil {
			return 0, nil, err
		}
	}
	lines, more, err := h.tasks.Log(r.Context(), userOf(r), id, int(min(after, coord.MaxLogLines)))
	return http.StatusOK, struct {
		Lines []tasks.Line `json:"lines"`
		More  bool         `json:"more"`
	}{orEmpty(lines), more}, err
}

func (h *handler) cancelRun(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := runID(r)
	if err != nil {
		return 0, nil, err
	}
	run, err := h.tasks.Cancel(r.Context(), userOf(r), id)
	return http.StatusAccepted, runAnswer{run}, err
}

func (h *handler) postWebhook(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct {
		OverlapS int64 `json:"overlap_s"`
	}
	if r.ContentLength != 0 {
		if err := readJSON(r, &body); err != nil {
			return 0, nil, err
		}
	}
	overlap, err := seconds("overlap_s", body.OverlapS)
	if err != nil {
		return 0, nil, err
	}
	made, err := h.tasks.MakeWebhook(r.Context(), userOf(r), param(r, "name"), overlap)
	return http.StatusCreated, made, err
}

func (h *handler) deleteWebhook(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, h.tasks.RemoveWebhook(r.Context(), userOf(r), param(r, "name"))
}

// postHook is for anybody who knows the secret of a task's webhook.
func (h *handler) postHook(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		if p, ok := tooLarge(err); ok {
			return 0, nil, p
		}
		return 0, nil, problem{Status: http.StatusBadRequest, Detail: "the body broke off"}
	}
	run, duplicate, err := h.tasks.Deliver(r.Context(), param(r, "name"), r.Header, body)
	return http.StatusAccepted, struct {
		RunID     coord.RunID `json:"run_id"`
		Duplicate bool        `json:"duplicate"`
	}{run.ID, duplicate}, err
}
