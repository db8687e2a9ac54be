package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/tandemhq/tandem/app/webhook"
	"github.com/tandemhq/tandem/internal/browsertest"
)

// tab is what one person has open.
type tab struct {
	tb   testing.TB
	name string
	ctx  context.Context //nolint:containedctx // chromedp's handle of the tab

	closed func()
}

// openTab opens a tab that shares no cookies with others. Whatever its page complains about in
// the console fails the test.
func openTab(browser context.Context, tb testing.TB, name, url string) *tab {
	tb.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	if err := chromedp.Do(ctx); err != nil {
		cancel()
		tb.Fatalf("open a tab: %v", err)
	}
	watch, stopWatching := context.WithCancel(ctx)
	messages := chromedp.Console(watch)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for m, err := range messages {
			if err == nil && isComplaint(m) {
				tb.Errorf("the page of %s complains: %s (%s:%d)", name, m, m.URL, m.Line)
			}
		}
	}()
	t := &tab{tb, name, ctx, sync.OnceFunc(func() {
		stopWatching()
		<-watched
		cancel()
	})}
	tb.Cleanup(t.close)
	t.do("open "+url, chromedp.Navigate(url))
	return t
}

// close closes the tab, as people do who go away.
func (t *tab) close() { t.closed() }

// isComplaint tells errors and violations from the browser's own notes of requests that tests make
// fail: answered 401, as whoever is not signed in or has just signed out with requests under way is
// told; answered 403, 422 or 429, as what was typed, too often or by a used link, is not good; answered
// 404 or 409, as somebody else deleted or did the same; and cut off with their connection.
func isComplaint(m chromedp.ConsoleMessage) bool {
	if m.Source == "network" && strings.Contains(m.URL, "/api/v1/") {
		for _, note := range []string{
			"status of 401", "status of 403", "status of 404", "status of 409", "status of 422", "status of 429",
			"net::ERR_CONNECTION_", "net::ERR_EMPTY_RESPONSE",
		} {
			if strings.Contains(m.Text, note) {
				return false
			}
		}
	}
	return m.IsException() || m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleWarning ||
		m.Source == "security" || m.Source == "violation"
}

// do acts on the page and shows the page when that fails.
func (t *tab) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	t.tb.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.tb.Errorf("%s: %s: %v", t.name, what, err)
		text, err := chromedp.Run(t.ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
		t.tb.Fatalf("the page of %s (%v):\n%s", t.name, err, text)
	}
}

// see waits until the expression is true of the page.
func (t *tab) see(what, expression string) {
	t.tb.Helper()
	t.do("see "+what, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(patience))(ctx, target)
		return chromedp.Void{}, err
	})
}

// click waits for an element that can be clicked, and clicks it.
func (t *tab) click(selector string) {
	t.tb.Helper()
	t.do("click "+selector, chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible, chromedp.NodeEnabled))
}

// fill types into a field that is empty.
func (t *tab) fill(selector, text string) {
	t.tb.Helper()
	field := chromedp.CSS(selector)
	t.do("fill "+selector, chromedp.WaitVisible(field), chromedp.SendKeys(field, text))
}

// put replaces what is in a field.
func (t *tab) put(selector, text string) {
	t.tb.Helper()
	t.do("put something into "+selector, chromedp.WaitVisible(chromedp.CSS(selector)))
	t.read(fmt.Sprintf(`(() => {
		const field = document.querySelector(%q)
		field.value = %q
		field.dispatchEvent(new Event("input", { bubbles: true }))
		return field.value
	})()`, selector, text))
}

// open goes to a place of the page.
func (t *tab) open(place string) {
	t.tb.Helper()
	t.read(fmt.Sprintf(`location.hash = %q`, place))
}

// seeMessage waits until exactly one message of that author and text is shown as sent.
func (t *tab) seeMessage(author, text string) {
	t.tb.Helper()
	t.see(fmt.Sprintf("%q of %s", text, author), fmt.Sprintf(`[...document.querySelectorAll(".message[data-state=sent]")].filter(
		(m) => m.querySelector(".message-text").textContent === %q && m.querySelector(".message-author").textContent === %q
	).length === 1`, text, author))
}

// read returns what the expression is.
func (t *tab) read(expression string) string {
	t.tb.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](expression))
	if err != nil {
		t.tb.Fatalf("%s: %s: %v", t.name, expression, err)
	}
	return text
}

func (t *tab) say(text string) {
	t.tb.Helper()
	t.fill("#composer-text", text)
	t.click("#composer-send")
}

func (t *tab) signIn() {
	t.tb.Helper()
	t.signInAs(adminName)
}

// signInAs is for everybody whose password is the one of the tests.
func (t *tab) signInAs(name string) {
	t.tb.Helper()
	t.fill("#signin-name", name)
	t.fill("#signin-password", password)
	t.click("#signin-submit")
	t.online()
}

func (t *tab) online() {
	t.tb.Helper()
	t.see("that it is connected", `document.querySelector("#connection-state")?.dataset.state === "online"`)
}

func (t *tab) inRoom(name string) {
	t.tb.Helper()
	t.see("the room "+name, fmt.Sprintf(`document.querySelector("#room-title")?.textContent === %q`, name))
}

// TestBrowser is the first day with the program: in a browser, and then in a second one on
// another process where the driver allows that.
func TestBrowser(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	first := serve(t, "first", database, "--poll", "100ms")
	second := first
	if driverName != "memory" {
		second = serve(t, "second", database, "--poll", "100ms")
	}
	browser := browsertest.Start(t)

	ada := openTab(browser, t, "ada", first.setupLink())
	ada.fill("#setup-name", adminName)
	ada.fill("#setup-password", password)
	ada.click("#setup-submit")
	ada.online()
	ada.see("that the token has left the address", `!location.hash.includes("setup")`)
	ada.fill("#room-new-name", "general")
	ada.click("#room-new-submit")
	ada.inRoom("general")
	ada.say("Hello, world")
	ada.seeMessage(adminName, "Hello, world")

	other := openTab(browser, t, "the second browser", second.url)
	other.signIn()
	other.inRoom("general")
	other.see("that the other process serves it", fmt.Sprintf(`document.querySelector(".account").innerText.includes(%q)`, second.name))
	other.seeMessage(adminName, "Hello, world")
	ada.say("Do you see this live?")
	other.seeMessage(adminName, "Do you see this live?")
	other.say("I do")
	ada.seeMessage(adminName, "I do")
	ada.fill("#room-new-name", "another room")
	ada.click("#room-new-submit")
	other.see("a room that is made elsewhere", `document.querySelector("#rooms").innerText.includes("another room")`)
	ada.inRoom("another room")
	ada.click("#rooms [data-room-id='1']")
	ada.inRoom("general")
	ada.seeMessage(adminName, "I do")

	// A task that reports into the room, seen live on both.
	ada.open("#/rooms/1/tasks")
	ada.fill("#task-new-name", "tick")
	ada.fill("#task-new-text", "Nothing to report")
	ada.fill("#task-new-schedule", "@every 1s")
	ada.see("the preview", `document.querySelector("#schedule-preview").dataset.state === "ready" &&
		document.querySelectorAll(".schedule-next > li").length === 5`)
	ada.click("#task-new-submit")
	reports := `[...document.querySelectorAll(".message .message-text")].filter((m) => m.textContent === "Nothing to report").length >= 2`
	ada.see("two reports", reports)
	other.see("two reports", reports)
	ada.click(`.task[data-task-name="tick"] .task-pause`)
	ada.see("that the task is paused", `document.querySelector(".task[data-task-name=tick]").dataset.paused === ""`)
	// A run that had begun reports still.
	ada.see("all reports", fmt.Sprintf(`[...document.querySelectorAll(".message .message-text")].filter((m) => m.textContent === "Nothing to report").length === %d`,
		len(signIn(t, first.url).settled(first.url, "tick"))))

	shown := `JSON.stringify([...document.querySelectorAll(".message")].map((m) => [m.dataset.state, m.dataset.messageId]))`
	before := ada.read(shown)
	ada.do("reload", chromedp.Reload())
	ada.online()
	ada.seeMessage(adminName, "I do")
	if after := ada.read(shown); after != before {
		t.Errorf("after a reload the messages are %s, before %s", after, before)
	}

	ada.click("#signout")
	ada.do("be signed out", chromedp.WaitVisible(chromedp.CSS("#signin-form")))
	ada.signIn()
	ada.seeMessage(adminName, "I do")
	ada.say("Back again")
	other.seeMessage(adminName, "Back again")
}

// TestBrowserChangesEndpoints wants a page to go to another endpoint when the one it is connected to
// fails, and to miss nothing.
func TestBrowserChangesEndpoints(t *testing.T) {
	t.Parallel()
	front, a, b := newWire(t), newWire(t), newWire(t)
	r := serve(t, "only", newDatabase(t), "--poll", "100ms", "--origin", front.url, "--endpoint", a.url+","+b.url)
	for _, w := range []*wire{front, a, b} {
		w.lead(r)
	}
	ada := openTab(browsertest.Start(t), t, "ada", front.url+"/#setup="+tokenOf(r.setupLink()))
	ada.fill("#setup-name", adminName)
	ada.fill("#setup-password", password)
	ada.click("#setup-submit")
	ada.online()
	ada.fill("#room-new-name", "general")
	ada.click("#room-new-submit")
	ada.inRoom("general")
	program := signIn(t, r.url)
	for i, change := range []struct{ from, to *wire }{{a, b}, {b, a}, {a, b}} {
		eventually(t, func() string {
			if !change.from.used() || change.to.used() {
				return "the page is not connected to one endpoint"
			}
			return ""
		})
		change.from.cut()
		program.say(r.url, 1, fmt.Sprintf("meanwhile %d", i))
		ada.seeMessage(adminName, fmt.Sprintf("meanwhile %d", i))
		ada.online()
		change.from.mend()
		ada.say(fmt.Sprintf("here %d", i))
		ada.seeMessage(adminName, fmt.Sprintf("here %d", i))
	}
}

// errand is an address that tasks call. It holds each request until it is let go.
type errand struct {
	*httptest.Server
	tb    testing.TB
	going chan struct{}
}

func newErrand(tb testing.TB) *errand {
	tb.Helper()
	e := &errand{tb: tb, going: make(chan struct{})}
	ended := make(chan struct{})
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-e.going:
			_, _ = io.WriteString(w, "all is well\nnothing else\n")
		case <-r.Context().Done():
		case <-ended:
		}
	}))
	tb.Cleanup(func() {
		close(ended)
		e.Close()
	})
	return e
}

// letGo answers one request.
func (e *errand) letGo() {
	e.tb.Helper()
	select {
	case e.going <- struct{}{}:
	case <-time.After(patience):
		e.tb.Fatal("no task has called")
	}
}

// wire is the way from a browser to a replica, which the test can cut.
type wire struct {
	url   string
	ended chan struct{}

	mu     sync.Mutex
	to     string
	whole  chan struct{} // closed while it is
	joined map[net.Conn]bool
}

// newWire makes a wire that is cut until it leads somewhere.
func newWire(tb testing.TB) *wire {
	tb.Helper()
	listener, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	w := &wire{
		url: "http://" + listener.Addr().String(), ended: make(chan struct{}), whole: make(chan struct{}),
		joined: map[net.Conn]bool{},
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { w.carry(conn) })
		}
	})
	tb.Cleanup(func() {
		_ = listener.Close()
		close(w.ended)
		w.cut()
		serving.Wait()
	})
	return w
}

func (w *wire) lead(to *replica) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = strings.TrimPrefix(to.url, "http://")
	close(w.whole)
}

// used reports whether anything is connected through it.
func (w *wire) used() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.joined) > 0
}

// cut ends all connections. New ones wait.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.whole = make(chan struct{})
	for conn := range w.joined {
		_ = conn.Close()
	}
	clear(w.joined)
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.whole)
}

// carry passes on what comes on a connection of the browser, and what is answered.
func (w *wire) carry(browser net.Conn) {
	defer browser.Close()
	for {
		w.mu.Lock()
		whole := w.whole
		w.mu.Unlock()
		select {
		case <-whole:
		case <-w.ended:
			return
		}
		w.mu.Lock()
		to := w.to
		w.mu.Unlock()
		replica, err := new(net.Dialer).DialContext(context.Background(), "tcp", to)
		if err != nil {
			return
		}
		w.mu.Lock()
		joined := whole == w.whole
		if joined {
			w.joined[browser], w.joined[replica] = true, true
		}
		w.mu.Unlock()
		if !joined { // cut since
			_ = replica.Close()
			continue
		}
		var answering sync.WaitGroup
		answering.Go(func() {
			_, _ = io.Copy(browser, replica)
			_ = browser.Close()
		})
		_, _ = io.Copy(replica, browser)
		_ = replica.Close()
		answering.Wait()
		return
	}
}

// seeRun waits until the run that is shown is in that state.
func (t *tab) seeRun(state string) {
	t.tb.Helper()
	t.see("a run that is "+state, fmt.Sprintf(`document.querySelector("#run-page")?.dataset.state === %q`, state))
}

// log returns the lines of the log that is shown.
func (t *tab) log() (lines []string) {
	t.tb.Helper()
	var shown []struct {
		Number int
		Text   string
	}
	text := t.read(`JSON.stringify([...document.querySelectorAll(".log-line")].map((l) =>
		({ number: Number(l.dataset.number), text: l.lastElementChild.textContent })))`)
	if err := json.Unmarshal([]byte(text), &shown); err != nil {
		t.tb.Fatal(err)
	}
	for i, line := range shown {
		if line.Number != i+1 {
			t.tb.Errorf("%s: line %d of the log has the number %d", t.name, i+1, line.Number)
		}
		lines = append(lines, line.Text)
	}
	return lines
}

// seeRuns waits until so many runs are listed, and says whether there are older ones.
func (t *tab) seeRuns(n int, older bool) {
	t.tb.Helper()
	t.see(fmt.Sprintf("%d runs", n), fmt.Sprintf(`document.querySelector("#runs")?.ariaBusy === "false" &&
		document.querySelectorAll("#runs > .run").length === %d && Boolean(document.querySelector("#runs-older")) === %v`, n, older))
}

// TestTasksInBrowser is about the pages of tasks and of their runs: in a browser, and in a second
// one whose connection breaks, on another process where the driver allows that.
func TestTasksInBrowser(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	flags := []string{"--poll", "100ms", "--http-tasks-allow", "127.0.0.0/8"}
	first := serve(t, "first", database, flags...)
	second := first
	if driverName != "memory" {
		second = serve(t, "second", database, flags...)
	}
	errand := newErrand(t)
	browser := browsertest.Start(t)
	ada := openTab(browser, t, "ada", first.setupLink())
	ada.fill("#setup-name", adminName)
	ada.fill("#setup-password", password)
	ada.click("#setup-submit")
	ada.online()
	ada.fill("#room-new-name", "general")
	ada.click("#room-new-submit")
	ada.inRoom("general")
	program := signIn(t, first.url)
	way := newWire(t)
	way.lead(second)
	other := openTab(browser, t, "the second browser", way.url)
	other.signIn()
	other.inRoom("general")

	// A task of a single time, and of many options.
	ada.open("#/rooms/1/tasks")
	ada.click("#task-new-kind-http")
	ada.fill("#task-new-name", "probe 1")
	ada.fill("#task-new-http-url", errand.URL+"/report?secret=x")
	ada.put("#task-new-report", "always")
	ada.click("#task-new-once")
	ada.see("a time to choose", `document.querySelector("#task-new-schedule").value.startsWith("@at ") &&
		document.querySelector("#task-new-once-at").value !== ""`)
	ada.put("#task-new-once-at", fmt.Sprintf("%d-06-24T18:00", time.Now().Year()+1))
	ada.see("the preview", `document.querySelector("#schedule-preview").dataset.state === "ready" &&
		document.querySelector(".schedule-description").textContent.startsWith("Once, on ") &&
		document.querySelectorAll(".schedule-next > li").length === 1`)
	ada.click("#task-new-more > summary")
	ada.put("#task-new-overlap", "allow")
	ada.put("#task-new-retry-max-attempts", "1")
	ada.put("#task-new-concurrency-key", "errands")
	ada.put("#task-new-concurrency-limit", "1")
	ada.click("#task-new-submit")
	ada.click(`.task[data-task-name="probe 1"] .task-open`)
	ada.see("the page of the task", `location.hash === "#/tasks/probe%201" &&
		document.querySelector(".facts")?.innerText.includes("errands, 1 at a time")`)

	// A run is watched while it goes on, also by somebody whose connection breaks.
	called := "GET " + errand.URL
	begun := fmt.Sprintf(`document.querySelector("#run-page .bar")?.value === 10 &&
		document.querySelector("#log .log-line")?.lastElementChild.textContent === %q`, called)
	ada.click(".task-run")
	ada.seeRun("running")
	ada.see("who began it", `document.querySelector("#run-page .facts").innerText.includes("by hand")`)
	ada.see("the log and the progress", begun)
	other.open(ada.read("location.hash"))
	other.see("the log and the progress", begun)
	way.cut()
	errand.letGo()
	ada.seeRun("succeeded")
	other.see("that the connection is lost", `document.querySelector("#connection-state").dataset.state !== "online"`)
	way.mend()
	other.online()
	other.seeRun("succeeded")
	for _, watching := range []*tab{ada, other} {
		watching.see("the whole log", `document.querySelector("#log").dataset.lines === "4"`)
		if lines := watching.log(); lines[0] != called || !strings.HasPrefix(lines[1], "200 OK after ") ||
			lines[2] != "all is well" || lines[3] != "nothing else" {
			t.Errorf("%s has the log %q", watching.name, lines)
		}
	}

	// One run waits for another. Both are cancelled, after a question.
	ada.click(".run-again")
	ada.seeRun("running")
	other.open("#/tasks/probe%201")
	other.seeRuns(2, false)
	other.click(".task-run")
	other.seeRun("queued")
	other.click(".run-cancel")
	other.click(".ask .button:not(.danger)")
	other.see("that nothing was done", `document.activeElement.matches(".run-cancel") &&
		document.querySelector("#run-page").dataset.state === "queued"`)
	for _, cancelling := range []*tab{other, ada} {
		cancelling.click(".run-cancel")
		cancelling.click(".run-cancel-confirm")
		cancelling.seeRun("cancelled")
	}

	// Two people change the task at a time. That it was paused meanwhile is in nobody's way.
	probe := first.url + "/api/v1/tasks/probe%201"
	for _, editing := range []*tab{other, ada} {
		editing.open("#/tasks/probe%201/edit")
		editing.see("the form", `document.querySelector("#task-edit-report")?.value === "always"`)
	}
	program.want(http.StatusOK, "POST", probe+"/pause", nil, nil)
	program.want(http.StatusOK, "POST", probe+"/resume", nil, nil)
	other.put("#task-edit-http-timeout-s", "77")
	other.put("#task-edit-report", "never")
	other.click("#task-edit-submit")
	other.see("that it is saved", `location.hash === "#/tasks/probe%201" && document.querySelector(".facts")?.innerText.includes("Nothing")`)
	ada.put("#task-edit-report", "failures")
	ada.put("#task-edit-http-headers", "X-Mine: 1")
	// The Escape key, which also closes a list of suggestions, loses nothing.
	ada.read(`String(document.querySelector("#task-edit-http-headers").dispatchEvent(
		new KeyboardEvent("keydown", {key: "Escape", bubbles: true})))`)
	ada.see("that the form is closed", `location.hash === "#/tasks/probe%201" && document.querySelector(".task-edit") !== null`)
	ada.open("#/tasks/probe%201/edit")
	ada.see("what was typed", `document.querySelector("#task-edit-http-headers")?.value === "X-Mine: 1"`)
	ada.click("#task-edit-submit")
	ada.see("what was changed", `document.querySelector("#task-edit-theirs [data-field='http.timeout_s']")?.innerText.includes("77") &&
		document.querySelector("#task-edit-theirs [data-field=report] .link-button") !== null &&
		document.querySelector("#task-edit-report").value === "failures" &&
		document.querySelector("#task-edit-http-headers").value === "X-Mine: 1"`)
	// Not by the mouse: the next times of the schedule, which come now, may move it away.
	ada.read(`(document.querySelector("#task-edit-theirs [data-field=report] .link-button").click(), "")`)
	ada.see("theirs", `document.querySelector("#task-edit-report").value === "never"`)
	ada.click("#task-edit-submit")
	ada.see("that it is saved", `location.hash === "#/tasks/probe%201"`)
	var saved struct {
		Task struct {
			Report string
			HTTP   struct {
				Headers  map[string]string
				TimeoutS int `json:"timeout_s"`
			}
		}
	}
	program.want(http.StatusOK, "GET", probe, nil, &saved)
	if saved.Task.Report != "never" || saved.Task.HTTP.Headers["X-Mine"] != "1" || saved.Task.HTTP.TimeoutS != 77 {
		t.Errorf("what was saved is %+v", saved.Task)
	}

	// Paused and resumed, for everybody.
	ada.click(".task-pause")
	for _, looking := range []*tab{ada, other} {
		looking.see("that it is paused", `document.querySelector(".task-next.paused") !== null`)
	}
	other.click(".task-pause")
	ada.see("that it goes on", `document.querySelector("#task-page .task-next:not(.paused)") !== null`)

	// The webhook: its secret is shown once, and others can use it.
	hook := func(id, secret string) (answer answer) {
		key, err := webhook.ParseSecret(secret)
		if err != nil {
			t.Fatal(err)
		}
		now, address := time.Now(), ada.read(`document.querySelector("#webhook-address").textContent`)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(webhook.HeaderID, id)
		request.Header.Set(webhook.HeaderTimestamp, strconv.FormatInt(now.Unix(), 10))
		request.Header.Set(webhook.HeaderSignature, webhook.Sign(key, now, id, nil))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		answer.status = response.StatusCode
		answer.body, _ = io.ReadAll(response.Body)
		return answer
	}
	secretShown := `(document.querySelector("#webhook-secret")?.textContent ?? "")`
	ada.click(".webhook-make")
	ada.see("a secret", secretShown+` !== ""`)
	secret := ada.read(secretShown)
	if a := hook("one", secret); a.status != http.StatusAccepted || !strings.Contains(string(a.body), `"duplicate":false`) {
		t.Errorf("the webhook: status %d: %s", a.status, a.body)
	}
	if a := hook("one", secret); a.status != http.StatusAccepted || !strings.Contains(string(a.body), `"duplicate":true`) {
		t.Errorf("the webhook again: status %d: %s", a.status, a.body)
	}
	ada.see("a run by webhook", `document.querySelector("#runs > .run[data-state=running]")?.innerText.includes("by webhook")`)
	errand.letGo()
	ada.see("that it has ended", `document.querySelector("#runs > .run")?.dataset.state === "succeeded"`)
	example := exec.CommandContext(t.Context(), "sh", "-c", ada.read(`document.querySelector("#webhook-example").textContent`))
	if output, err := example.CombinedOutput(); err != nil || !strings.Contains(string(output), `"duplicate":false`) {
		t.Errorf("the example for a shell: %v: %s", err, output)
	}
	errand.letGo()
	ada.click("#webhook .copy")
	ada.see("that it is copied", `document.querySelector("#webhook .copy").innerText.includes("Copied")`)
	ada.click(".webhook-rotate")
	ada.click(".webhook-rotate-confirm")
	ada.see("another secret", fmt.Sprintf(`%s !== %q`, secretShown, secret))
	if a := hook("two", secret); a.status != http.StatusUnauthorized {
		t.Errorf("the webhook with the old secret: status %d: %s", a.status, a.body)
	}
	ada.click("#webhook-kept")
	ada.see("that the secret is gone", `document.querySelector("#webhook-secret") === null`)
	ada.click(".webhook-remove")
	ada.click(".webhook-remove-confirm")
	ada.see("that it is removed", `document.querySelector("#webhook[data-made]") === null && document.querySelector(".webhook-make") !== null`)

	// A long history comes by pages and stays up to date.
	ticks := first.url + "/api/v1/tasks/tick"
	program.want(http.StatusCreated, "POST", first.url+"/api/v1/tasks", map[string]any{
		"name": "tick", "room_id": 1, "text": "tick reports", "overlap": "allow",
	}, nil)
	for range 30 {
		program.want(http.StatusAccepted, "POST", ticks+"/run", nil, nil)
	}
	program.settled(first.url, "tick")
	ada.open("#/tasks/tick")
	ada.seeRuns(25, true)
	ada.click("#runs-older")
	ada.seeRuns(30, false)
	ada.click("#runs-filter [data-state=failed]")
	ada.seeRuns(0, false)
	ada.click("#runs-filter [data-state=succeeded]")
	ada.seeRuns(25, true)
	program.want(http.StatusAccepted, "POST", ticks+"/run", nil, nil)
	ada.seeRuns(26, true)

	// Two clicks in a row are one.
	ada.read(`["", ""].map(() => document.querySelector(".task-run").click()).join("")`)
	ada.seeRun("succeeded")
	var history struct{ Runs []struct{ Trigger string } }
	program.want(http.StatusOK, "GET", ticks+"/runs?limit=200", nil, &history)
	if len(history.Runs) != 32 || history.Runs[0].Trigger != "manual" {
		t.Errorf("there are %d runs, the last one %+v", len(history.Runs), history.Runs[0])
	}

	if driverName != "memory" { // which no command can reach
		code, _, stderr := execute(t, password+"\n", "user", "add", "bob", "--password-stdin", "--database-url", database)
		if code != 0 {
			t.Fatalf("add bob: %s", stderr)
		}
		bob := openTab(browser, t, "bob", first.url+"/#/tasks/probe%201")
		bob.signInAs("bob")
		bob.see("only what everybody may", fmt.Sprintf(`document.querySelector("#task-page .task-text")?.textContent === %q &&
			document.querySelector("#task-page .task-run") !== null &&
			!document.querySelector("#webhook, .task-edit")`, called))
		bob.open("#/rooms/1/tasks")
		bob.click("#task-new-open")
		bob.see("one kind of tasks", `document.querySelector("#task-new-text") !== null && !document.querySelector(".kinds")`)
	}

	ada.open("#/tasks/probe%201")
	ada.click(".task-delete")
	ada.click(".task-delete-confirm")
	ada.inRoom("general")
	ada.see("the report of the first run", fmt.Sprintf(`[...document.querySelectorAll(".message .message-text")].some(
		(m) => m.textContent.startsWith("%s: 200 OK after "))`, called))
	other.see("that the task is gone", `document.querySelector("#task-missing") !== null`)
}
