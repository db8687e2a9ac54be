package load

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
	"github.com/lib/pq"
)

const (
	cookieName = "tandem_session"
	protocol   = "tandem.v1"
)

// Session is one of somebody who is signed in. Each has a secret of its own.
type Session struct {
	User   int64
	Secret string
}

// Cookie is what a browser shows.
func (s Session) Cookie() *http.Cookie { return &http.Cookie{Name: cookieName, Value: s.Secret} }

// NewPeople adds people to the database, who are signed in already, with some sessions each: no password has to be hashed.
// The first of a name is an administrator when admin says so. Sessions of one person follow each other.
func NewPeople(ctx context.Context, db *sql.DB, name string, people, sessions int, admin bool) (list []Session, err error) {
	role := "member"
	if admin {
		role = "admin"
	}
	rows, err := db.QueryContext(ctx, `WITH people AS (
			INSERT INTO app_users (name, name_key, role, password_hash, created_at)
			SELECT `+pq.QuoteLiteral(name)+` || ' ' || n, `+pq.QuoteLiteral(name)+` || ' ' || n, `+pq.QuoteLiteral(role)+`, '', now()
			FROM generate_series(1, $1) AS n RETURNING id
		), made AS (
			SELECT id, 'rig-' || id || '-' || n || '-' || gen_random_uuid() AS secret FROM people CROSS JOIN generate_series(1, $2) AS n
		), stored AS (
			INSERT INTO app_sessions (secret_hash, user_id, created_at, seen_at)
			SELECT sha256(convert_to(secret, 'UTF8')), id, now(), now() FROM made
		)
		SELECT id, secret FROM made ORDER BY id`, people, sessions)
	if err != nil {
		return nil, fmt.Errorf("add people: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var s Session
		if err := rows.Scan(&s.User, &s.Secret); err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, rows.Err()
}

// Caller sends requests of the API. It is safe for concurrent use.
type Caller struct{ http *http.Client }

// NewCaller returns one whose requests may take so long.
func NewCaller(timeout time.Duration) *Caller {
	return &Caller{&http.Client{Timeout: timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 20, IdleConnTimeout: 30 * time.Second}}}
}

// Close ends its idle connections.
func (c *Caller) Close() { c.http.CloseIdleConnections() }

// Answer is what a server said.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// OK reports whether it is a success.
func (a Answer) OK() bool { return a.Status >= 200 && a.Status <= 299 }

func (a Answer) String() string { return fmt.Sprintf("status %d: %.200s", a.Status, a.Body) }

// Ask sends a request once, in a session unless its secret is empty, with a body that is JSON unless it is nil, or bytes already.
// Any answer is a success; into gets the JSON of one with a status from 200 to 299.
func (c *Caller) Ask(
	ctx context.Context, s Session, method, url string, header http.Header, body, into any,
) (a Answer, err error) {
	var sent io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		sent = bytes.NewReader(b)
	default:
		text, err := json.Marshal(body)
		if err != nil {
			return a, err
		}
		sent = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, url, sent)
	if err != nil {
		return a, err
	}
	if sent != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if s.Secret != "" {
		request.AddCookie(s.Cookie())
	}
	maps.Copy(request.Header, header)
	response, err := c.http.Do(request)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	a.Status, a.Header = response.StatusCode, response.Header
	if a.Body, err = io.ReadAll(response.Body); err != nil {
		return a, err
	}
	if into != nil && a.OK() {
		err = json.Unmarshal(a.Body, into)
	}
	return a, err
}

// Want is Ask where anything but a success is an error.
func (c *Caller) Want(ctx context.Context, s Session, method, url string, body, into any) error {
	a, err := c.Ask(ctx, s, method, url, nil, body, into)
	if err == nil && !a.OK() {
		err = fmt.Errorf("%v", a)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, url, err)
	}
	return nil
}

// Ticket asks for a ticket.
func (c *Caller) Ticket(ctx context.Context, s Session, url string) (string, error) {
	var issued struct{ Ticket string }
	err := c.Want(ctx, s, http.MethodPost, url+"/api/v1/ws-tickets", nil, &issued)
	return issued.Ticket, err
}

// Dial opens a WebSocket with a ticket at a host and port. Without one the status is that of the refusal, or 0 when
// there was no answer.
func Dial(ctx context.Context, addr, ticket string, timeout time.Duration) (conn *websocket.Conn, status int, err error) {
	dialer := websocket.Dialer{Subprotocols: []string{protocol, "ticket." + ticket}, HandshakeTimeout: timeout}
	conn, response, err := dialer.DialContext(ctx, "ws://"+addr+"/ws", nil)
	if response != nil {
		status = response.StatusCode
		_ = response.Body.Close()
	}
	return conn, status, err
}
