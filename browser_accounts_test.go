//go:build !memory

package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/tandemhq/tandem/internal/browsertest"
)

const otherPassword = "staple battery horse"

// choose chooses in a field that offers choices.
func (t *tab) choose(selector, value string) {
	t.tb.Helper()
	t.see(selector+" with "+value, fmt.Sprintf(
		`[...(document.querySelector(%q)?.options ?? [])].some((o) => o.value === %q)`, selector, value))
	t.read(fmt.Sprintf(`(() => {
		const field = document.querySelector(%q)
		field.value = %q
		field.dispatchEvent(new Event("change", { bubbles: true }))
		return field.value
	})()`, selector, value))
}

// seeText waits until an element shows a text, among others.
func (t *tab) seeText(selector, text string) {
	t.tb.Helper()
	t.see(fmt.Sprintf("%q in %s", text, selector),
		fmt.Sprintf(`document.querySelector(%q)?.innerText.replace(/\s+/g, " ").includes(%q)`, selector, text))
}

// seeSignedOut waits until the page says that its session was ended elsewhere, and logs how long
// that took.
func (t *tab) seeSignedOut(since time.Time) {
	t.tb.Helper()
	t.seeText("#signin-notice", "Your session was ended from another device, or by an administrator.")
	t.tb.Logf("%s was signed out after %v", t.name, time.Since(since).Round(time.Millisecond))
}

// takeSecret returns what is shown only once, and has it copied and put away.
func (t *tab) takeSecret(box string) string {
	t.tb.Helper()
	text := fmt.Sprintf(`(document.querySelector("%s .once-text")?.textContent ?? "")`, box)
	t.see("what is shown once", text+` !== ""`)
	secret := t.read(text)
	t.click(box + " .copy")
	t.see("that it is copied", fmt.Sprintf(`document.querySelector("%s .copy").innerText.includes("Copied")`, box))
	t.click(box + " .once-kept")
	t.see("that it is gone", fmt.Sprintf(`document.querySelector(%q) === null && !document.body.innerText.includes(%q)`, box, secret))
	return secret
}

// account is the row of a person on the page of people.
func account(name string) string { return fmt.Sprintf("[data-name='%s']", name) }

// manage shows what can be done to a person.
func (t *tab) manage(name string) {
	t.tb.Helper()
	t.click(account(name) + " .account-manage")
	t.do("see what can be done", chromedp.WaitVisible(chromedp.CSS(account(name)+" .manage")))
}

// TestBrowserAccount is about one's own account: the password, sessions that end on other replicas,
// what was being written meanwhile, and tokens.
func TestBrowserAccount(t *testing.T) {
	t.Parallel()
	h := newHousehold(t)
	other := openTab(h.browser, t, "ada's other browser", h.second.url)
	other.signIn()
	other.inRoom("general")
	other.fill("#composer-text", "half a thought")

	// One of the sessions is ended, from another replica; nothing that was written is lost.
	h.ada.click("#account-open")
	h.ada.see("both sessions", `document.querySelectorAll("#sessions > .entry").length === 2 &&
		document.querySelectorAll("#sessions > [data-current]").length === 1`)
	h.ada.seeText("#sessions > [data-current]", "Chrome on Linux this one In use now")
	h.ada.seeText("#sessions > .entry:not([data-current])", "from 127.0.0.1")
	began := time.Now()
	h.ada.click("#sessions > .entry:not([data-current]) .session-end")
	other.seeSignedOut(began)
	h.ada.see("that it is gone", `document.querySelectorAll("#sessions > .entry").length === 1`)
	other.signIn()
	other.inRoom("general")
	other.see("what was being written", `document.querySelector("#composer-text").value === "half a thought"`)

	// All others, after a question.
	third := openTab(h.browser, t, "ada's third browser", h.first.url)
	third.signIn()
	h.ada.do("reload", chromedp.Reload())
	h.ada.online()
	h.ada.see("three sessions", `document.querySelectorAll("#sessions > .entry").length === 3`)
	h.ada.click(".sessions-end")
	h.ada.seeText("#account-page .ask", "End 2 other sessions?")
	began = time.Now()
	h.ada.click(".sessions-end-confirm")
	other.seeSignedOut(began)
	third.seeSignedOut(began)
	h.ada.see("that no other is left", `document.querySelectorAll("#sessions > .entry").length === 1 && !document.querySelector(".sessions-end")`)

	// Another password, for the present one.
	other.signIn()
	for _, try := range []struct{ current, next, field, says string }{
		{"not the password", otherPassword, "current", "Is not the present password"},
		{password, "short", "new", "Must have at least 8 characters"},
	} {
		h.ada.put("#password-current", try.current)
		h.ada.put("#password-new", try.next)
		h.ada.click("#password-submit")
		h.ada.seeText("#password-"+try.field+"-error", try.says)
		h.ada.see("the field", fmt.Sprintf(`document.activeElement.id === "password-%[1]s" &&
			document.activeElement.getAttribute("aria-describedby").includes("password-%[1]s-error")`, try.field))
	}
	h.ada.put("#password-new", otherPassword)
	began = time.Now()
	h.ada.click("#password-submit")
	h.ada.seeText("#toast", "Your password is changed.")
	other.seeSignedOut(began)
	other.fill("#signin-name", adminName)
	other.fill("#signin-password", password)
	other.click("#signin-submit")
	other.seeText("#signin-form .form-error", "The name or the password is wrong")
	other.put("#signin-password", otherPassword)
	other.click("#signin-submit")
	other.online()

	// A token, whose secret is shown once.
	h.ada.click("#token-new-open")
	h.ada.fill("#token-name", "deploys")
	h.ada.click("#token-form [value=read]")
	h.ada.click("#token-submit")
	h.ada.seeText("#token-scopes-error", "Choose one at least.")
	h.ada.click("#token-form [value=chat]")
	h.ada.click("#token-submit")
	secret := h.ada.takeSecret("#token-made")
	h.ada.see("that the focus is where it was", `document.activeElement.id === "token-new-open"`)
	h.ada.seeText("#tokens > .entry", "deploys chat")
	h.ada.seeText("#tokens > .entry", "not used yet, expires in 90 days")
	say := func() int {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, messagesURL(h.second.url, 1),
			strings.NewReader(`{"client_id":"by a program","text":"By a program"}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+secret)
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	if status := say(); status != http.StatusCreated {
		t.Errorf("with the token: status %d", status)
	}
	h.ada.click(".token-revoke")
	h.ada.click(".token-revoke-confirm")
	h.ada.see("that it is gone", `document.querySelector("#tokens > .entry") === null && document.activeElement.id === "tokens-title"`)
	if status := say(); status != http.StatusUnauthorized {
		t.Errorf("with the revoked token: status %d", status)
	}

	// One's own session ends as by signing out.
	h.ada.click("#sessions > [data-current] .session-end")
	h.ada.do("be signed out", chromedp.WaitVisible(chromedp.CSS("#signin-form")))
	h.ada.see("nothing to explain", `document.querySelector("#signin-notice") === null`)
}

// TestBrowserAdministration is about accounts of others: invitations, roles, links for another password,
// deactivation, and the log of all that.
func TestBrowserAdministration(t *testing.T) {
	t.Parallel()
	h := newHousehold(t)
	bob := h.bob(t, "bob", h.second)
	elsewhere := func(link string) string { return strings.Replace(link, h.first.url, h.second.url, 1) }

	// There is always an administrator.
	h.ada.click("#people-open")
	h.ada.see("everybody", `document.querySelectorAll("#everybody > .entry").length === 2 &&
		document.querySelector("[data-name='bob'] .person")?.dataset.presence === "online"`)
	h.ada.manage(adminName)
	h.ada.choose(account(adminName)+" .account-role", "member")
	h.ada.click(".account-role-save")
	h.ada.click(".account-role-save-confirm")
	h.ada.seeText(account(adminName)+" .form-error", "There must be an administrator: make somebody else one first")
	h.ada.click(account(adminName) + " .account-manage")

	// An invitation makes one account.
	invite := func(role, room string) string {
		t.Helper()
		h.ada.choose("#invitation-role", role)
		h.ada.choose("#invitation-room", room)
		h.ada.click("#invitation-submit")
		return h.ada.takeSecret("#invitation-made")
	}
	link := invite("guest", "1")
	h.ada.seeText("#invitations > .entry", "Guest in general")
	h.ada.seeText("#invitations > .entry", "By ada, expires in 7 days")
	gus := openTab(h.browser, t, "gus", elsewhere(link))
	gus.seeText("main", "You will be a guest, who sees the rooms that they are added to, and begin in general.")
	gus.fill("#invite-name", "BOB")
	gus.fill("#invite-password", password)
	gus.click("#invite-submit")
	gus.seeText("#invite-name-error", `There is a user named "BOB" already`)
	gus.put("#invite-name", "gus")
	gus.click("#invite-submit")
	gus.online()
	gus.inRoom("general")
	gus.see("that the token has left the address", `!location.hash.includes("invite")`)
	late := openTab(h.browser, t, "who is late", link)
	late.seeText("main", "This invitation is no longer good")
	late.click("#link-leave")
	late.do("be asked to sign in", chromedp.WaitVisible(chromedp.CSS("#signin-form")))
	link = invite("member", "0")
	_, hash, _ := strings.Cut(link, "/#")
	gus.open("#" + hash)
	gus.seeText("main .notice", "You are signed in here as gus. The new account takes its place.")
	gus.click(".link-leave")
	gus.online()
	gus.inRoom("general")
	h.ada.click(".invitation-withdraw")
	h.ada.click(".invitation-withdraw-confirm")
	h.ada.seeText("#people-page", "None is open.")
	late.do("open a link that was withdrawn", chromedp.Navigate("about:blank"), chromedp.Navigate(link))
	late.seeText("#link-bad", "It was used already, was withdrawn, or has expired")

	// A guest sees what they may, and more as soon as they are no guest.
	for _, place := range []string{"#/people", "#/audit", "#/tasks/any", "#/runs/1"} {
		gus.open(place)
		gus.see("that "+place+" is not for them", `document.querySelector("#not-for-you") !== null`)
	}
	gus.see("no way there", `document.querySelector("#people-open, #audit-open, #direct-new, #room-new-name") === null`)
	gus.click("#account-open")
	gus.click("#token-new-open")
	gus.see("the scopes of a guest", `[...document.querySelectorAll("#token-form [name=scopes]")].map((s) => s.value).join() === "read,chat"`)
	gus.open("#/rooms/1")
	gus.fill("#composer-text", "as a guest")
	gus.see("no tasks", `document.querySelector("#tasks-toggle") === null`)
	h.ada.see("gus", `document.querySelector("[data-name='gus']") !== null`)
	gusID := h.ada.read(`document.querySelector("[data-name='gus']").dataset.account`)
	h.ada.manage("gus")
	h.ada.choose(account("gus")+" .account-role", "member")
	h.ada.click(".account-role-save")
	h.ada.see("the role", `document.querySelector("[data-name='gus']").dataset.role === "member" &&
		document.activeElement.matches(".account-role")`)
	gus.see("the tasks", `document.querySelector("#tasks-toggle") !== null && document.querySelector("#room-new-name") !== null`)
	gus.see("what was being written", `document.querySelector("#composer-text").value === "as a guest"`)

	// Deactivated and reactivated.
	h.ada.manage("bob")
	h.ada.click(".account-deactivate")
	began := time.Now()
	h.ada.click(".account-deactivate-confirm")
	bob.seeSignedOut(began)
	h.ada.see("that bob is deactivated", `document.querySelector("[data-name='bob'][data-deactivated] .account-reactivate") !== null &&
		document.querySelector("[data-name='bob'] .account-reset") === null`)
	bob.fill("#signin-name", "bob")
	bob.fill("#signin-password", password)
	bob.click("#signin-submit")
	bob.seeText("#signin-form .form-error", "The name or the password is wrong")
	h.ada.click(".account-reactivate")
	h.ada.click(".account-reactivate-confirm")
	h.ada.see("that bob is back", `document.querySelector("[data-name='bob']:not([data-deactivated]) .account-reset") !== null`)
	bob.click("#signin-submit")
	bob.online()

	// Signed out everywhere, and another password by a link.
	h.ada.look("visible") // which reads anew
	h.ada.click(".account-end")
	began = time.Now()
	h.ada.click(".account-end-confirm")
	bob.seeSignedOut(began)
	bob.signInAs("bob")
	h.ada.click(".account-reset")
	link = h.ada.takeSecret("#reset-made")
	forgetful := openTab(h.browser, t, "bob with a link", link)
	forgetful.seeText("main", "It is for the account of bob")
	forgetful.fill("#reset-password", "short")
	forgetful.click("#reset-submit")
	forgetful.seeText("#reset-password-error", "Must have at least 8 characters")
	forgetful.put("#reset-password", otherPassword)
	began = time.Now()
	forgetful.click("#reset-submit")
	forgetful.online()
	bob.seeSignedOut(began)
	late.do("open a link that was used", chromedp.Navigate("about:blank"), chromedp.Navigate(elsewhere(link)))
	late.seeText("#link-bad", "Ask an administrator for a new one.")

	// All of that is in the log.
	program := signIn(t, h.second.url)
	for range 30 {
		var made struct{ Invitation struct{ ID int64 } }
		program.want(http.StatusCreated, "POST", h.first.url+"/api/v1/invitations", map[string]any{"role": "guest"}, &made)
		program.want(http.StatusNoContent, "DELETE", fmt.Sprintf("%s/api/v1/invitations/%d", h.second.url, made.Invitation.ID), nil, nil)
	}
	lines := func(n int) string {
		return fmt.Sprintf(`document.querySelectorAll("#audit [data-line]").length === %d`, n)
	}
	h.ada.click("#audit-open")
	h.ada.see("a page of lines", lines(50)+` && document.querySelector("#audit-older") !== null`)
	h.ada.click("#audit-older")
	h.ada.see("older lines", `document.querySelectorAll("#audit [data-line]").length > 70 &&
		document.querySelector("#audit-older") === null &&
		[...document.querySelectorAll("#audit [data-line]")].every((l, i, all) => !i || Number(l.dataset.line) < Number(all[i-1].dataset.line))`)
	for action, says := range map[string]string{
		"account.set_up":      "ada set this instance up and became its administrator",
		"account.role":        "ada made gus a member, who was a guest",
		"account.deactivated": "ada deactivated bob from 127.0.0.1",
		"account.reset":       "bob chose another password by a link, which ended 1 session",
		"account.reset_made":  "ada made a link by which bob chooses another password",
	} {
		h.ada.seeText("#audit [data-action='"+action+"']", says)
	}
	h.ada.seeText("#audit", "The command line made an account for bob, a member")
	h.ada.seeText("#audit", "gus joined as a guest, invited by ada")
	h.ada.see("exact times", `[...document.querySelectorAll("#audit time")].every((time) => time.title.includes(String(new Date().getFullYear())))`)
	h.ada.choose("#audit-action", "account.deactivated")
	h.ada.see("one line", lines(1))
	h.ada.choose("#audit-actor", "2")
	h.ada.seeText("#audit-count", "There is nothing like that.")
	h.ada.choose("#audit-action", "account")
	h.ada.see("what bob did", lines(1))
	h.ada.read(`((field) => {
		field.value = "2100-01-01"
		field.dispatchEvent(new Event("change", { bubbles: true }))
		return field.value
	})(document.querySelector("#audit-since"))`)
	h.ada.see("nothing yet", lines(0))

	h.ada.click("#jobs summary")
	h.ada.seeText("#jobs [data-job='audit.reap'][data-class='leader-only']", "Deletes lines of the audit log")
	h.ada.see("no loops among the jobs", `document.querySelector("#jobs [data-job='hub.watch']") === null`)

	// Who is no administrator any more sees it at once.
	program.want(http.StatusOK, "PATCH", h.first.url+"/api/v1/people/"+gusID, map[string]string{"role": "admin"}, nil)
	gus.see("the page of people", `document.querySelector("#people-open") !== null`)
	program.want(http.StatusOK, "PATCH", h.first.url+"/api/v1/people/1", map[string]string{"role": "member"}, nil)
	h.ada.see("that it is not for her", `document.querySelector("#not-for-you") !== null && document.querySelector("#audit-open") === null`)
}

// TestBrowserWaits wants who tried too often to be told how long to wait, and to be let in afterwards.
func TestBrowserWaits(t *testing.T) {
	t.Parallel()
	r := serve(t, "only", newDatabase(t))
	setUp(t, r)
	ada := openTab(browsertest.Start(t), t, "ada", r.url)
	ada.fill("#signin-name", adminName)
	ada.fill("#signin-password", password)
	// At the last moment: every six seconds one more is let in.
	stranger := newPerson(t)
	eventually(t, func() string {
		a, err := stranger.ask("POST", r.url+"/api/v1/session", credentials{Name: adminName, Password: "guessed"})
		if err != nil || a.status != http.StatusTooManyRequests {
			return fmt.Sprintf("status %d, %v", a.status, err)
		}
		return ""
	})
	ada.click("#signin-submit")
	ada.see("how long to wait", `/You can try again in [1-6] s\./.test(document.querySelector(".form-wait")?.innerText) &&
		document.querySelector("#signin-submit").disabled && document.querySelector("#signin-password").value !== ""`)
	ada.seeText("#signin-form .form-error", "Too many attempts")
	ada.read(`(window.shown = document.querySelector(".form-wait b").textContent)`)
	ada.see("that it counts down", `document.querySelector(".form-wait b")?.textContent !== window.shown`)
	ada.see("that the time is over", `document.querySelector(".form-wait") === null && !document.querySelector("#signin-submit").disabled`)
	ada.click("#signin-submit")
	ada.online()
}

// TestBrowserRefusedMessages wants messages that the server does not take to stay, and to be sent once when
// they are tried again.
func TestBrowserRefusedMessages(t *testing.T) {
	t.Parallel()
	r := serve(t, "only", newDatabase(t))
	ada := openTab(browsertest.Start(t), t, "ada", r.setupLink())
	ada.fill("#setup-name", adminName)
	ada.fill("#setup-password", password)
	ada.click("#setup-submit")
	ada.online()
	ada.fill("#room-new-name", "general")
	ada.click("#room-new-submit")
	ada.inRoom("general")

	// While the database is away, as a frame would tell.
	ada.read(`((send) => {
		window.refused = () => ({ code: "unavailable", message: "the server can't do this at the moment" })
		WebSocket.prototype.send = function (text) {
			const { type, id } = JSON.parse(text)
			const error = type === "send" && window.refused()
			if (!error) return send.call(this, text)
			setTimeout(() => this.onmessage({ data: JSON.stringify({ type: "error", id, ...error }) }))
		}
		return ""
	})(WebSocket.prototype.send)`)
	ada.say("Through an outage")
	ada.seeText(".message[data-state=failed]", "Not sent. The server can't do this at the moment")

	// More at a time than one may send. How many the server itself refuses depends on how quick the page is.
	const many = 45
	ada.read(fmt.Sprintf(`(() => {
		let n = 0
		window.refused = () => n++ %% 3 === 2 && { code: "limited", message: "too many messages, try again in a moment" }
		const field = document.querySelector("#composer-text")
		for (let i = 0; i < %d; i++) {
			field.value = "message " + i
			field.dispatchEvent(new Event("input", { bubbles: true }))
			field.form.requestSubmit()
		}
		return ""
	})()`, many))
	failed := `document.querySelectorAll(".message[data-state=failed]")`
	ada.see("what was too much", failed+`.length > 1 && !document.querySelector(".message[data-state=pending]")`)
	ada.seeText(".message[data-state=failed]:last-of-type", "Not sent.")
	ada.read(`String(window.refused = () => false)`)
	ada.see("that all of it is sent, tried again", fmt.Sprintf(`(() => {
		document.querySelector(".message-retry")?.click()
		return document.querySelectorAll(".message[data-state=sent]").length === %d
	})()`, many+1))
	stored, _ := signIn(t, r.url).history(r.url, 1)
	seen := map[string]int{}
	for _, m := range stored {
		seen[m.Text]++
	}
	for i := range many {
		if text := fmt.Sprintf("message %d", i); seen[text] != 1 {
			t.Errorf("%q was stored %d times", text, seen[text])
		}
	}
	if seen["Through an outage"] != 1 || len(stored) != many+1 {
		t.Errorf("%d messages are stored", len(stored))
	}
}
