//go:build pg

package main

import (
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/lib/pq"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

// cluster is some replicas on one database.
type cluster struct {
	tb       testing.TB
	url      string // of the database
	flags    []string
	replicas []*replica
	started  int
}

// startCluster starts three replicas at once on an empty database.
func startCluster(tb testing.TB, flags ...string) *cluster {
	tb.Helper()
	c := &cluster{tb: tb, url: testenv.NewDatabase(tb, "", nil), flags: flags}
	for range 3 {
		c.replicas = append(c.replicas, c.launch())
	}
	for _, r := range c.replicas {
		r.listening()
	}
	return c
}

// launch starts one more replica under a new name.
func (c *cluster) launch() *replica {
	c.tb.Helper()
	c.started++
	return launch(c.tb, "node-"+strconv.Itoa(c.started), c.url, c.flags...)
}

func (c *cluster) urls() []string {
	var list []string
	for _, r := range c.replicas {
		list = append(list, r.url)
	}
	return list
}

// remove takes a replica off the list and returns it.
func (c *cluster) remove(node string) *replica {
	c.tb.Helper()
	i := slices.IndexFunc(c.replicas, func(r *replica) bool { return r.name == node })
	if i < 0 {
		c.tb.Fatalf("there is no replica %q", node)
	}
	r := c.replicas[i]
	c.replicas = slices.Delete(c.replicas, i, i+1)
	return r
}

// open connects the test itself to the database.
func (c *cluster) open() *sql.DB {
	c.tb.Helper()
	db, err := sql.Open("postgres", c.url)
	if err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(func() { _ = db.Close() })
	return db
}

func count(tb testing.TB, db *sql.DB, query string, args ...any) (n int) {
	tb.Helper()
	if err := db.QueryRowContext(tb.Context(), query, args...).Scan(&n); err != nil {
		tb.Fatal(err)
	}
	return n
}

// followers signs in on each replica and follows the room there from its beginning.
func (c *cluster) followers(room int64) []*follower {
	c.tb.Helper()
	var list []*follower
	for _, r := range c.replicas {
		list = append(list, signIn(c.tb, r.url).follow(r.url, room, "0"))
	}
	return list
}

// agree waits until all followers have n messages, and checks that they have the same ones in
// the same order, each once, and that these are the room's history when that fits in a page.
func (c *cluster) agree(followers []*follower, n int) []message {
	c.tb.Helper()
	for i, f := range followers {
		eventually(c.tb, func() string {
			if got := len(f.messages()); got < n {
				return fmt.Sprintf("follower %d has %d of %d messages", i, got, n)
			}
			return ""
		})
	}
	first := followers[0].messages()
	if len(first) != n {
		c.tb.Errorf("a follower has %d messages, want %d", len(first), n)
	}
	ids := map[int64]bool{}
	for _, m := range first {
		if ids[m.ID] {
			c.tb.Errorf("message %d (%q) came twice", m.ID, m.Text)
		}
		ids[m.ID] = true
	}
	for i, f := range followers[1:] {
		if !slices.Equal(first, f.messages()) {
			c.tb.Errorf("follower %d has other messages, or another order, than the first", i+1)
		}
	}
	stored, _ := followers[0].history(c.replicas[0].url, followers[0].room)
	for _, m := range stored {
		if !ids[m.ID] {
			c.tb.Errorf("the stored message %q reached nobody", m.Text)
		}
	}
	if n <= 200 && len(stored) != n {
		c.tb.Errorf("%d messages are stored, want %d", len(stored), n)
	}
	return first
}

func TestClusterMessages(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	admin := setUp(t, c.replicas[0])
	room := admin.makeRoom(c.replicas[1].url, "general")
	followers := c.followers(room)

	const n = 200
	var sending sync.WaitGroup
	for i := range n {
		sending.Go(func() {
			text := fmt.Sprintf("message %d", i)
			if i%10 < 3 { // as many as a socket may send at once
				if err := followers[i%3].send(text); err != nil {
					t.Errorf("send %q: %v", text, err)
				}
				return
			}
			a, err := admin.ask("POST", messagesURL(c.replicas[i%3].url, room), newMessage{text, text})
			if err != nil || a.status != http.StatusCreated {
				t.Errorf("post %q: status %d: %s %v", text, a.status, a.body, err)
			}
		})
	}
	sending.Wait()
	texts := map[string]bool{}
	for _, m := range c.agree(followers, n) {
		texts[m.Text] = true
	}
	if len(texts) != n {
		t.Errorf("%d different messages arrived, want %d", len(texts), n)
	}
}

func TestClusterTickets(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	admin := setUp(t, c.replicas[2])
	ticket := func(r *replica) string {
		secret, err := admin.ticket(r.url)
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	use := func(r *replica, secret string) int {
		conn, status, err := dial(t, r.url, secret)
		if err == nil {
			_ = conn.Close()
		}
		return status
	}

	secret := ticket(c.replicas[0])
	if status := use(c.replicas[1], secret); status != http.StatusSwitchingProtocols {
		t.Errorf("a ticket of the first replica on the second: status %d, want 101", status)
	}
	for _, r := range c.replicas {
		if status := use(r, secret); status != http.StatusUnauthorized {
			t.Errorf("a used ticket on %s: status %d, want 401", r.name, status)
		}
	}

	for i := range 10 {
		secret := ticket(c.replicas[i%3])
		statuses := make([]int, 3)
		var users sync.WaitGroup
		begin := make(chan struct{})
		for j, r := range c.replicas {
			users.Go(func() {
				<-begin
				statuses[j] = use(r, secret)
			})
		}
		close(begin)
		users.Wait()
		slices.Sort(statuses)
		if !slices.Equal(statuses, []int{101, 401, 401}) {
			t.Errorf("three uses of one ticket at the same time: status %v, want one 101 and two 401", statuses)
		}
	}
}

func TestClusterLimitsSignIn(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	setUp(t, c.replicas[0])
	stranger := newPerson(t)
	const (
		burst = 10
		every = 6 * time.Second // one more is granted
	)
	try := func(p *person, r *replica, name string) answer {
		a, err := p.ask("POST", r.url+"/api/v1/session", credentials{Name: name, Password: "a wrong password"})
		switch {
		case err != nil:
			t.Error(err)
		case a.status == http.StatusTooManyRequests:
			if wait, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || wait < 1 || wait > 60 {
				t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
			}
		case a.status != http.StatusUnauthorized:
			t.Errorf("a wrong password: status %d: %s", a.status, a.body)
		}
		return a
	}
	check := func(verified int, began time.Time) {
		t.Helper()
		most := burst + int(time.Since(began)/every)
		// Where the store has once not answered in a quarter of a second, that replica grants as much by itself.
		for _, r := range c.replicas {
			if a := stranger.want(http.StatusOK, "GET", r.url+"/metrics", nil, nil); !strings.Contains(string(a.body), "\ntandem_limiter_outages_total 0\n") {
				t.Logf("%s has limited by itself for a while", r.name)
				most += burst
			}
		}
		if verified < burst || verified > most {
			t.Errorf("%d wrong passwords were verified, want %d to %d", verified, burst, most)
		}
	}

	// One after another, until each replica has refused.
	began, verified, refused := time.Now(), 0, map[string]bool{}
	for i := 0; len(refused) < 3 && i < 100; i++ {
		r := c.replicas[i%3]
		if try(stranger, r, adminName).status == http.StatusUnauthorized {
			verified++
		} else {
			refused[r.name] = true
		}
	}
	check(verified, began)
	a := try(stranger, c.replicas[0], "ADA") // the same account
	if a.status != http.StatusTooManyRequests && time.Since(began) < every {
		t.Errorf("another spelling of a limited account: status %d, want 429", a.status)
	}

	// All at once, for another account, which need not exist.
	began = time.Now()
	var granted atomic.Int64
	var trying sync.WaitGroup
	for i := range 30 {
		trying.Go(func() {
			if try(stranger, c.replicas[i%3], "bob").status == http.StatusUnauthorized {
				granted.Add(1)
			}
		})
	}
	trying.Wait()
	check(int(granted.Load()), began)
}

func TestClusterSchedule(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--poll", "100ms")
	admin := setUp(t, c.replicas[0])
	room := admin.makeRoom(c.replicas[0].url, "reports")
	followers := c.followers(room)
	admin.scheduleWith(c.replicas[1].url, room, "tick", coord.MisfireAll) // also when the machine stands still for a moment

	const enough = 6
	eventually(t, func() string {
		if n := len(followers[0].messages()); n < enough {
			return fmt.Sprintf("the task has reported %d times", n)
		}
		return ""
	})
	runs := admin.settled(c.replicas[2].url, "tick")
	checkRuns(t, runs, c.agree(followers, len(runs)))
	workers := map[string]int{}
	for i, r := range runs {
		workers[r.Worker]++
		if i > 0 && r.ScheduledFor.Sub(runs[i-1].ScheduledFor) != time.Second {
			t.Errorf("the occurrence after %v is %v", runs[i-1].ScheduledFor, r.ScheduledFor)
		}
		if r.Attempt != 1 {
			t.Errorf("the occurrence %v took %d attempts", r.ScheduledFor, r.Attempt)
		}
	}
	t.Logf("runs by replica: %v", workers)
}

// hold begins a transaction that keeps the locks of a statement until it is rolled back.
func hold(tb testing.TB, db *sql.DB, statement string, args ...any) *sql.Tx {
	tb.Helper()
	tx, err := db.BeginTx(tb.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(tb.Context(), statement, args...)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return tx
}

func rollBack(tb testing.TB, tx *sql.Tx) {
	tb.Helper()
	if err := tx.Rollback(); err != nil {
		tb.Fatal(err)
	}
}

// TestClusterKill kills a replica in the middle of a run, which is held there by a lock.
func TestClusterKill(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--lease", "6s", "--poll", "100ms") // a busy machine may stand still for some seconds
	admin := setUp(t, c.replicas[0])
	room := admin.makeRoom(c.replicas[0].url, "reports")
	followers := c.followers(room)
	db := c.open()
	admin.schedule(c.replicas[0].url, room, "tick")
	followers[0].awaitText("tick reports")

	waiting := func(n int, query string) {
		t.Helper()
		eventually(t, func() string {
			if got := count(t, db, query); got < n {
				return fmt.Sprintf("%d are waiting, want %d: %s", got, n, query)
			}
			return ""
		})
	}
	const (
		waitForMessages = `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'app_messages'::regclass`
		saidAndWaits    = `SELECT count(*) FROM pg_locks a JOIN pg_locks b USING (pid) WHERE NOT a.granted
			AND b.granted AND b.relation = 'app_messages'::regclass AND b.mode = 'RowExclusiveLock'`
		messages = `LOCK TABLE app_messages IN EXCLUSIVE MODE`
	)
	// The start of a run is published elsewhere, so that it is not held up.
	topic := fmt.Sprintf(`SELECT FROM coord_topics WHERE topic = 'room:%d' FOR UPDATE`, room)
	said := 0
	for _, point := range []struct{ name, lock, waits string }{
		{"before its effect", messages, waitForMessages},
		{"between its effect and its end", messages, waitForMessages},
		{"between its end and the commit", topic, saidAndWaits},
	} {
		lock := hold(t, db, point.lock)
		waiting(1, point.waits)
		var id int64
		var node string
		err := db.QueryRowContext(t.Context(), `SELECT id, worker FROM coord_runs WHERE state = 'running'`).Scan(&id, &node)
		if err != nil {
			t.Fatal(err)
		}
		victim := c.remove(node)
		var posting sync.WaitGroup
		if point.name == "between its effect and its end" {
			run := hold(t, db, `SELECT FROM coord_runs WHERE id = $1 FOR UPDATE`, id)
			rollBack(t, lock)
			lock = run
			waiting(1, saidAndWaits)
			if n := count(t, db, `SELECT count(*) FROM app_messages WHERE client_id = $1`, runClientID(id)); n != 0 {
				t.Errorf("%d messages of a run that has not ended", n)
			}
			victim.Kill()
		} else {
			// Somebody's message is on its way through the same replica.
			cut := newMessage{"cut " + point.name, "cut " + point.name}
			posting.Go(func() {
				if a, err := admin.ask("POST", messagesURL(victim.url, room), cut); err == nil {
					t.Errorf("a post that was cut off: status %d: %s", a.status, a.body)
				}
			})
			waiting(2, point.waits)
			victim.Kill()
			posting.Wait()
			// It is sent again, under its client id, to one that lives, and waits there too.
			posting.Go(func() {
				a, err := admin.ask("POST", messagesURL(c.replicas[0].url, room), cut)
				if err != nil || a.status != http.StatusCreated {
					t.Errorf("a post that is sent again: status %d: %s %v", a.status, a.body, err)
				}
			})
			said++
		}
		rollBack(t, lock)
		posting.Wait()
		admin.say(c.replicas[1].url, room, "killed "+point.name)
		said++

		var rescued taskRun
		eventually(t, func() string {
			for _, r := range admin.runs(c.replicas[0].url, "tick") {
				if r.ID == id {
					rescued = r
				}
			}
			if !rescued.ended() {
				return fmt.Sprintf("the run that was cut off is %s on %s", rescued.State, rescued.Worker)
			}
			return ""
		})
		if rescued.State != "succeeded" || rescued.Worker == node || rescued.Attempt != 2 {
			t.Errorf("the run that was cut off on %s: %+v", node, rescued)
		}
		// Whoever was connected there goes on elsewhere, one on each replica as before.
		fresh := c.launch().listening()
		c.replicas = append(c.replicas, fresh)
		resumed := 0
		for _, f := range followers {
			if l := f.current(); l.node == node {
				if f.awaitClose().code == 1012 {
					t.Error("a killed replica can't have said goodbye")
				}
				f.connect(fresh.url)
				resumed++
			}
		}
		if resumed != 1 {
			t.Errorf("%d followers were on %s", resumed, node)
		}
	}
	runs := admin.settled(c.replicas[0].url, "tick")
	checkRuns(t, runs, c.agree(followers, len(runs)+said))
}

// chatter says one thing after another through changing replicas, each until it is acknowledged,
// under one client id.
type chatter struct {
	*person
	room   int64
	urls   atomic.Pointer[[]string]
	acked  atomic.Int64
	enough chan struct{}
	done   chan struct{}
}

func (c *cluster) chat(p *person, room int64) *chatter {
	ch := &chatter{person: p, room: room, enough: make(chan struct{}), done: make(chan struct{})}
	ch.through(c.urls())
	go ch.run()
	return ch
}

// through sets the replicas for what it says from now on.
func (ch *chatter) through(urls []string) { ch.urls.Store(&urls) }

func (ch *chatter) run() {
	defer close(ch.done)
	pace := time.NewTicker(25 * time.Millisecond) // a person may write 50 times a second
	defer pace.Stop()
	tries := 0
	for i := 0; ; i++ {
		ch.insist(ch.room, "chat "+strconv.Itoa(i), func() string {
			<-pace.C
			urls := *ch.urls.Load()
			tries++
			return urls[tries%len(urls)]
		})
		ch.acked.Add(1)
		select {
		case <-ch.enough:
			return
		case <-ch.tb.Context().Done():
			return
		default:
		}
	}
}

// insist says something until it is acknowledged. The only refusal that there may be is that it
// can't be done at the moment.
func (p *person) insist(room int64, text string, url func() string) {
	for p.tb.Context().Err() == nil {
		a, err := p.ask("POST", messagesURL(url(), room), newMessage{text, text})
		switch {
		case err != nil:
		case a.status == http.StatusCreated, a.status == http.StatusOK:
			return
		case a.status != http.StatusServiceUnavailable:
			p.tb.Errorf("post %q: status %d: %s", text, a.status, a.body)
		}
	}
}

// more waits until n further messages are acknowledged.
func (ch *chatter) more(n int64) {
	ch.tb.Helper()
	goal := ch.acked.Load() + n
	eventually(ch.tb, func() string {
		if got := ch.acked.Load(); got < goal {
			return fmt.Sprintf("%d of %d messages are acknowledged", got, goal)
		}
		return ""
	})
}

// stop returns how many messages were acknowledged.
func (ch *chatter) stop() int {
	close(ch.enough)
	<-ch.done
	return int(ch.acked.Load())
}

// TestClusterRestart replaces each replica while people talk.
func TestClusterRestart(t *testing.T) {
	t.Parallel()
	const timeout = 20 * time.Second
	// Some requests are to fit into the grace, on a busy machine too.
	c := startCluster(t, "--drain-grace", "3s", "--shutdown-timeout", timeout.String())
	admin := setUp(t, c.replicas[0])
	room := admin.makeRoom(c.replicas[0].url, "general")
	followers := c.followers(room)
	chat := c.chat(admin, room)

	for _, old := range slices.Clone(c.replicas) {
		chat.more(10)
		fresh := c.launch().listening()
		c.remove(old.name)
		c.replicas = append(c.replicas, fresh)
		chat.through(c.urls())

		began := time.Now()
		old.signal(syscall.SIGTERM)
		eventually(t, func() string {
			a, err := admin.ask("GET", old.url+"/healthz/ready", nil)
			if err != nil {
				t.Fatalf("%s went away before it said that it is not ready: %v", old.name, err)
			}
			if a.status != http.StatusServiceUnavailable {
				return "a replica that is stopping says that it is ready"
			}
			return ""
		})
		// Whoever is sent there still is served for the grace.
		admin.want(http.StatusOK, "GET", old.url+"/healthz/live", nil, nil)
		admin.want(http.StatusOK, "GET", old.url+"/api/v1/rooms", nil, nil)
		if code := old.wait(); code != 0 {
			t.Errorf("%s ended with code %d", old.name, code)
		}
		if took := time.Since(began); took > timeout {
			t.Errorf("%s took %v to stop", old.name, took)
		}
		for _, f := range followers {
			if f.current().node != old.name {
				continue
			}
			if l := f.awaitClose(); l.code != 1012 || !l.sentAway {
				t.Errorf("%s closed a socket with code %d, sent it away before: %v", old.name, l.code, l.sentAway)
			}
			f.connect(fresh.url)
		}
	}
	chat.more(10)
	c.agree(followers, chat.stop())
}

// TestClusterLosesConnections cuts every connection to the database, again and again.
func TestClusterLosesConnections(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--poll", "200ms")
	admin := setUp(t, c.replicas[0])
	room := admin.makeRoom(c.replicas[0].url, "general")
	followers := c.followers(room)
	db := c.open()
	admin.schedule(c.replicas[0].url, room, "tick")
	chat := c.chat(admin, room)

	for i := range 4 {
		chat.more(10)
		cut := count(t, db, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`)
		if cut < 3*len(c.replicas) {
			t.Errorf("only %d connections were there to be cut", cut)
		}
		for _, r := range c.replicas {
			eventually(t, func() string {
				a, err := admin.ask("GET", r.url+"/healthz/ready", nil)
				if err != nil {
					t.Fatal(err)
				}
				if a.status != http.StatusOK {
					return fmt.Sprintf("%s is not ready: %s", r.name, a.body)
				}
				return ""
			})
			text := fmt.Sprintf("after cut %d through %s", i, r.name)
			admin.insist(room, text, func() string { return r.url })
			for _, f := range followers {
				f.awaitText(text)
			}
		}
	}
	// The sockets have lived through it all.
	for i, f := range followers {
		if f.current().node != c.replicas[i].name {
			t.Errorf("follower %d is on %s", i, f.current().node)
		}
		if err := f.send(fmt.Sprintf("from socket %d", i)); err != nil {
			t.Errorf("socket %d: %v", i, err)
		}
	}
	chatted := chat.stop()
	runs := admin.settled(c.replicas[0].url, "tick")
	said := chatted + 4*len(c.replicas) + len(followers)
	heard := c.agree(followers, said+len(runs))
	checkRuns(t, runs, heard)
}

func TestClusterSetUpOnce(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	var made atomic.Int64
	var racing sync.WaitGroup
	begin := make(chan struct{})
	for i, r := range c.replicas {
		link := r.setupLink()
		racing.Go(func() {
			<-begin
			p := newPerson(t)
			a, err := p.ask("POST", r.url+"/api/v1/setup", credentials{tokenOf(link), fmt.Sprintf("admin %d", i), password})
			switch {
			case err != nil:
				t.Error(err)
			case a.status == http.StatusCreated:
				made.Add(1)
			case a.status != http.StatusForbidden:
				t.Errorf("set-up: status %d: %s", a.status, a.body)
			}
		})
	}
	close(begin)
	racing.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("three links made %d administrators", n)
	}
	var needed struct{ Needed bool }
	newPerson(t).want(http.StatusOK, "GET", c.replicas[0].url+"/api/v1/setup", nil, &needed)
	if needed.Needed {
		t.Error("set-up is still needed")
	}
}
