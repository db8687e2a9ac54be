package web

import (
	"net/http"

	"github.com/tandemhq/tandem/app/jobs"
)

func (h *handler) getJobs(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	list, err := h.jobs.List(r.Context())
	return http.StatusOK, struct {
		Jobs []jobs.Status `json:"jobs"`
	}{orEmpty(list)}, err
}
