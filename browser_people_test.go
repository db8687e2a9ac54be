//go:build !memory

package main

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tandemhq/tandem/internal/browsertest"
)

// press clicks an element that shows itself only to a mouse or the keyboard.
func (t *tab) press(selector string) {
	t.tb.Helper()
	t.see(selector, fmt.Sprintf(`document.querySelector(%q) !== null`, selector))
	t.read(fmt.Sprintf(`(document.querySelector(%q).focus(), "")`, selector))
	t.click(selector)
}

// look makes the page believe that somebody looks at it, or at something else.
func (t *tab) look(state string) {
	t.tb.Helper()
	t.read(fmt.Sprintf(`(Object.defineProperty(document, "visibilityState", { value: %q, configurable: true }),
		document.dispatchEvent(new Event("visibilitychange", { bubbles: true })), "")`, state))
}

// seeUnread waits until so much is unread in a room by its badge; "" is nothing.
func (t *tab) seeUnread(room, badge string) {
	t.tb.Helper()
	t.see(fmt.Sprintf("%q unread in %s", badge, room), fmt.Sprintf(`[...document.querySelectorAll(".room-link")].some((link) =>
		link.querySelector(".room-link-name").textContent === %q &&
		(link.querySelector(".unread > span")?.textContent ?? "") === %q)`, room, badge))
}

// household is two replicas and a browser, with ada, who set them up and is in the public room general,
// and bob, who is not.
type household struct {
	database      string
	first, second *replica
	browser       context.Context //nolint:containedctx // chromedp's handle of the browser
	ada           *tab
}

func newHousehold(t *testing.T) household {
	t.Helper()
	database := newDatabase(t)
	h := household{
		database: database,
		first:    serve(t, "first", database, "--poll", "100ms"), second: serve(t, "second", database, "--poll", "100ms"),
		browser: browsertest.Start(t),
	}
	h.ada = openTab(h.browser, t, "ada", h.first.setupLink())
	h.ada.fill("#setup-name", adminName)
	h.ada.fill("#setup-password", password)
	h.ada.click("#setup-submit")
	h.ada.online()
	h.ada.fill("#room-new-name", "general")
	h.ada.click("#room-new-submit")
	h.ada.inRoom("general")
	h.addUser(t, "bob")
	return h
}

func (h household) addUser(t *testing.T, name string, flags ...string) {
	t.Helper()
	args := append([]string{"user", "add", name, "--password-stdin", "--database-url", h.database}, flags...)
	if code, _, stderr := execute(t, password+"\n", args...); code != 0 {
		t.Fatalf("add %s: %s", name, stderr)
	}
}

// bob opens a tab of bob, who signs in.
func (h household) bob(t *testing.T, name string, at *replica) *tab {
	t.Helper()
	bob := openTab(h.browser, t, name, at.url)
	bob.signInAs("bob")
	return bob
}

// makeSecret has ada make the private room secret, whose members are shown, and add bob.
func (h household) makeSecret(t *testing.T) {
	t.Helper()
	h.ada.fill("#room-new-name", "secret")
	h.ada.click("#room-new-private")
	h.ada.fill("#room-new-description", "Not for everybody")
	h.ada.click("#room-new-submit")
	h.ada.inRoom("secret")
	h.ada.say("For members only")
	h.ada.seeMessage(adminName, "For members only")
	h.ada.click("#members-toggle")
	h.ada.see("that ada owns it", `document.querySelector(".member[data-user-id='1']")?.dataset.role === "owner" &&
		document.querySelector("#room-description")?.textContent === "Not for everybody"`)
}

func (h household) addBob() {
	h.ada.click("#member-add")
	h.ada.fill("#pick-person-name", "bo")
	h.ada.click("#pick-person .person-button[data-user-id='2']")
	h.ada.see("that bob is a member", `document.querySelector(".member[data-user-id='2']") !== null &&
		document.querySelector("#pick-person") === null`)
}

// inList is whether a room is in the list of the page.
func inList(room string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".room-link-name")].some((n) => n.textContent === %q)`, room)
}

// TestBrowserRooms wants a private room to be there for its members alone, from the moment they are added until they
// are removed, and what is read to be the same on all devices.
func TestBrowserRooms(t *testing.T) {
	t.Parallel()
	h := newHousehold(t)
	bob := h.bob(t, "bob", h.second)
	bob.inRoom("general")
	bob.click("#room-join-here")
	bob.see("that bob has joined", `document.querySelector("[data-room-id='1']").dataset.member === "member" &&
		document.querySelector("#room-join-here") === null`)

	h.makeSecret(t)
	program := newPerson(t)
	program.want(http.StatusOK, "POST", h.second.url+"/api/v1/session", credentials{Name: "bob", Password: password}, nil)
	secret := h.second.url + "/api/v1/rooms/2"
	program.want(http.StatusNotFound, "GET", secret, nil, nil)
	h.ada.fill("#room-new-name", "later")
	h.ada.click("#room-new-submit")
	h.ada.inRoom("later")
	bob.see("the later room alone", inList("later")+" && !"+inList("secret"))
	bob.open("#/rooms/2")
	bob.inRoom("general")

	h.ada.open("#/rooms/2/members")
	h.ada.inRoom("secret")
	h.addBob()
	bob.see("the room that bob was added to", `document.querySelector("[data-kind=private] [data-room-id='2']") !== null`)
	bob.seeUnread("secret", "")
	h.ada.say("Welcome")
	bob.seeUnread("secret", "1")

	// What is read on one device is read on the other, and the line shows from where on it was new.
	away := h.bob(t, "bob's other tab", h.first)
	away.inRoom("general")
	away.seeUnread("secret", "1")
	bob.open("#/rooms/2")
	bob.seeMessage(adminName, "For members only")
	bob.seeMessage(adminName, "Welcome")
	bob.seeUnread("secret", "")
	away.seeUnread("secret", "")
	bob.open("#/rooms/1")
	bob.inRoom("general")
	h.ada.say("One")
	h.ada.say("Two")
	for _, tab := range []*tab{bob, away} {
		tab.seeUnread("secret", "2")
	}
	line := `document.querySelector(".new-line")?.nextElementSibling.querySelector(".message-text").textContent === "One"`
	away.do("reload", chromedp.Reload())
	away.online()
	away.seeUnread("secret", "2")
	away.open("#/rooms/2")
	away.see("a line in front of what is new", line)
	bob.seeUnread("secret", "")
	bob.open("#/rooms/2")
	bob.inRoom("secret")
	bob.seeMessage(adminName, "Two")
	bob.see("no line", `document.querySelector(".new-line") === null`)

	// Who does not look has not read.
	bob.look("hidden")
	away.open("#/rooms/1")
	away.inRoom("general")
	h.ada.say("Three")
	bob.seeUnread("secret", "1")
	away.seeUnread("secret", "1")
	bob.look("visible")
	bob.seeUnread("secret", "")
	away.seeUnread("secret", "")

	// One's own messages can be changed, with the keyboard too.
	bob.say("Thre")
	bob.seeMessage("bob", "Thre")
	h.ada.seeMessage("bob", "Thre")
	bob.do("press the arrow", chromedp.SendKeys(chromedp.CSS("#composer-text"), kb.ArrowUp))
	bob.fill("#message-editor-text", "e!"+kb.Enter)
	edited := `[...document.querySelectorAll(".message")].some((m) => m.querySelector(".message-edited") !== null &&
		m.querySelector(".message-text").textContent === "Three!")`
	bob.see("the change", edited)
	h.ada.see("the change", edited)
	h.ada.see("that only owners delete what others wrote", `(() => {
		const theirs = [...document.querySelectorAll(".message")].at(-1)
		return theirs.querySelector(".message-delete") !== null && theirs.querySelector(".message-edit") === null
	})()`)
	bob.press(".message[data-mine] .message-delete")
	bob.click(".message-delete-confirm")
	for _, tab := range []*tab{bob, h.ada} {
		tab.see("that it is deleted", `document.querySelectorAll(".message[data-deleted]").length === 1 && !`+edited)
	}

	// A task that reports into the room, and its runs, are followed there.
	bob.open("#/rooms/2/tasks")
	bob.fill("#task-new-name", "secret task")
	bob.fill("#task-new-text", "Hush")
	bob.click("#task-new-submit")
	bob.click(`.task[data-task-name="secret task"] .task-open`)
	bob.seeRuns(0, false)
	bob.click(".task-run")
	bob.seeRun("succeeded")
	h.ada.seeMessage("secret task", "Hush")
	bob.open("#/rooms/2")
	bob.seeMessage("secret task", "Hush")

	// Another owner may change what the room is about.
	h.ada.click(".member[data-user-id='2'] .member-role")
	bob.click("#members-toggle")
	bob.see("that bob owns it", `document.querySelector(".member[data-user-id='2']")?.dataset.role === "owner"`)
	bob.click("#description-edit")
	bob.put("#description-text", "For us two")
	bob.click("#description-save")
	h.ada.see("the description", `document.querySelector("#room-about")?.textContent === "For us two"`)

	// Whoever is removed is told, and sees nothing more.
	h.ada.click(".member[data-user-id='2'] .member-remove")
	h.ada.click(".member-remove-confirm")
	bob.see("that the room is closed", `document.querySelector("#room-closed")?.innerText.includes("You are no longer in secret") &&
		!`+inList("secret"))
	away.see("that the room is gone", "!"+inList("secret"))
	program.want(http.StatusNotFound, "GET", secret, nil, nil)
	bob.click("#room-closed .button")
	bob.see("another room", `document.querySelector("#room-title") !== null`)

	// A public room can be left, and is still there.
	bob.open("#/rooms/1/members")
	bob.click(".room-leave")
	bob.click(".room-leave-confirm")
	bob.see("that bob has left", `document.querySelector("#room-join") !== null && !document.querySelector(".member[data-user-id='2']")`)
	bob.inRoom("general")
}

// TestBrowserPeople wants to be seen who is there and who is typing, and that one can write to a person.
func TestBrowserPeople(t *testing.T) {
	t.Parallel()
	h := newHousehold(t)
	h.makeSecret(t)
	h.addBob()
	bobIs := func(state string) string {
		return fmt.Sprintf(`document.querySelector(".member[data-user-id='2'] .person")?.dataset.presence === %q`, state)
	}
	h.ada.see("that bob was never there", bobIs("offline"))
	bob := h.bob(t, "bob", h.second)
	h.ada.see("that bob is there", bobIs("online"))
	bob.open("#/rooms/2")
	bob.inRoom("secret")

	bob.fill("#composer-text", "Let me see")
	h.ada.see("that bob is typing", `document.querySelector("#writers").textContent === "bob is typing…"`)
	h.ada.see("that bob stopped", `document.querySelector("#writers").textContent === ""`)
	bob.fill("#composer-text", "!")
	h.ada.see("that bob is typing again", `document.querySelector("#writers").textContent === "bob is typing…"`)
	bob.click("#composer-send")
	h.ada.see("what bob was typing", `document.querySelector("#writers").textContent === "" &&
		[...document.querySelectorAll(".message-text")].at(-1).textContent === "Let me see!"`)

	bob.look("hidden")
	h.ada.see("that bob looks at something else", bobIs("away"))
	bob.look("visible")
	for _, event := range []string{`window.dispatchEvent(new Event("online"))`, `document.dispatchEvent(new Event("visibilitychange", { bubbles: true }))`} {
		// A connection may be dead by then, and is asked at once.
		if pings := bob.read(fmt.Sprintf(`(() => {
			let pings = 0
			const send = WebSocket.prototype.send
			WebSocket.prototype.send = function (frame) {
				if (JSON.parse(frame).type === "ping") pings++
				send.call(this, frame)
			}
			%s
			WebSocket.prototype.send = send
			return String(pings)
		})()`, event)); pings != "1" {
			t.Errorf("%s: %s pings", event, pings)
		}
	}
	h.ada.see("that bob is back", bobIs("online"))
	second := h.bob(t, "bob's other tab", h.first)
	bob.close()
	h.ada.see("that bob is still there", bobIs("online"))
	second.close()
	h.ada.see("that bob has gone", bobIs("offline")+` &&
		document.querySelector(".member[data-user-id='2'] .person-state").textContent.startsWith("last seen ")`)

	h.ada.click("#direct-new")
	h.ada.click("#pick-person .person-button[data-user-id='2']")
	h.ada.inRoom("bob")
	h.ada.say("Psst")
	h.ada.seeMessage(adminName, "Psst")
	bob = h.bob(t, "bob again", h.second)
	bob.see("a direct room", `document.querySelector("[data-kind=direct] [data-room-id]") !== null`)
	bob.seeUnread(adminName, "1")
	bob.click("[data-kind=direct] [data-room-id]")
	bob.seeMessage(adminName, "Psst")
	bob.say("Yes?")
	h.ada.seeMessage("bob", "Yes?")
	h.ada.see("that bob is there", `document.querySelector(".room-about .dot")?.dataset.state === "online"`)
}

// TestBrowserGuest wants a guest to see the rooms that they were added to, and nothing else.
func TestBrowserGuest(t *testing.T) {
	t.Parallel()
	h := newHousehold(t)
	h.addUser(t, "gus", "--guest")
	gus := openTab(h.browser, t, "gus", h.second.url)
	gus.signInAs("gus")
	gus.see("nothing", `document.querySelector(".blank-card h1")?.textContent === "No room yet" &&
		!document.querySelector("#room-new-name, #direct-new, [data-room-id]")`)
	h.makeSecret(t)
	h.ada.click("#member-add")
	h.ada.click("#pick-person .person-button[data-user-id='3']")
	gus.see("the room", inList("secret"))
	gus.click("[data-room-id='2']")
	gus.seeMessage(adminName, "For members only")
	gus.say("Hello")
	h.ada.seeMessage("gus", "Hello")
	gus.click("#members-toggle")
	gus.see("who is there", `document.querySelector(".member[data-user-id='1'] .person")?.dataset.presence === "online" &&
		!document.querySelector("#tasks-toggle, #member-add, .member-remove")`)
	h.ada.click(".member[data-user-id='3'] .member-remove")
	h.ada.click(".member-remove-confirm")
	gus.see("that the room is closed", `document.querySelector("#room-closed") !== null && !`+inList("secret"))
}
