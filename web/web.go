// Package web is the HTTP side of the application: the API, the WebSocket
// endpoint, the page, health and metrics. docs/api.md and docs/protocol.md describe it.
package web

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"

	"github.com/julienschmidt/httprouter"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/health"
	"github.com/tandemhq/tandem/app/hub"
	"github.com/tandemhq/tandem/app/jobs"
	"github.com/tandemhq/tandem/app/keys"
	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/presence"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/app/tools"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/httplimit"
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
	audit    *audit.Service
	cursors  auth.Signer
	jobs     *jobs.Registry
	health   *health.Health
	metrics  *metrics.Metrics
	clients  *clients
	writes   func(http.Handler) http.Handler // as many as one person may
	once     func(route, http.Handler) http.Handler
	log      *slog.Logger
}

// New returns the handler of everything that is served.
func New(
	c app.Config, a *auth.Service, r *rooms.Service, t *tasks.Service, h *hub.Hub, p *presence.Service,
	tl *tools.Service, au *audit.Service, k *keys.Keys, j *jobs.Registry, backend coord.Backend, hl *health.Health,
	m *metrics.Metrics, log *slog.Logger,
) (http.Handler, error) {
	known, err := newClients(c.TrustedProxies)
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
		config: c, auth: a, rooms: r, tasks: t, hub: h, presence: p, tools: tl, audit: au, cursors: k.Tokens, jobs: j, health: hl, metrics: m, clients: known, log: log,
	}
	crossOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, problem{Status: http.StatusForbidden, Detail: "the request comes from a page of another site"})
	}))
	hd.writes, err = httplimit.New(backend.Limiter(), httplimit.Options{}, httplimit.Policy{
		Name: "writes", Limit: c.Writes, Key: func(r *http.Request) string { return strconv.FormatInt(userOf(r).ID, 10) },
	})
	if err != nil {
		return nil, err
	}
	if hd.once, err = hd.newOnce(backend.Receipts()); err != nil {
		return nil, err
	}
	routes, err := hd.router()
	if err != nil {
		return nil, err
	}
	return hd.logged(hd.headers(sameSite(crossOrigin, routes))), nil
}

// route is one thing that is served.
type route struct {
	method, path string
	right        auth.Right // that it takes; empty: it is for everybody, or decides for itself
	body         int64      // how large the request's body may be
	serve        endpoint   // or
	raw          http.Handler
}

const api = "/api/v1"

// routes are all that is served; docs/api.md describes them in this order. Every GET may
// be a HEAD also, but for those that go on.
func (h *handler) routes(s *static) []route {
	return []route{
		{"GET", api + "/setup", "", noBody, h.getSetup, nil},
		{"POST", api + "/setup", "", authBody, h.postSetup, nil},
		{"POST", api + "/session", "", authBody, h.postSession, nil},
		{"DELETE", api + "/session", "", noBody, h.deleteSession, nil},
		{"POST", api + "/links", "", authBody, h.postLinks, nil},
		{"POST", api + "/invitations/accept", "", authBody, h.acceptInvitation, nil},
		{"POST", api + "/password/reset", "", authBody, h.resetPassword, nil},

		{"GET", api + "/me", auth.Read, noBody, h.getMe, nil},
		{"POST", api + "/password", auth.Own, authBody, h.postPassword, nil},
		{"GET", api + "/sessions", auth.Own, noBody, h.getSessions, nil},
		{"DELETE", api + "/sessions", auth.Own, noBody, h.deleteSessions, nil},
		{"DELETE", api + "/sessions/:id", auth.Own, noBody, h.deleteOneSession, nil},
		{"GET", api + "/tokens", auth.Own, noBody, h.getTokens, nil},
		{"POST", api + "/tokens", auth.Own, authBody, h.postTokens, nil},
		{"DELETE", api + "/tokens/:id", auth.Own, noBody, h.deleteToken, nil},

		{"GET", api + "/people", auth.ManagePeople, noBody, h.getPeople, nil},
		{"PATCH", api + "/people/:id", auth.ManagePeople, authBody, h.patchPerson, nil},
		{"DELETE", api + "/people/:id/sessions", auth.ManagePeople, noBody, h.deletePersonSessions, nil},
		{"POST", api + "/people/:id/reset", auth.ManagePeople, authBody, h.postReset, nil},
		{"GET", api + "/invitations", auth.ManagePeople, noBody, h.getInvitations, nil},
		{"POST", api + "/invitations", auth.ManagePeople, authBody, h.postInvitations, nil},
		{"DELETE", api + "/invitations/:id", auth.ManagePeople, noBody, h.deleteInvitation, nil},
		{"GET", api + "/audit", auth.ReadAudit, noBody, h.getAudit, nil},
		{"GET", api + "/jobs", auth.ReadAudit, noBody, h.getJobs, nil},

		{"GET", api + "/users", auth.SeePeople, noBody, h.getUsers, nil},
		{"GET", api + "/presence", auth.Read, noBody, h.getPresence, nil},
		{"GET", api + "/rooms", auth.Read, noBody, h.getRooms, nil},
		{"POST", api + "/rooms", auth.MakeRooms, maxBody, h.postRooms, nil},
		{"GET", api + "/rooms/:id", auth.Read, noBody, inRoom(h.getRoom), nil},
		{"PATCH", api + "/rooms/:id", auth.Chat, authBody, inRoom(h.patchRoom), nil},
		{"GET", api + "/rooms/:id/members", auth.Read, noBody, inRoom(h.getMembers), nil},
		{"PUT", api + "/rooms/:id/members/:user", auth.Chat, authBody, inRoom(h.putMember), nil},
		{"DELETE", api + "/rooms/:id/members/:user", auth.Chat, noBody, inRoom(h.deleteMember), nil},
		{"POST", api + "/rooms/:id/read", auth.Chat, authBody, inRoom(h.postRead), nil},
		{"GET", api + "/rooms/:id/messages", auth.Read, noBody, inRoom(h.getMessages), nil},
		{"POST", api + "/rooms/:id/messages", auth.Chat, maxBody, inRoom(h.postMessages), nil},
		{"PATCH", api + "/rooms/:id/messages/:message", auth.Chat, maxBody, inRoom(h.patchMessage), nil},
		{"DELETE", api + "/rooms/:id/messages/:message", auth.Chat, noBody, inRoom(h.deleteMessage), nil},

		{"POST", api + "/users/:id/tools", auth.Chat, maxBody, h.postTools, nil},
		{"GET", api + "/calls/:id", auth.Read, noBody, h.getCall, nil},
		{"POST", api + "/calls/:id/cancel", auth.Chat, authBody, h.cancelCall, nil},

		{"GET", api + "/tasks", auth.Read, noBody, h.getTasks, nil},
		{"POST", api + "/tasks", auth.ChangeTasks, maxBody, h.postTasks, nil},
		{"GET", api + "/tasks/:name", auth.Read, noBody, h.getTask, nil},
		{"PUT", api + "/tasks/:name", auth.ChangeTasks, maxBody, h.putTask, nil},
		{"DELETE", api + "/tasks/:name", auth.ChangeTasks, noBody, h.deleteTask, nil},
		{"POST", api + "/tasks/:name/pause", auth.ChangeTasks, authBody, h.pauseTask(true), nil},
		{"POST", api + "/tasks/:name/resume", auth.ChangeTasks, authBody, h.pauseTask(false), nil},
		{"POST", api + "/tasks/:name/run", auth.ChangeTasks, authBody, h.runTask, nil},
		{"GET", api + "/tasks/:name/runs", auth.Read, noBody, h.getRuns, nil},
		{"POST", api + "/tasks/:name/webhook", auth.MakeWebhooks, authBody, h.postWebhook, nil},
		{"DELETE", api + "/tasks/:name/webhook", auth.MakeWebhooks, noBody, h.deleteWebhook, nil},
		{"GET", api + "/runs", auth.Read, noBody, h.getRuns, nil},
		{"GET", api + "/runs/:id", auth.Read, noBody, h.getRun, nil},
		{"GET", api + "/runs/:id/log", auth.Read, noBody, h.getLog, nil},
		{"POST", api + "/runs/:id/cancel", auth.ChangeTasks, authBody, h.cancelRun, nil},
		{"GET", api + "/schedule", auth.Read, noBody, h.getSchedule, nil},
		{"POST", tasks.WebhookPath + ":name", "", hookBody, h.postHook, nil},

		{"POST", api + "/ws-tickets", auth.Read, authBody, h.postTickets, nil},
		{"GET", "/ws", "", noBody, nil, http.HandlerFunc(h.serveSocket)},
		{"GET", api + "/events", auth.Read, noBody, nil, http.HandlerFunc(h.serveEvents)},

		{"GET", "/healthz/live", "", noBody, nil, http.HandlerFunc(live)},
		{"GET", "/healthz/ready", "", noBody, nil, http.HandlerFunc(h.ready)},
		{"GET", "/metrics", "", noBody, nil, h.private(h.metrics.Handler())},
		{"GET", "/", "", noBody, nil, http.HandlerFunc(s.page)},
		{"GET", "/static/*path", "", noBody, nil, http.HandlerFunc(s.file)},
	}
}

// goesOn are the paths whose answers have no end of their own.
var goesOn = map[string]bool{"/ws": true, api + "/events": true}

// handler is an endpoint and what stands before it, from the outside in: from where and how
// much is sent, who asks and what they may do, how often. Whatever answers a request that was
// answered before has its place right around the endpoint.
func (h *handler) handler(rt route) http.Handler {
	if rt.raw != nil {
		return rt.raw
	}
	handler := h.answer(rt.serve)
	if rt.right != "" {
		handler = h.once(rt, handler)
		if rt.method != "GET" {
			handler = h.writes(h.whole(rt.right, handler))
		}
		handler = h.allowed(rt.right, handler)
	}
	return patient(h.bounded(rt.body, handler))
}

func (h *handler) router() (http.Handler, error) {
	s, err := newStatic()
	if err != nil {
		return nil, err
	}
	r := httprouter.New()
	r.HandleOPTIONS = false
	for _, rt := range h.routes(s) {
		handler := h.handler(rt)
		r.Handler(rt.method, rt.path, handler)
		if rt.method == "GET" && !goesOn[rt.path] {
			r.Handler("HEAD", rt.path, handler)
		}
	}
	r.NotFound = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if forPrograms(r) {
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
	return r, nil
}

func live(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "live"})
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
