package tasks_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/outbound"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
)

func (r *rig) request(name, url string) tasks.Definition {
	return tasks.Definition{Name: name, Kind: tasks.KindHTTP, RoomID: r.room.ID, HTTP: &outbound.Request{URL: url}}
}

func TestWrongFieldsAreNamed(t *testing.T) {
	r := newRig(t)
	yesterday := "@at " + time.Now().UTC().Add(-24*time.Hour).Format("2006-01-02 15:04")
	for _, test := range []struct {
		field string
		edit  func(d *tasks.Definition)
	}{
		{"name", func(d *tasks.Definition) { d.Name = " " }},
		{"name", func(d *tasks.Definition) { d.Name = "." }},
		{"name", func(d *tasks.Definition) { d.Name = "a/b" }},
		{"name", func(d *tasks.Definition) { d.Name = "a\x01b" }},
		{"name", func(d *tasks.Definition) { d.Name = "a\u202eb" }}, // turns what follows around
		{"name", func(d *tasks.Definition) { d.Name = "\u200b" }},
		{"name", func(d *tasks.Definition) { d.Name = strings.Repeat("x", 101) }},
		{"kind", func(d *tasks.Definition) { d.Kind = "prompt" }},
		{"text", func(d *tasks.Definition) { d.Kind, d.Text = tasks.KindMessage, "" }},
		{"room_id", func(d *tasks.Definition) { d.RoomID = 0 }},
		{"room_id", func(d *tasks.Definition) { d.RoomID = 999 }},
		{"room_id", func(d *tasks.Definition) { d.RoomID, d.Report = 999, tasks.ReportNever }},
		{"report", func(d *tasks.Definition) { d.Report = "sometimes" }},
		{"http", func(d *tasks.Definition) { d.HTTP = nil }},
		{"http.url", func(d *tasks.Definition) { d.HTTP.URL = "ftp://example.com" }},
		{"http.method", func(d *tasks.Definition) { d.HTTP.Method = "TRACE" }},
		{"http.body", func(d *tasks.Definition) { d.HTTP.Body = "x" }},
		{"http.body", func(d *tasks.Definition) { d.HTTP.Method, d.HTTP.Body = "POST", strings.Repeat("\x01", 200<<10) }}, // too long as JSON
		{"http.headers", func(d *tasks.Definition) { d.HTTP.Header = map[string]string{"Host": "x"} }},
		{"http.expect_status", func(d *tasks.Definition) { d.HTTP.ExpectStatus = []int{99} }},
		{"http.timeout_s", func(d *tasks.Definition) { d.HTTP.TimeoutSeconds = 601 }},
		{"schedule", func(d *tasks.Definition) { d.Schedule = "every day" }},
		{"schedule", func(d *tasks.Definition) { d.Schedule = yesterday }},
		{"zone", func(d *tasks.Definition) { d.Schedule, d.Zone = "@daily", "Mars" }},
		{"zone", func(d *tasks.Definition) { d.Zone = "Mars" }},
		{"overlap", func(d *tasks.Definition) { d.Overlap = "maybe" }},
		{"misfire", func(d *tasks.Definition) { d.Misfire = "maybe" }},
		{"misfire_cap", func(d *tasks.Definition) { d.MisfireCap = 1001 }},
		{"retry.max_attempts", func(d *tasks.Definition) { d.Retry.MaxAttempts = 101 }},
		{"retry.backoff_s", func(d *tasks.Definition) { d.Retry.BackoffS = -1 }},
		{"retry.backoff_s", func(d *tasks.Definition) { d.Retry.BackoffS = 1 << 60 }},
		{"retry.max_backoff_s", func(d *tasks.Definition) { d.Retry.BackoffS, d.Retry.MaxBackoffS = 10, 5 }},
		{"timeout_s", func(d *tasks.Definition) { d.TimeoutS = -5 }},
		{"priority", func(d *tasks.Definition) { d.Priority = 5 }},
		{"concurrency.key", func(d *tasks.Definition) { d.Concurrency.Limit = 1 }},
		{"concurrency.key", func(d *tasks.Definition) { d.Concurrency.Key = strings.Repeat("x", 201) }},
		{"concurrency.limit", func(d *tasks.Definition) { d.Concurrency = tasks.Concurrency{Key: "x", Limit: -1} }},
	} {
		d := r.request("call", "https://example.com")
		test.edit(&d)
		_, err := r.tasks.Create(t.Context(), r.admin, d)
		if e, ok := errors.AsType[*coord.InvalidError](err); !ok || e.Field != test.field {
			t.Errorf("%+v: got %v, want an error about %s", d, err, test.field)
		}
	}
	if list, err := r.tasks.List(t.Context(), r.admin); err != nil || len(list) != 0 {
		t.Errorf("there are tasks: %+v, %v", list, err)
	}
}

func TestDefinitionComesBack(t *testing.T) {
	r := newRig(t)
	paused := true
	full := tasks.Definition{
		Name: "call", Kind: tasks.KindHTTP, RoomID: r.room.ID, Report: tasks.ReportAlways, Text: "of the other kind",
		HTTP: &outbound.Request{
			Method: "POST", URL: "https://user:secret@example.com/path?token=secret", Header: map[string]string{"Authorization": "secret"},
			Body: "secret", ExpectStatus: []int{200, 404}, TimeoutSeconds: 5,
		},
		Schedule: " 30 9 * * 1-5 ", Zone: " Europe/Berlin ", Overlap: coord.OverlapAllow, Misfire: coord.MisfireAll, MisfireCap: 7,
		Retry: tasks.Retry{MaxAttempts: 4, BackoffS: 2, MaxBackoffS: 90}, TimeoutS: 60, Priority: 1,
		Concurrency: tasks.Concurrency{Key: "example.com", Limit: 3}, AtMostOnce: true, Paused: &paused,
	}
	r.create(t, full)
	got, err := r.tasks.Get(t.Context(), r.admin, "call")
	if err != nil {
		t.Fatal(err)
	}
	if got.HTTP == nil || got.HTTP.URL != full.HTTP.URL || got.HTTP.Method != http.MethodPost || got.HTTP.Body != "secret" ||
		got.HTTP.Header["Authorization"] != "secret" || len(got.HTTP.ExpectStatus) != 2 || got.HTTP.TimeoutSeconds != 5 {
		t.Errorf("the request is %+v", got.HTTP)
	}
	if got.Kind != full.Kind || got.Text != "" || got.Report != full.Report || got.Schedule != "30 9 * * 1-5" || got.Zone != "Europe/Berlin" ||
		got.Overlap != full.Overlap || got.Misfire != full.Misfire || got.MisfireCap != 7 || got.Retry != full.Retry || got.TimeoutS != 60 ||
		got.Priority != 1 || got.Concurrency != full.Concurrency || !got.AtMostOnce || !*got.Paused || got.Version != 1 ||
		got.Room != "Reports" || got.NextAt.IsZero() || got.Webhook || !strings.Contains(got.Description, "09:30") {
		t.Errorf("got %+v", got)
	}
	// What may hold secrets is for administrators.
	for _, list := range [][]tasks.Task{all(t, r, r.member), {must(r.tasks.Get(t.Context(), r.member, "call"))}} {
		seen := list[0].HTTP
		if seen.Method != http.MethodPost || seen.URL != "https://example.com" || seen.Header != nil || seen.Body != "" {
			t.Errorf("a member sees %+v", seen)
		}
	}

	r.create(t, r.message("plain"))
	got = must(r.tasks.Get(t.Context(), r.member, "plain"))
	if got.Kind != tasks.KindMessage || got.HTTP != nil || got.Report != "" || got.Zone != "UTC" || got.Overlap != coord.OverlapForbid ||
		got.Misfire != coord.MisfireLatest || got.MisfireCap != 10 || got.Retry != (tasks.Retry{3, 1, 3600}) || got.Priority != 2 ||
		*got.Paused || got.Description != "only when somebody runs it" {
		t.Errorf("got %+v", got)
	}
}

func all(t *testing.T, r *rig, by store.User) []tasks.Task {
	t.Helper()
	list, err := r.tasks.List(t.Context(), by)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestUpdate(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	d := r.message("report")
	d.Schedule = "@every 1h"
	first := r.create(t, d)

	mine := first.Definition
	mine.Text = "mine"
	second, err := r.tasks.Update(ctx, r.member, "report", mine)
	if err != nil || second.Text != "mine" || second.Version != first.Version+1 || !second.NextAt.Equal(first.NextAt) {
		t.Fatalf("got %+v, %v", second, err)
	}
	theirs := first.Definition
	theirs.Text = "theirs"
	_, err = r.tasks.Update(ctx, r.member, "report", theirs)
	reason, ok := errors.AsType[*store.ReasonError](err)
	if !ok || !errors.Is(err, coord.ErrConflict) || reason.Reason != "changed by somebody else meanwhile" {
		t.Errorf("an old version: got %v", err)
	}
	if got := must(r.tasks.Get(ctx, r.member, "report")); got.Text != "mine" {
		t.Errorf("got %+v, want it as the first left it", got)
	}

	// A task that is paused stays so unless the edit says otherwise.
	if _, err := r.tasks.Pause(ctx, r.member, "report", true); err != nil {
		t.Fatal(err)
	}
	edit := must(r.tasks.Get(ctx, r.member, "report")).Definition
	edit.Paused, edit.Name = nil, ""
	got, err := r.tasks.Update(ctx, r.member, "report", edit)
	if err != nil || !*got.Paused {
		t.Errorf("got %+v, %v", got, err)
	}
	edit, off := got.Definition, false
	edit.Paused = &off
	if got, err = r.tasks.Update(ctx, r.member, "report", edit); err != nil || *got.Paused {
		t.Errorf("got %+v, %v", got, err)
	}

	edit = got.Definition
	edit.Name = "other"
	_, err = r.tasks.Update(ctx, r.member, "report", edit)
	wantField(t, err, "name")
	edit.Name, edit.Version = "report", 0
	_, err = r.tasks.Update(ctx, r.member, "report", edit)
	wantField(t, err, "version")
	edit = got.Definition
	edit.Schedule = "x"
	_, err = r.tasks.Update(ctx, r.member, "report", edit)
	wantField(t, err, "schedule")
	if _, err := r.tasks.Update(ctx, r.member, "none", got.Definition); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("no such task: got %v", err)
	}
	_, err = r.tasks.Create(ctx, r.member, r.message("report"))
	if reason, ok := errors.AsType[*store.ReasonError](err); !ok || reason.Field != "name" || !errors.Is(err, coord.ErrConflict) {
		t.Errorf("a name that is taken: got %v", err)
	}
}

// Somebody pauses a task while the edit of somebody else is under way: neither undoes the
// other unseen.
func TestPauseMeetsAnEdit(t *testing.T) {
	r := newRig(t)
	edit := r.create(t, r.message("report")).Definition
	edit.Text, edit.Paused = "edited", nil
	paused := 0
	s := r.on(spied{Backend: r.backend, task: func() {
		if paused++; paused == 1 {
			must(r.tasks.Pause(t.Context(), r.member, "report", true))
		}
	}})
	if _, err := s.Update(t.Context(), r.member, "report", edit); !errors.Is(err, coord.ErrConflict) {
		t.Errorf("the edit: got %v, want a conflict", err)
	}
	if got := must(r.tasks.Get(t.Context(), r.member, "report")); !*got.Paused || got.Text != "done" {
		t.Errorf("got %+v, want it paused", got)
	}

	edited := 0
	edit.Version = must(r.tasks.Get(t.Context(), r.member, "report")).Version
	s = r.on(spied{Backend: r.backend, task: func() {
		if edited++; edited == 1 {
			must(r.tasks.Update(t.Context(), r.member, "report", edit))
		}
	}})
	if got, err := s.Pause(t.Context(), r.member, "report", false); err != nil || *got.Paused || got.Text != "edited" {
		t.Errorf("got %+v, %v, want both", got, err)
	}
	before := must(r.tasks.Get(t.Context(), r.member, "report"))
	if got := must(r.tasks.Pause(t.Context(), r.member, "report", false)); got.Version != before.Version {
		t.Errorf("nothing was to be done: got %+v", got)
	}
}

func TestOnlyAdministratorsMakeRequests(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, tasks.ErrAdminOnly) {
			t.Errorf("%s: got %v, want a refusal", what, err)
		}
	}
	call, post := r.request("call", "https://example.com"), r.message("post")
	_, err := r.tasks.Create(ctx, r.member, call)
	refused("a new request", err)
	call, post = r.create(t, call).Definition, r.create(t, post).Definition

	_, err = r.tasks.Update(ctx, r.member, "call", call)
	refused("a change of a request", err)
	become := post
	become.Version = call.Version
	become.Name = "call"
	_, err = r.tasks.Update(ctx, r.member, "call", become)
	refused("a request that becomes a message", err)
	become = call
	become.Name = "post"
	_, err = r.tasks.Update(ctx, r.member, "post", become)
	refused("a message that becomes a request", err)
	_, err = r.tasks.MakeWebhook(ctx, r.member, "post", 0)
	refused("a webhook", err)
	refused("the end of a webhook", r.tasks.RemoveWebhook(ctx, r.member, "post"))

	become.Version = post.Version
	if got, err := r.tasks.Update(ctx, r.admin, "post", become); err != nil || got.Kind != tasks.KindHTTP {
		t.Errorf("an administrator: got %+v, %v", got, err)
	}
}
