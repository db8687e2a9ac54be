package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/tandemhq/tandem/internal/testenv"
)

// startBrowser starts a browser of its own for the test.
func startBrowser(tb testing.TB) context.Context {
	tb.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(testenv.Chromium(tb)),
		chromedp.NoSandbox, // root, as in many a CI, can't have one; only our own page is opened
		chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.WindowSize(1400, 900),
	)
	// The browser ends with the clean-up, in which it is asked and waited for.
	ctx, cancelAllocator := chromedp.NewExecAllocator(context.WithoutCancel(tb.Context()), options...)
	tb.Cleanup(cancelAllocator)
	ctx, cancel := chromedp.NewContext(ctx)
	tb.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		tb.Fatalf("start the browser: %v", err)
	}
	return ctx
}

// tab is what one person has open.
type tab struct {
	tb   testing.TB
	name string
	ctx  context.Context //nolint:containedctx // chromedp's handle of the tab
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
	tb.Cleanup(func() {
		stopWatching()
		<-watched
		cancel()
	})
	t := &tab{tb, name, ctx}
	t.do("open "+url, chromedp.Navigate(url))
	return t
}

// isComplaint tells errors and violations from the browser's own note that a request was answered
// 401: whoever is not signed in, or has just signed out with requests under way, is told so.
func isComplaint(m chromedp.ConsoleMessage) bool {
	if m.Source == "network" && strings.Contains(m.URL, "/api/v1/") && strings.Contains(m.Text, "status of 401") {
		return false
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
	t.fill("#signin-name", adminName)
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
	browser := startBrowser(t)

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
	ada.do("open the tasks", func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		open, err := chromedp.Evaluate[bool](`document.querySelector("#tasks-toggle").ariaExpanded === "true"`)(ctx, target)
		if err != nil || open {
			return chromedp.Void{}, err
		}
		return chromedp.Click(chromedp.CSS("#tasks-toggle"), chromedp.NodeVisible)(ctx, target)
	})
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
