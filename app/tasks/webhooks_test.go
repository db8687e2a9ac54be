package tasks_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/app/webhook"
	"github.com/tandemhq/tandem/coord"
)

func (r *rig) hook(t *testing.T, name string) []byte {
	t.Helper()
	made, err := r.tasks.MakeWebhook(t.Context(), r.admin, name, 0)
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
	made, err := r.tasks.MakeWebhook(t.Context(), r.admin, "two words", 0)
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
	if _, _, err := r.deliver(t, "two words", old, "m1", `{"text":"other"}`); !errors.Is(err, coord.ErrConflict) {
		t.Errorf("another body: got %v", err)
	}
	again, duplicate, err := r.deliver(t, "two words", old, "m1", `{"text":"from outside"}`)
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
	for i, body := range []string{`{"text":" "}`, `{"text":"a\u0000"}`} {
		var first error
		for range 2 { // what is wrong is an answer too
			_, _, err := r.deliver(t, "two words", secret, fmt.Sprint("wrong", i), body)
			wantField(t, err, "text")
			if first == nil {
				first = err
			} else if err.Error() != first.Error() {
				t.Errorf("got %v, then %v", first, err)
			}
		}
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
		second(r.tasks.MakeWebhook(t.Context(), r.admin, "none", 0)), r.tasks.RemoveWebhook(t.Context(), r.admin, "none"),
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
	for range 600 { // there is one more each second, which a busy machine may take a while to use up
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

// TestWebhookAnswersAreKept delivers one request at once and again, on each driver, and refuses another
// body for its id.
func TestWebhookAnswersAreKept(t *testing.T) {
	for name, open := range drivers {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			d := r.message("report")
			d.Overlap = coord.OverlapAllow
			r.create(t, d)
			secret := r.hook(t, "report")
			for id, body := range map[string]string{"good": `{"text":"from outside"}`, "bad": `{"text":""}`} {
				type answer struct {
					run       tasks.Run
					duplicate bool
					err       error
				}
				answers := make([]answer, 8)
				var all sync.WaitGroup
				for i := range answers {
					all.Go(func() {
						a := &answers[i]
						a.run, a.duplicate, a.err = r.deliver(t, "report", secret, id, body)
					})
				}
				all.Wait()
				firsts := 0
				for _, a := range answers {
					if !a.duplicate {
						firsts++
					}
					if a.run != answers[0].run || (a.run.ID == 0) != (id == "bad") {
						t.Errorf("got %+v and %+v", a, answers[0])
					}
					if id == "bad" {
						wantField(t, a.err, "text")
					} else if a.err != nil {
						t.Error(a.err)
					}
				}
				if id == "good" && firsts != 1 {
					t.Errorf("%d are the first", firsts)
				}
				_, _, err := r.deliver(t, "report", secret, id, "{}")
				var reason *store.ReasonError
				if !errors.Is(err, coord.ErrConflict) || !errors.As(err, &reason) || reason.Field != "webhook-id" {
					t.Errorf("%s, another body: got %v", id, err)
				}
			}
			if list := r.runs(t, tasks.RunsFilter{Task: "report"}); len(list) != 1 {
				t.Errorf("the runs are %+v", list)
			}
		})
	}
}

// A secret that is replaced signs for the overlap longer, by the store's clock, and one that was replaced
// before that no longer.
func TestWebhookSecretsOverlap(t *testing.T) {
	r := newRig(t)
	d := r.message("report")
	d.Overlap = coord.OverlapAllow
	r.create(t, d)
	var secrets [][]byte
	rotate := func(overlap time.Duration, old bool) {
		t.Helper()
		made, err := r.tasks.MakeWebhook(t.Context(), r.admin, "report", overlap)
		if err != nil || made.OldUntil.IsZero() == old || old && made.OldUntil.Sub(r.now()).Round(time.Minute) != overlap {
			t.Errorf("got %+v, %v", made, err)
		}
		secret, err := webhook.ParseSecret(made.Secret)
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	n := 0
	want := func(good ...bool) {
		t.Helper()
		for i, secret := range secrets {
			n++
			_, _, err := r.deliver(t, "report", secret, fmt.Sprint(n), "")
			if (err == nil) != good[i] || err != nil && !errors.Is(err, webhook.ErrSignature) {
				t.Errorf("secret %d: got %v", i, err)
			}
		}
	}
	rotate(time.Hour, false)
	rotate(time.Hour, true)
	want(true, true)
	r.advance(time.Hour + time.Second)
	want(false, true)
	rotate(24*time.Hour, true)
	rotate(time.Hour, true)
	want(false, false, true, true)
	rotate(0, false)
	want(false, false, false, false, true)
	for _, overlap := range []time.Duration{-time.Second, 7*24*time.Hour + time.Second} {
		_, err := r.tasks.MakeWebhook(t.Context(), r.admin, "report", overlap)
		wantField(t, err, "overlap_s")
	}
	if err := r.tasks.RemoveWebhook(t.Context(), r.admin, "report"); err != nil {
		t.Fatal(err)
	}
	want(false, false, false, false, false)
}
