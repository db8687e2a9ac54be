package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/tandemhq/tandem/coord"
)

const (
	adminName = "ada"
	password  = "correct horse battery"
)

// person is someone with a browser's cookies. These do not depend on the port, so that a session
// is shown to every replica on this machine.
type person struct {
	tb   testing.TB
	http *http.Client
}

func newPerson(tb testing.TB) *person {
	tb.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		tb.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	tb.Cleanup(transport.CloseIdleConnections)
	return &person{tb: tb, http: &http.Client{Jar: jar, Transport: transport, Timeout: patience}}
}

// answer is what the server said.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a request; a body is sent as JSON.
func (p *person) ask(method, url string, body any) (answer, error) {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return answer{}, err
		}
		content = bytes.NewReader(b)
	}
	request, err := http.NewRequestWithContext(p.tb.Context(), method, url, content)
	if err != nil {
		return answer{}, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := p.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, b}, err
}

// want sends a request that must be answered with that status, and reads the answer.
func (p *person) want(status int, method, url string, body, into any) answer {
	p.tb.Helper()
	a, err := p.ask(method, url, body)
	if err != nil {
		p.tb.Fatal(err)
	}
	if a.status != status {
		p.tb.Fatalf("%s %s: status %d, want %d: %s", method, url, a.status, status, a.body)
	}
	if into != nil {
		if err := json.Unmarshal(a.body, into); err != nil {
			p.tb.Fatalf("%s %s: %v in %s", method, url, err, a.body)
		}
	}
	return a
}

type credentials struct {
	Token    string `json:"token,omitempty"`
	Name     string `json:"name"`
	Password string `json:"password"`
}

// setUp makes the first administrator by the link that the server printed.
func setUp(tb testing.TB, r *replica) *person {
	tb.Helper()
	p := newPerson(tb)
	p.want(http.StatusCreated, "POST", r.url+"/api/v1/setup", credentials{tokenOf(r.setupLink()), adminName, password}, nil)
	return p
}

// tokenOf returns the token in a set-up link.
func tokenOf(link string) string {
	_, token, _ := strings.Cut(link, "#setup=")
	return token
}

// signIn signs the administrator in.
func signIn(tb testing.TB, url string) *person {
	tb.Helper()
	p := newPerson(tb)
	p.want(http.StatusOK, "POST", url+"/api/v1/session", credentials{Name: adminName, Password: password}, nil)
	return p
}

func (p *person) makeRoom(url, name string) int64 {
	p.tb.Helper()
	var made struct{ Room struct{ ID int64 } }
	p.want(http.StatusCreated, "POST", url+"/api/v1/rooms", map[string]string{"name": name}, &made)
	return made.Room.ID
}

// newMessage is a message to be said.
type newMessage struct {
	ClientID string `json:"client_id"`
	Text     string `json:"text"`
}

// message is what somebody, or a task, said.
type message struct {
	ID       int64  `json:"id"`
	UserID   int64  `json:"user_id"`
	Author   string `json:"author"`
	ClientID string `json:"client_id"`
	Text     string `json:"text"`
}

func messagesURL(url string, room int64) string {
	return fmt.Sprintf("%s/api/v1/rooms/%d/messages", url, room)
}

// say posts a message whose client id is its text.
func (p *person) say(url string, room int64, text string) {
	p.tb.Helper()
	p.want(http.StatusCreated, "POST", messagesURL(url, room), newMessage{text, text}, nil)
}

// history returns the last messages of a room, at most 200, and the position behind them.
func (p *person) history(url string, room int64) (list []message, position string) {
	p.tb.Helper()
	var page struct {
		Messages []message
		Position string
	}
	p.want(http.StatusOK, "GET", messagesURL(url, room)+"?limit=200", nil, &page)
	return page.Messages, page.Position
}

// taskRun is one execution of a task.
type taskRun struct {
	ID           int64     `json:"id"`
	State        string    `json:"state"`
	ScheduledFor time.Time `json:"scheduled_for"`
	Attempt      int       `json:"attempt"`
	Worker       string    `json:"worker"`
	Error        string    `json:"error"`
}

func (r taskRun) ended() bool { return r.State != "queued" && r.State != "running" }

// schedule makes a task that says something in a room, every second.
func (p *person) schedule(url string, room int64, task string) {
	p.tb.Helper()
	p.scheduleWith(url, room, task, coord.MisfireLatest)
}

func (p *person) scheduleWith(url string, room int64, task string, misfire coord.Misfire) {
	p.tb.Helper()
	p.want(http.StatusCreated, "POST", url+"/api/v1/tasks", map[string]any{
		"name": task, "room_id": room, "text": task + " reports", "schedule": "@every 1s", "zone": "UTC",
		"misfire": misfire,
	}, nil)
}

func (p *person) pause(url, task string) {
	p.tb.Helper()
	p.want(http.StatusOK, "POST", url+"/api/v1/tasks/"+task+"/pause", nil, nil)
}

// runs lists the runs of a task, the oldest first.
func (p *person) runs(url, task string) []taskRun {
	p.tb.Helper()
	var list struct{ Runs []taskRun }
	p.want(http.StatusOK, "GET", url+"/api/v1/tasks/"+task+"/runs", nil, &list)
	slices.Reverse(list.Runs)
	return list.Runs
}

// settled pauses a task and returns its runs, none of which is queued or running any more.
func (p *person) settled(url, task string) (list []taskRun) {
	p.tb.Helper()
	p.pause(url, task)
	eventually(p.tb, func() string {
		list = p.runs(url, task)
		for _, r := range list {
			if !r.ended() {
				return fmt.Sprintf("run %d is %s", r.ID, r.State)
			}
		}
		return ""
	})
	return list
}

// ticket returns a ticket for one WebSocket.
func (p *person) ticket(url string) (string, error) {
	a, err := p.ask("POST", url+"/api/v1/ws-tickets", nil)
	if err != nil {
		return "", err
	}
	var issued struct{ Ticket string }
	if err := json.Unmarshal(a.body, &issued); err != nil || issued.Ticket == "" {
		return "", fmt.Errorf("no ticket: status %d: %s", a.status, a.body)
	}
	return issued.Ticket, nil
}

// dial opens a WebSocket. Without one the status is that of the refusal, or 0.
func dial(tb testing.TB, url, ticket string) (conn *websocket.Conn, status int, err error) {
	dialer := websocket.Dialer{Subprotocols: []string{"tandem.v1", "ticket." + ticket}, HandshakeTimeout: patience}
	conn, response, err := dialer.DialContext(tb.Context(), "ws"+strings.TrimPrefix(url, "http")+"/ws", nil)
	if response != nil {
		status = response.StatusCode
	}
	if err == nil && conn.Subprotocol() != "tandem.v1" {
		err = errors.Join(fmt.Errorf("the server chose the protocol %q", conn.Subprotocol()), conn.Close())
	}
	return conn, status, err
}

// frame is any frame of the server.
type frame struct {
	Type      string
	ID        string
	Node      string
	Topic     string
	Position  string
	Reason    string
	Kind      string
	Code      string
	Payload   json.RawMessage
	Message   json.RawMessage
	Positions map[string]string
}

// link is one WebSocket of a follower.
type link struct {
	conn     *websocket.Conn
	node     string
	ended    chan struct{}
	code     int  // with which it was closed; 0: without a close frame
	sentAway bool // it was told to reconnect
}

// follower follows one room as the page does: over reconnects it keeps its position, and every
// event must have the position after the one before.
type follower struct {
	*person
	room  int64
	topic string

	mu       sync.Mutex
	link     *link
	position string
	seen     []message
	lastID   int
	answers  map[string]chan frame
}

// follow connects to a replica and follows a room from a position: "0" is the beginning.
func (p *person) follow(url string, room int64, position string) *follower {
	p.tb.Helper()
	f := &follower{
		person: p, room: room, topic: "room:" + strconv.FormatInt(room, 10), position: position,
		answers: map[string]chan frame{},
	}
	p.tb.Cleanup(f.disconnect)
	f.connect(url)
	return f
}

// connect opens a new socket, on whichever replica, and resumes.
func (f *follower) connect(url string) {
	f.tb.Helper()
	f.disconnect()
	ticket, err := f.ticket(url)
	if err != nil {
		f.tb.Fatal(err)
	}
	conn, status, err := dial(f.tb, url, ticket)
	if err != nil {
		f.tb.Fatalf("open a socket on %s: status %d: %v", url, status, err)
	}
	var welcome frame
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if err := conn.ReadJSON(&welcome); err != nil || welcome.Type != "welcome" {
		f.tb.Fatalf("the first frame is %+v: %v", welcome, errors.Join(err, conn.Close()))
	}
	_ = conn.SetReadDeadline(time.Time{})
	l := &link{conn: conn, node: welcome.Node, ended: make(chan struct{})}
	f.mu.Lock()
	f.link = l
	from := map[string]string{f.topic: f.position}
	f.mu.Unlock()
	go f.read(l)
	if _, err := f.request(map[string]any{"type": "subscribe", "topics": from}); err != nil {
		f.tb.Fatal(err)
	}
}

// disconnect cuts the socket, if there is one.
func (f *follower) disconnect() {
	if l := f.current(); l != nil {
		_ = l.conn.Close()
		<-l.ended
	}
}

func (f *follower) current() *link {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.link
}

// read takes in what the server sends until the socket ends.
func (f *follower) read(l *link) {
	defer close(l.ended)
	for {
		_, text, err := l.conn.ReadMessage()
		if err != nil {
			if closed, ok := errors.AsType[*websocket.CloseError](err); ok {
				l.code = closed.Code
			}
			return
		}
		frames := make([]frame, 1)
		if text[0] == '[' {
			err = json.Unmarshal(text, &frames)
		} else {
			err = json.Unmarshal(text, &frames[0])
		}
		if err != nil {
			f.tb.Errorf("a message that can't be read: %v: %s", err, text)
			continue
		}
		for _, fr := range frames {
			f.take(l, fr)
		}
	}
}

func (f *follower) take(l *link, fr frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch fr.Type {
	case "event":
		if before, now := sequence(f.position), sequence(fr.Position); now != before+1 {
			f.tb.Errorf("on %s the event %s of %s follows %s", l.node, fr.Position, fr.Topic, f.position)
		}
		f.position = fr.Position
		var m message
		if err := json.Unmarshal(fr.Payload, &m); err != nil || fr.Kind != "message.created" || fr.Topic != f.topic {
			f.tb.Errorf("an unexpected event: %+v: %v", fr, err)
		}
		f.seen = append(f.seen, m)
	case "reset":
		f.tb.Errorf("%s was reset on %s: %s", fr.Topic, l.node, fr.Reason)
	case "reconnect":
		l.sentAway = true
	default:
		if answer := f.answers[fr.ID]; answer != nil {
			delete(f.answers, fr.ID)
			answer <- fr
		}
	}
}

// sequence is the number in a position.
func sequence(position string) int64 {
	number, _, _ := strings.Cut(position, ".")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// request sends a frame and returns its ack.
func (f *follower) request(fields map[string]any) (frame, error) {
	answer := make(chan frame, 1)
	f.mu.Lock()
	l := f.link
	f.lastID++
	id := strconv.Itoa(f.lastID)
	f.answers[id] = answer
	fields["id"] = id
	err := l.conn.WriteJSON(fields) // one at a time, under the lock
	f.mu.Unlock()
	if err != nil {
		return frame{}, err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case fr := <-answer:
		if fr.Type != "ack" {
			return fr, fmt.Errorf("%v was refused: %s %s", fields["type"], fr.Code, fr.Message)
		}
		return fr, nil
	case <-l.ended:
		return frame{}, fmt.Errorf("the socket ended with code %d", l.code)
	case <-timer.C:
		return frame{}, fmt.Errorf("%v was not answered", fields["type"])
	}
}

// send says something over the socket; the client id is the text.
func (f *follower) send(text string) error {
	_, err := f.request(map[string]any{"type": "send", "room": f.room, "client_id": text, "text": text})
	return err
}

func (f *follower) messages() []message {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen)
}

// awaitText waits until a message with that text has come.
func (f *follower) awaitText(text string) {
	f.tb.Helper()
	eventually(f.tb, func() string {
		if slices.ContainsFunc(f.messages(), func(m message) bool { return m.Text == text }) {
			return ""
		}
		return fmt.Sprintf("a follower has not got the message %q", text)
	})
}

// awaitClose waits until the server has closed the socket, and returns how.
func (f *follower) awaitClose() *link {
	f.tb.Helper()
	l := f.current()
	select {
	case <-l.ended:
	case <-time.After(patience):
		f.tb.Fatalf("the socket on %s is still open", l.node)
	}
	return l
}
