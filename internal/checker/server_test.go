//go:build unix

package checker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/internal/child"
	"github.com/tandemhq/tandem/internal/testenv"
)

// patience is how long a test waits for what must happen soon, on a busy machine too.
const patience = 2 * time.Minute

// programs are the program as it is shipped, of each driver, built when it is first needed.
var programs = map[string]func() (string, error){"pg": sync.OnceValues(builder("pg")), "sqlite": sync.OnceValues(builder("sqlite"))}

// programsDir is where they are.
var programsDir string

func TestMain(m *testing.M) {
	if os.Getenv(crowdVariable) != "" {
		if err := runCrowd(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var err error
	if programsDir, err = os.MkdirTemp("", "tandem-checker-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := testenv.Main(m)
	_ = os.RemoveAll(programsDir)
	os.Exit(code)
}

func builder(driver string) func() (string, error) {
	return func() (string, error) {
		program := filepath.Join(programsDir, "tandem-"+driver)
		tags := ""
		if driver != "sqlite" {
			tags = driver
		}
		// It is not bound to the test that happens to be the first.
		build := exec.Command("go", "build", "-buildvcs=false", "-tags="+tags, "-o", program, "github.com/tandemhq/tandem")
		if output, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build the program: %w\n%s", err, output)
		}
		return program, nil
	}
}

// replica is a replica of the program, behind a proxy through which its address stays the same.
type replica struct {
	t       *testing.T
	name    string
	program string
	args    []string
	front   *proxy // for clients
	work    *proxy // to the database; nil: there is none
	listen  *proxy // to the database, for LISTEN; nil: there is none

	process *process
	starts  int
	slowest time.Duration // of the starts
}

// newReplica returns a replica that is to be started.
func newReplica(t *testing.T, driver, name string, args ...string) *replica {
	t.Helper()
	program, err := programs[driver]()
	if err != nil {
		t.Fatal(err)
	}
	return &replica{t: t, name: name, program: program, args: args, front: newProxy(t, "")}
}

// newReplicaPG returns one with proxies to the database as well.
func newReplicaPG(t *testing.T, name, database, host string) *replica {
	t.Helper()
	work, listen := newProxy(t, host), newProxy(t, host)
	r := newReplica(t, "pg", name,
		"--database-url", work.through(t, database)+"&application_name="+name+"-work",
		"--listen-url", listen.through(t, database)+"&application_name="+name+"-listen", "--database-conns", "10")
	r.work, r.listen = work, listen
	return r
}

// url is where clients find the replica, through its proxy.
func (r *replica) url() string { return "http://" + r.front.address() }

// process is a run of the program.
type process struct {
	*child.Process
	output child.Transcript
}

// launch starts the program; it is killed at the end of the test, and what it has written is shown when
// the test failed.
func launch(t *testing.T, program, input string, args ...string) (*process, error) {
	p := &process{}
	cmd := exec.Command(program, args...) // it ends by what the test does to it
	cmd.Dir = t.TempDir()
	cmd.Stdin = strings.NewReader(input)
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	var err error
	if p.Process, err = child.Start(cmd); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("tandem %s wrote:\n%s", strings.Join(args, " "), p.output.Tail())
		}
	})
	return p, nil
}

var listening = regexp.MustCompile(`msg="tandem is listening".* address=(\S+)`)

// start starts the replica and waits until it listens. It may be called by any goroutine.
func (r *replica) start() {
	r.starts++
	began := time.Now()
	args := append([]string{"serve", "--addr", "127.0.0.1:0", "--person-connections", "1000", "--node", r.name + "." + strconv.Itoa(r.starts)}, r.args...)
	p, err := launch(r.t, r.program, "", args...)
	if err != nil {
		r.t.Errorf("start %s: %v", r.name, err)
		return
	}
	r.process = p
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if match := listening.FindStringSubmatch(p.output.String()); match != nil {
			r.front.lead(match[1])
			r.slowest = max(r.slowest, time.Since(began))
			return
		}
		select {
		case <-tick.C:
		case <-p.Exited():
			r.t.Errorf("%s ended before it listened: %v\n%s", r.name, p.Cmd.ProcessState, p.output.Tail())
			return
		case <-deadline.C:
			r.t.Errorf("%s does not listen", r.name)
			return
		}
	}
}

// kill ends the replica as kill -9 does. Who comes is refused.
func (r *replica) kill() {
	r.front.lead("")
	r.process.Kill()
}

// stop ends the replica as an operator does.
func (r *replica) stop() {
	r.t.Helper()
	_ = r.process.Signal(syscall.SIGTERM)
	select {
	case <-r.process.Exited():
	case <-time.After(patience):
		r.t.Fatalf("%s has not ended", r.name)
	}
	r.front.lead("")
	if code := r.process.Code(); code != 0 {
		r.t.Errorf("%s ended with code %d", r.name, code)
	}
}

const password = "correct horse battery"

// person is somebody with sessions, which every replica accepts.
type person struct {
	id      int64
	http    *http.Client
	cookies []*http.Cookie // of the sessions
}

// people makes the accounts of an administrator and of others, and signs each in some times: of a session only
// few tickets are good at a time, and many clients come back at once. A replica is running.
func people(t *testing.T, r *replica, n, sessions int) (list []*person) {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 50}
	t.Cleanup(transport.CloseIdleConnections)
	hc := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	for i := range n {
		name := "person-" + strconv.Itoa(i)
		args := []string{"user", "add", name, "--password-stdin"}
		if i == 0 {
			args = append(args, "--admin")
		}
		p, err := launch(t, r.program, password+"\n", append(args, r.args...)...)
		if err != nil {
			t.Fatal(err)
		}
		if <-p.Exited(); !p.Cmd.ProcessState.Success() {
			t.Fatalf("user add: %v\n%s", p.Cmd.ProcessState, &p.output)
		}
		made := &person{http: hc}
		for range sessions {
			cookie, err := client.SignIn(t.Context(), hc, r.url(), name, password)
			if err != nil {
				t.Fatal(err)
			}
			made.cookies = append(made.cookies, cookie)
		}
		var me struct{ User struct{ ID int64 } }
		if err := made.ask(t.Context(), "GET", r.url()+"/api/v1/me", nil, &me); err != nil {
			t.Fatal(err)
		}
		made.id = me.User.ID
		list = append(list, made)
	}
	return list
}

// errStatus is an answer that is not a success.
type errStatus struct {
	status int
	text   []byte
}

func (e *errStatus) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.text) }

// ask sends a request to a replica.
func (p *person) ask(ctx context.Context, method, url string, body, answer any) error {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	r.AddCookie(&http.Cookie{Name: p.cookies[0].Name, Value: p.cookies[0].Value})
	response, err := p.http.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode > 299:
		return &errStatus{response.StatusCode, text}
	case answer != nil:
		return json.Unmarshal(text, answer)
	}
	return nil
}

// post says something in a room, as often as it takes for an answer, on one replica after another.
func (p *person) post(ctx context.Context, replicas []*replica, first int, room int64, id, text string) error {
	body := map[string]string{"client_id": id, "text": text}
	for i := first; ; i++ {
		r := replicas[i%len(replicas)]
		err := p.ask(ctx, "POST", fmt.Sprintf("%s/api/v1/rooms/%d/messages", r.url(), room), body, nil)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if e, ok := errors.AsType[*errStatus](err); ok && e.status < 500 && e.status != http.StatusTooManyRequests {
			return err
		}
		wait(ctx, 50*time.Millisecond)
	}
}

// wait waits for a time, and reports whether ctx goes on.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// room is one that clients follow.
type room struct {
	id      int64
	members []*person // nil: it is public
}

func (r room) topic() string { return "room:" + strconv.FormatInt(r.id, 10) }

// mayRead reports whether somebody may follow the room.
func (r room) mayRead(p *person, everyone []*person) bool {
	if r.members == nil {
		return true
	}
	return p == everyone[0] || slices.Contains(r.members, p) // the first one made it
}

// makeRoom makes a room; one with members is private.
func makeRoom(t *testing.T, r *replica, owner *person, name string, members ...*person) room {
	t.Helper()
	kind := "public"
	if len(members) > 0 {
		kind = "private"
	}
	var made struct{ Room struct{ ID int64 } }
	if err := owner.ask(t.Context(), "POST", r.url()+"/api/v1/rooms", map[string]string{"kind": kind, "name": name}, &made); err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		url := fmt.Sprintf("%s/api/v1/rooms/%d/members/%d", r.url(), made.Room.ID, m.id)
		if err := owner.ask(t.Context(), "PUT", url, map[string]string{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	return room{made.Room.ID, members}
}
