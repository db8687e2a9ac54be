package tasks_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/app/webhook"
	"github.com/tandemhq/tandem/coord"
)

func (r *rig) hook(t *testing.T, name string) []byte {
	t.Helper()
	made, err := r.tasks.MakeWebhook(t.Context(), r.admin, name)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := webhook.ParseSecret(made.Secret)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func signed(secret []byte, at time.Time, id, body string) http.Header {
	header := http.Header{}
	header.Set(webhook.HeaderID, id)
	header.Set(webhook.HeaderTimestamp, strconv.FormatInt(at.Unix(), 10))
	header.Set(webhook.HeaderSignature, webhook.Sign(secret, at, id, []byte(body)))
	return header
}

func (r *rig) deliver(t *testing.T, name string, secret []byte, id, body string) (tasks.Run, bool, error) {
	t.Helper()
	return r.tasks.Deliver(t.Context(), name, signed(secret, r.now(), id, body), []byte(body))
}

func TestWebhook(t *testing.T) {
	r := newRig(t)
	r.create(t, r.message("two words"))
	if must(r.tasks.Get(t.Context(), r.member, "two words")).Webhook {
		t.Error("a new task has a webhook")
	}
	if err := r.tasks.RemoveWebhook(t.Context(), r.admin, "two words"); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("removed none: got %v", err)
	}
	made, err := r.tasks.MakeWebhook(t.Context(), r.admin, "two words")
	if err != nil || made.Path != "/hooks/v1/tasks/two%20words" || !strings.HasPrefix(made.Secret, "whsec_") {
		t.Errorf("got %+v, %v", made, err)
	}
	if !must(r.tasks.Get(t.Context(), r.member, "two words")).Webhook || !all(t, r, r.member)[0].Webhook {
		t.Error("the task has no webhook")
	}
	old, err := webhook.ParseSecret(made.Secret)
	if err != nil {
		t.Fatal(err)
	}
	first, duplicate, err := r.deliver(t, "two words", old, "m1", `{"text":"from outside"}`)
	if err != nil || duplicate || first.Trigger != "webhook" || first.Task != "two words" {
		t.Fatalf("got %+v, %v, %v", first, duplicate, err)
	}
	again, duplicate, err := r.deliver(t, "two words", old, "m1", `{"text":"other"}`)
	if err != nil || !duplicate || again.ID != first.ID {
		t.Errorf("the same id: got %+v, %v, %v", again, duplicate, err)
	}
	_, _, err = r.deliver(t, "two words", old, "m2", "")
	if busy, ok := errors.AsType[*tasks.RetryError](err); !ok || !errors.Is(err, coord.ErrConflict) || busy.After <= 0 {
		t.Errorf("with a run in flight: got %v", err)
	}
	w := r.watch(t, "two words")
	r.work(t)
	w.until(coord.Succeeded)

	secret := r.hook(t, "two words")
	if _, _, err := r.deliver(t, "two words", old, "m2", ""); !errors.Is(err, webhook.ErrSignature) {
		t.Errorf("the old secret: got %v", err)
	}
	for i, body := range []string{"", "not JSON", `{"text":5}`, `[]`, `{"text":null}`} { // not meant for us
		if _, _, err := r.deliver(t, "two words", secret, fmt.Sprint("body", i), body); err != nil {
			t.Errorf("%q: got %v", body, err)
		}
		w.until(coord.Succeeded)
	}
	for _, body := range []string{`{"text":" "}`, `{"text":"a\u0000"}`} {
		_, _, err := r.deliver(t, "two words", secret, "m3", body)
		wantField(t, err, "text")
	}
	longest := strings.Repeat("x", 195)
	if _, duplicate, err := r.deliver(t, "two words", secret, longest, ""); err != nil || duplicate {
		t.Errorf("the longest id: got %v, %v", duplicate, err)
	}
	w.until(coord.Succeeded)
	want := []string{"from outside", "done", "done", "done", "done", "done", "done"}
	if got := r.texts(t); !slices.Equal(got, want) {
		t.Errorf("posted %q, want %q", got, want)
	}

	if err := r.tasks.RemoveWebhook(t.Context(), r.admin, "two words"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.deliver(t, "two words", secret, "m4", ""); !errors.Is(err, webhook.ErrSignature) {
		t.Errorf("without a webhook: got %v", err)
	}
	for _, err := range []error{
		second(r.tasks.MakeWebhook(t.Context(), r.admin, "none")), r.tasks.RemoveWebhook(t.Context(), r.admin, "none"),
	} {
		if !errors.Is(err, coord.ErrNotFound) {
			t.Errorf("no such task: got %v", err)
		}
	}
}

// Nobody learns which tasks there are, or have a webhook.
func TestWebhookRefusals(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"hooked", "plain"} {
		r.create(t, r.message(name))
	}
	secret := r.hook(t, "hooked")
	wrong := make([]byte, 32)
	for _, name := range []string{"hooked", "plain", "none", strings.Repeat("x", 300), "a\x01"} {
		for what, test := range map[string]struct {
			header http.Header
			want   error
		}{
			"no headers":     {http.Header{}, webhook.ErrHeader},
			"another secret": {signed(wrong, r.now(), "m", "b"), webhook.ErrSignature},
			"another body":   {signed(secret, r.now(), "m", "c"), webhook.ErrSignature},
			"too old":        {signed(secret, r.now().Add(-webhook.Window-2*time.Second), "m", "b"), webhook.ErrTime},
			"too new":        {signed(secret, r.now().Add(webhook.Window+2*time.Second), "m", "b"), webhook.ErrTime},
		} {
			if _, _, err := r.tasks.Deliver(t.Context(), name, test.header, []byte("b")); !errors.Is(err, test.want) {
				t.Errorf("%s, %s: got %v, want %v", name, what, err, test.want)
			}
		}
	}
	if _, _, err := r.deliver(t, "plain", secret, "m", "b"); !errors.Is(err, webhook.ErrSignature) {
		t.Errorf("the secret of another task: got %v", err)
	}
	// The store's clock judges, not the replica's.
	r.advance(time.Hour)
	if _, _, err := r.tasks.Deliver(t.Context(), "hooked", signed(secret, time.Now(), "m", "b"), []byte("b")); !errors.Is(err, webhook.ErrTime) {
		t.Errorf("a replay: got %v", err)
	}
	if _, _, err := r.deliver(t, "hooked", secret, "m", "b"); err != nil {
		t.Error(err)
	}
	// A task that is made anew has no webhook.
	if err := r.tasks.Delete(t.Context(), r.admin, "hooked"); err != nil {
		t.Fatal(err)
	}
	r.create(t, r.message("hooked"))
	if _, _, err := r.deliver(t, "hooked", secret, "n", "b"); !errors.Is(err, webhook.ErrSignature) {
		t.Errorf("of a task that is gone: got %v", err)
	}
}

func TestWebhookIsLimited(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"a", "b"} {
		r.create(t, r.message(name))
	}
	a, b := r.hook(t, "a"), r.hook(t, "b")
	for range 100 { // others can't use it up
		if _, _, err := r.deliver(t, "a", b, "m", ""); !errors.Is(err, webhook.ErrSignature) {
			t.Fatal(err)
		}
	}
	passed := 0
	var limited *tasks.RetryError
	for range 70 {
		_, _, err := r.deliver(t, "a", a, "m", "")
		var ok bool
		if limited, ok = errors.AsType[*tasks.RetryError](err); ok && errors.Is(err, tasks.ErrLimited) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		passed++
	}
	if passed < 60 || limited == nil || limited.After <= 0 {
		t.Errorf("%d passed, then %v", passed, limited)
	}
	if _, _, err := r.deliver(t, "b", b, "m", ""); err != nil {
		t.Errorf("another task: got %v", err)
	}
	r.advance(time.Minute)
	if _, _, err := r.deliver(t, "a", a, "m", ""); err != nil {
		t.Errorf("a minute later: got %v", err)
	}
}
