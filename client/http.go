package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxAnswer is how much of an answer is read.
const maxAnswer = 16 << 20

// cookieNames are what the cookie of a session may be called.
var cookieNames = []string{"__Host-tandem", "tandem_session"}

// StatusError is an answer of the HTTP API that is not a success.
type StatusError struct {
	Status     int           // of HTTP
	Title      string        // for people
	Detail     string        // for people; may be empty
	Field      string        // of the request, that is wrong; may be empty
	RetryAfter time.Duration // when to try again; 0: nothing was said
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("status %d: %s", e.Status, cmp.Or(e.Detail, e.Title, http.StatusText(e.Status)))
	if e.Field != "" {
		text += " (" + e.Field + ")"
	}
	return text
}

// SignIn signs a person in and returns the cookie of the new session, which every replica accepts:
// [Options.Session] can give it to several clients. Five tickets of a session are good at a time,
// so that many clients of one session that connect at once disturb each other and try again; a load
// generator does better with a session for every few clients. Errors: [ErrSignedOut] when the name
// or the password is wrong, a [*StatusError].
func SignIn(ctx context.Context, hc *http.Client, endpoint, name, password string) (*http.Cookie, error) {
	body := map[string]string{"name": name, "password": password}
	header, err := do(ctx, hc, nobody, http.MethodPost, strings.TrimRight(endpoint, "/")+"/api/v1/session", body, nil)
	if err != nil {
		return nil, signedOut(err)
	}
	for _, cookie := range (&http.Response{Header: header}).Cookies() {
		if slices.Contains(cookieNames, cookie.Name) {
			return cookie, nil
		}
	}
	return nil, errors.New("client: the server answered without the cookie of a session")
}

// signedOut makes a 401 an [ErrSignedOut].
func signedOut(err error) error {
	if refused, ok := errors.AsType[*StatusError](err); ok && refused.Status == http.StatusUnauthorized {
		return fmt.Errorf("%w: %w", ErrSignedOut, err)
	}
	return err
}

// Do sends a request to the HTTP API, once, to the endpoint that the client is connected to or
// tries next. The path is as in "/api/v1/rooms"; a body that is not nil is sent as JSON, and the
// answer's JSON is read into answer unless that is nil. Errors: [ErrSignedOut], a [*StatusError].
func (c *Client) Do(ctx context.Context, method, path string, body, answer any) error {
	endpoint := c.endpoint()
	who, err := c.identity(ctx, endpoint)
	if err != nil {
		return err
	}
	_, err = do(ctx, c.http, who, method, endpoint+path, body, answer)
	return signedOut(err)
}

// identity says on a request who sends it.
type identity func(*http.Request)

func nobody(*http.Request) {}

func byCookie(cookie *http.Cookie) identity {
	return func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookie.Name, Value: cookie.Value}) }
}

func byToken(token string) identity {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

func do(
	ctx context.Context, hc *http.Client, who identity, method, url string, body, answer any,
) (http.Header, error) {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("client: the body of a request: %w", err)
		}
		content = bytes.NewReader(encoded)
	}
	r, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	who(r)
	response, err := hc.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("client: read the answer of %s %s: %w", method, r.URL.Path, err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return nil, fmt.Errorf("client: %s %s: %w", method, r.URL.Path, statusError(response, text))
	}
	if answer != nil {
		if err := json.Unmarshal(text, answer); err != nil {
			return nil, fmt.Errorf("client: the answer of %s %s: %w", method, r.URL.Path, err)
		}
	}
	return response.Header, nil
}

func statusError(response *http.Response, text []byte) *StatusError {
	e := &StatusError{Status: response.StatusCode}
	if strings.HasSuffix(response.Header.Get("Content-Type"), "json") {
		var problem struct{ Title, Detail, Field string }
		if json.Unmarshal(text, &problem) == nil {
			e.Title, e.Detail, e.Field = problem.Title, problem.Detail, problem.Field
		}
	}
	// What does not fit is no time to wait for.
	if seconds, err := strconv.ParseInt(response.Header.Get("Retry-After"), 10, 32); err == nil && seconds > 0 {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}

// identity returns who sends a request; with a name and a password it signs in the first time.
func (c *Client) identity(ctx context.Context, endpoint string) (identity, error) {
	switch {
	case c.o.Token != "":
		return byToken(c.o.Token), nil
	case c.o.Session != nil:
		cookie, err := c.o.Session(ctx)
		if err != nil || cookie == nil {
			return nobody, err
		}
		return byCookie(cookie), nil
	}
	c.mu.Lock()
	cookie := c.cookie
	c.mu.Unlock()
	if cookie != nil {
		return byCookie(cookie), nil
	}
	cookie, err := SignIn(ctx, c.http, endpoint, c.o.Name, c.o.Password)
	if err != nil {
		return nobody, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cookie = cookie
	return byCookie(cookie), nil
}

// ticket asks for a ticket for one WebSocket.
func (c *Client) ticket(ctx context.Context, endpoint string) (string, error) {
	who, err := c.identity(ctx, endpoint)
	if err != nil {
		return "", err
	}
	var issued struct{ Ticket string }
	_, err = do(ctx, c.http, who, http.MethodPost, endpoint+"/api/v1/ws-tickets", nil, &issued)
	if err != nil {
		return "", signedOut(err)
	}
	return issued.Ticket, nil
}
