// Package web is the HTTP side of the application: the API, the WebSocket
// endpoint, the page, health and metrics. docs/protocol.md describes it.
package web

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/julienschmidt/httprouter"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/health"
	"github.com/tandemhq/tandem/app/hub"
	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/presence"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/app/tools"
)

// handler is what serves the routes.
type handler struct {
	config   app.Config
	auth     *auth.Service
	rooms    *rooms.Service
	tasks    *tasks.Service
	hub      *hub.Hub
	presence *presence.Service
	tools    *tools.Service
	health   *health.Health
	metrics  *metrics.Metrics
	clients  *clients
	log      *slog.Logger
}

// New returns the handler of everything that is served.
func New(
	c app.Config, a *auth.Service, r *rooms.Service, t *tasks.Service, h *hub.Hub, p *presence.Service,
	tl *tools.Service, hl *health.Health,
	m *metrics.Metrics, log *slog.Logger,
) (http.Handler, error) {
	known, err := newClients(c.TrustedProxies)
	if err != nil {
		return nil, err
	}
	static, err := newStatic()
	if err != nil {
		return nil, err
	}
	crossOrigin := http.NewCrossOriginProtection()
	for _, origin := range c.AllowedOrigins() {
		if err := crossOrigin.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("origin %q: %w", origin, err)
		}
	}
	hd := &handler{
		config: c, auth: a, rooms: r, tasks: t, hub: h, presence: p, tools: tl, health: hl, metrics: m, clients: known, log: log,
	}
	crossOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, problem{Status: http.StatusForbidden, Detail: "the request comes from a page of another site"})
	}))
	return hd.logged(hd.headers(crossOrigin.Handler(hd.routes(static)))), nil
}

func (h *handler) routes(static *static) http.Handler {
	r := httprouter.New()
	r.HandleOPTIONS = false
	get := func(path string, handler http.Handler) {
		for _, method := range []string{"GET", "HEAD"} {
			r.Handler(method, path, handler)
		}
	}
	api := func(method, path string, bodyLimit int64, endpoint endpoint) {
		path, handler := "/api/v1"+path, h.api(bodyLimit, endpoint)
		if method == "GET" {
			get(path, handler)
			return
		}
		r.Handler(method, path, handler)
	}
	api("GET", "/setup", noBody, h.getSetup)
	api("POST", "/setup", authBody, h.postSetup)
	api("GET", "/me", noBody, h.signedIn(h.getMe))
	api("POST", "/session", authBody, h.postSession)
	api("DELETE", "/session", noBody, h.deleteSession)
	api("GET", "/rooms", noBody, h.signedIn(h.getRooms))
	api("POST", "/rooms", maxBody, h.signedIn(h.postRooms))
	api("GET", "/rooms/:id", noBody, h.signedIn(inRoom(h.getRoom)))
	api("PATCH", "/rooms/:id", authBody, h.signedIn(inRoom(h.patchRoom)))
	api("GET", "/rooms/:id/members", noBody, h.signedIn(inRoom(h.getMembers)))
	api("PUT", "/rooms/:id/members/:user", authBody, h.signedIn(inRoom(h.putMember)))
	api("DELETE", "/rooms/:id/members/:user", noBody, h.signedIn(inRoom(h.deleteMember)))
	api("POST", "/rooms/:id/read", authBody, h.signedIn(inRoom(h.postRead)))
	api("GET", "/rooms/:id/messages", noBody, h.signedIn(inRoom(h.getMessages)))
	api("POST", "/rooms/:id/messages", maxBody, h.signedIn(inRoom(h.postMessages)))
	api("PATCH", "/rooms/:id/messages/:message", maxBody, h.signedIn(inRoom(h.patchMessage)))
	api("DELETE", "/rooms/:id/messages/:message", noBody, h.signedIn(inRoom(h.deleteMessage)))
	api("GET", "/users", noBody, h.signedIn(h.getUsers))
	api("GET", "/presence", noBody, h.signedIn(h.getPresence))
	api("POST", "/users/:id/tools", maxBody, h.signedIn(h.postTools))
	api("GET", "/calls/:id", noBody, h.signedIn(h.getCall))
	api("POST", "/calls/:id/cancel", authBody, h.signedIn(h.cancelCall))
	api("POST", "/ws-tickets", authBody, h.signedIn(h.postTickets))
	api("GET", "/tasks", noBody, h.signedIn(h.getTasks))
	api("POST", "/tasks", maxBody, h.signedIn(h.postTasks))
	api("GET", "/tasks/:name", noBody, h.signedIn(h.getTask))
	api("PUT", "/tasks/:name", maxBody, h.signedIn(h.putTask))
	api("DELETE", "/tasks/:name", noBody, h.signedIn(h.deleteTask))
	api("POST", "/tasks/:name/pause", authBody, h.signedIn(h.pauseTask(true)))
	api("POST", "/tasks/:name/resume", authBody, h.signedIn(h.pauseTask(false)))
	api("POST", "/tasks/:name/run", authBody, h.signedIn(h.runTask))
	api("GET", "/tasks/:name/runs", noBody, h.signedIn(h.getRuns))
	api("POST", "/tasks/:name/webhook", authBody, h.signedIn(h.postWebhook))
	api("DELETE", "/tasks/:name/webhook", noBody, h.signedIn(h.deleteWebhook))
	api("GET", "/runs", noBody, h.signedIn(h.getRuns))
	api("GET", "/runs/:id", noBody, h.signedIn(h.getRun))
	api("GET", "/runs/:id/log", noBody, h.signedIn(h.getLog))
	api("POST", "/runs/:id/cancel", authBody, h.signedIn(h.cancelRun))
	api("GET", "/schedule", noBody, h.signedIn(h.getSchedule))

	r.Handler("POST", tasks.WebhookPath+":name", h.api(hookBody, h.postHook))
	r.HandlerFunc("GET", "/ws", h.serveSocket)
	r.HandlerFunc("GET", "/api/v1/events", h.serveEvents)
	get("/healthz/live", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "live"})
	}))
	get("/healthz/ready", http.HandlerFunc(h.ready))
	get("/metrics", h.private(h.metrics.Handler()))
	get("/", http.HandlerFunc(static.page))
	get("/static/*path", http.HandlerFunc(static.file))

	r.NotFound = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/") {
			writeProblem(w, problem{Status: http.StatusNotFound})
			return
		}
		http.Error(w, "There is no such page.", http.StatusNotFound)
	})
	r.MethodNotAllowed = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, problem{Status: http.StatusMethodNotAllowed})
	})
	r.PanicHandler = func(w http.ResponseWriter, r *http.Request, reason any) {
		if err, ok := reason.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(reason)
		}
		h.log.ErrorContext(r.Context(), "a request panicked", "path", r.URL.Path, "reason", reason,
			"stack", string(debug.Stack()))
		writeProblem(w, problem{Status: http.StatusInternalServerError})
	}
	return r
}

func (h *handler) ready(w http.ResponseWriter, r *http.Request) {
	ready, checks := h.health.Ready(r.Context())
	if !h.operator(r) { // an error of the database names addresses and accounts
		for i := range checks {
			checks[i].Error = ""
		}
	}
	answer := struct {
		Status string         `json:"status"`
		Checks []health.Check `json:"checks"`
	}{"ready", checks}
	status := http.StatusOK
	if !ready {
		answer.Status, status = "unready", http.StatusServiceUnavailable
	}
	writeJSON(w, status, answer)
}
