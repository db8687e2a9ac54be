package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	"github.com/julienschmidt/httprouter"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/httplimit"
	"github.com/tandemhq/tandem/coord/memory"
)

// request prints the status of an answer and where the client stands.
func request(h http.Handler, method, path, session string) {
	r := httptest.NewRequest(method, path, nil)
	r.AddCookie(&http.Cookie{Name: "session", Value: session})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(method, r.URL.Path, session, w.Code, w.Header()["Ratelimit"])
}

// Middleware in a chain, as routers such as chi take it, around a ServeMux: every request is limited by
// its address, and those of somebody who is signed in by the account too.
func Example() {
	backend := memory.Open(memory.Options{}) // or pg.Open, for all replicas together
	defer backend.Close(context.Background())

	clients, err := httplimit.NewClients("10.0.0.0/8") // the load balancers
	if err != nil {
		panic(err)
	}
	limit, err := httplimit.New(backend.Limiter(), httplimit.Options{},
		httplimit.Policy{Name: "address", Limit: coord.Limit{Rate: 100, Per: time.Hour}, Key: clients.Key},
		httplimit.Policy{Name: "account", Limit: coord.Limit{Rate: 2, Per: time.Hour}, Key: account},
	)
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /notes/{id}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "note ", r.PathValue("id"))
	})
	server := chain(mux, authenticate, limit)

	for range 3 {
		request(server, "GET", "/notes/1", "s1-of-ann")
	}
	request(server, "GET", "/notes/2", "s2-of-ann") // another session of the same account
	request(server, "GET", "/notes/3", "s1-of-bob")
	request(server, "GET", "/notes/4", "")
	// Output:
	// GET /notes/1 s1-of-ann 200 ["address";r=99;t=3564, "account";r=1;t=1800]
	// GET /notes/1 s1-of-ann 200 ["address";r=98;t=3528, "account";r=0;t=1800]
	// GET /notes/1 s1-of-ann 429 ["address";r=98, "account";r=0;t=1800]
	// GET /notes/2 s2-of-ann 429 ["address";r=98, "account";r=0;t=1800]
	// GET /notes/3 s1-of-bob 200 ["address";r=97;t=3492, "account";r=1;t=1800]
	// GET /notes/4  200 ["address";r=96;t=3456]
}

// With httprouter each route can have limits of its own. Here a mail costs as much as it has recipients,
// and a session that has not that much left gets an answer of the program's own.
func Example_httprouter() {
	backend := memory.Open(memory.Options{})
	defer backend.Close(context.Background())

	mails, err := httplimit.New(backend.Limiter(), httplimit.Options{
		Refuse: func(w http.ResponseWriter, r *http.Request, f httplimit.Refusal) {
			if f.Err != nil {
				httplimit.WriteProblem(w, r, f)
				return
			}
			http.Error(w, "These are enough mails for now.", http.StatusTooManyRequests)
		},
	}, httplimit.Policy{
		Name:  "mail",
		Limit: coord.Limit{Rate: 100, Per: time.Hour},
		Key:   session,
		Cost:  func(r *http.Request) int { return len(r.URL.Query()["to"]) },
	})
	if err != nil {
		panic(err)
	}
	router := httprouter.New()
	router.Handler("POST", "/mails/:id", mails(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/mails/"+httprouter.ParamsFromContext(r.Context()).ByName("id"))
		w.WriteHeader(http.StatusCreated)
	})))
	router.HandlerFunc("GET", "/mails/:id", func(http.ResponseWriter, *http.Request) {})

	request(router, "POST", "/mails/1?to=ann&to=bob", "s1")
	request(router, "POST", "/mails/2?"+strings.Repeat("to=you&", 99), "s1")
	request(router, "GET", "/mails/1", "s1")
	// Output:
	// POST /mails/1 s1 201 ["mail";r=98;t=3528]
	// POST /mails/2 s1 429 ["mail";r=98;t=36]
	// GET /mails/1 s1 200 []
}

// chain puts the first middleware outermost.
func chain(h http.Handler, middleware ...func(http.Handler) http.Handler) http.Handler {
	for _, wrap := range slices.Backward(middleware) {
		h = wrap(h)
	}
	return h
}

type accountKey struct{}

// authenticate stands for what finds out whose session it is.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id := session(r); len(id) > 6 {
			r = r.WithContext(context.WithValue(r.Context(), accountKey{}, id[6:]))
		}
		next.ServeHTTP(w, r)
	})
}

// session and account are key functions. "" is nobody: the policy does not apply.
func session(r *http.Request) string {
	cookie, err := r.Cookie("session")
	if err != nil {
		return ""
	}
	return cookie.Value
}

func account(r *http.Request) string {
	name, _ := r.Context().Value(accountKey{}).(string)
	return name
}
