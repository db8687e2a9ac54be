package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tandemhq/tandem/internal/browsertest"
)

// toolCall is a call of a tool as the API shows it.
type toolCall struct {
	ID, State, Error string
	Result           json.RawMessage
}

// callTool calls a tool in a browser of the administrator.
func (p *person) callTool(url, tool string, args any, timeout int) string {
	p.tb.Helper()
	var made struct{ Call toolCall }
	p.want(http.StatusAccepted, "POST", url+"/api/v1/users/1/tools",
		map[string]any{"tool": tool, "args": args, "timeout_s": timeout}, &made)
	return made.Call.ID
}

// wantCall waits for the end of a call and wants it to be that one.
func (p *person) wantCall(url, id, state, result, reason string) {
	p.tb.Helper()
	var got struct{ Call toolCall }
	p.want(http.StatusOK, "GET", url+"/api/v1/calls/"+id+"?wait_s=20", nil, &got)
	if c := got.Call; c.State != state || string(c.Result) != result || c.Error != reason {
		p.tb.Errorf("the call is %s with result %s and error %q, want %s, %s, %q", c.State, c.Result, c.Error, state, result, reason)
	}
}

// asked waits until a dialog of that tool is shown in one of the tabs, and returns that one and the other.
func asked(tb testing.TB, tool string, tabs ...*tab) (in, other *tab) {
	tb.Helper()
	shown := func(t *tab) bool {
		return t.read(fmt.Sprintf(`String(document.querySelector("#call")?.dataset.tool === %q)`, tool)) == "true"
	}
	eventually(tb, func() string {
		for i, t := range tabs {
			if shown(t) {
				in, other = t, tabs[1-i]
				return ""
			}
		}
		return "no dialog of the tool " + tool
	})
	return in, other
}

const noDialog = `document.querySelector("#call") === null`

// TestBrowserTools wants what programs ask to be asked in exactly one tab of a person, and to be answered from there.
func TestBrowserTools(t *testing.T) {
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
	ada.fill("#room-new-name", "general")
	ada.click("#room-new-submit")
	ada.inRoom("general")
	tab := openTab(browser, t, "the second tab", second.url)
	tab.signIn()
	tab.inRoom("general")
	program := signIn(t, first.url)

	// Answered in one tab, the other of which saw nothing.
	id := program.callTool(first.url, "confirm", map[string]string{"text": "Deploy?"}, 60)
	in, other := asked(t, "confirm", ada, tab)
	in.see("the question, which has the focus", `document.querySelector("#call .question").textContent === "Deploy?" &&
		document.activeElement.id === "call-title" && document.querySelector("#call .time-left").textContent.includes("0:")`)
	other.see("nothing", noDialog)
	in.click("#call-yes")
	program.wantCall(second.url, id, "answered", `{"ok":true}`, "")
	in.see("no question", noDialog)
	other.see("nothing", noDialog)

	// What the server cancels, or what nobody answers in time, is no longer asked; the focus is where it was.
	in.read(`(document.querySelector("#composer-text").focus(), "")`)
	id = program.callTool(second.url, "confirm", map[string]string{"text": "Really?"}, 60)
	in, _ = asked(t, "confirm", ada, tab)
	program.want(http.StatusOK, "POST", second.url+"/api/v1/calls/"+id+"/cancel", nil, nil)
	in.see("no question", noDialog+` && document.activeElement.id === "composer-text" &&
		document.querySelector("#toast").textContent === "The question was withdrawn."`)
	program.wantCall(first.url, id, "cancelled", "", "cancelled")
	id = program.callTool(second.url, "confirm", map[string]string{"text": "Quick?"}, 1)
	program.wantCall(first.url, id, "expired", "", "")
	ada.see("no question", noDialog)
	tab.see("no question", noDialog)

	// Refused, by the keyboard.
	id = program.callTool(first.url, "confirm", map[string]string{"text": "Now?"}, 60)
	in, _ = asked(t, "confirm", ada, tab)
	in.do("press Escape", chromedp.SendKeys(chromedp.CSS("#call-title"), kb.Escape))
	program.wantCall(first.url, id, "answered", "", "refused")
	in.see("no question", noDialog)

	// A form, a choice, the clipboard.
	id = program.callTool(first.url, "form", map[string]any{"title": "An order", "fields": []map[string]any{
		{"name": "what", "label": "What", "type": "text", "required": true},
		{"name": "count", "type": "number"},
		{"name": "size", "type": "select", "options": []string{"small", "large"}},
		{"name": "gift", "type": "checkbox"},
	}}, 60)
	in, _ = asked(t, "form", ada, tab)
	in.click("#call-submit")
	in.see("what is missing", `document.querySelector("#call [data-field=what]:invalid") !== null`)
	in.fill("#call [data-field=what]", "tea")
	in.fill("#call [data-field=count]", "3")
	in.put("#call [data-field=size]", "large")
	in.click("#call [data-field=gift]")
	in.click("#call-submit")
	program.wantCall(first.url, id, "answered", `{"values":{"what":"tea","count":3,"size":"large","gift":true}}`, "")
	id = program.callTool(first.url, "pick", map[string]any{"title": "Which?", "options": []string{"red", "blue"}}, 60)
	in, _ = asked(t, "pick", ada, tab)
	in.click("#call .option:last-child input")
	in.click("#call-submit")
	program.wantCall(first.url, id, "answered", `{"option":"blue"}`, "")
	id = program.callTool(first.url, "clipboard.read", nil, 60)
	in, _ = asked(t, "clipboard.read", ada, tab)
	in.read(`(Object.defineProperty(navigator.clipboard, "readText", { configurable: true, value: () => Promise.reject(new Error) }), "")`)
	in.click("#call-share")
	in.see("that it is not allowed", `document.querySelector("#call .form-error") !== null`)
	in.read(`(Object.defineProperty(navigator.clipboard, "readText", { value: async () => "copied" }), "")`)
	in.click("#call-share")
	program.wantCall(first.url, id, "answered", `{"text":"copied"}`, "")

	// What the page can't do, it says.
	program.wantCall(first.url, program.callTool(first.url, "dance", nil, 60), "answered", "", "unknown tool")
	id = program.callTool(first.url, "pick", map[string]any{"options": []string{}}, 60)
	program.wantCall(first.url, id, "answered", "", "the arguments make no sense")

	// People can try it. The question comes to the tab that was connected last.
	asking := other
	asking.open("#/rooms/1/members")
	asking.click(".member-ask")
	asking.fill("#ask-text", "Is it you?")
	asking.click("#ask-submit")
	in, _ = asked(t, "confirm", ada, tab)
	in.click("#call-no")
	asking.see("the answer", `document.querySelector("#ask-answer")?.textContent === "ada said no."`)
	asking.click("#ask-again")
	asking.fill("#ask-text", "And now?")
	asking.click("#ask-submit")
	in, _ = asked(t, "confirm", ada, tab)
	if in == asking {
		t.Fatal("the question is in the tab that asks")
	}
	asking.click("#ask-cancel")
	in.see("no question", noDialog)
	asking.see("that it is withdrawn", `document.querySelector("#ask-answer").dataset.state === "cancelled"`)
	asking.click("#ask-close")
	asking.see("the members", `document.querySelector("#ask") === null && document.activeElement.matches(".member-ask")`)

	// A connection that ends takes its questions with it.
	id = program.callTool(first.url, "confirm", map[string]string{"text": "Still there?"}, 60)
	in, _ = asked(t, "confirm", ada, tab)
	in.close()
	program.wantCall(first.url, id, "cancelled", "", "the connection is gone")
}
