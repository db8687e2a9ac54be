package tasks

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
)

// FuzzDefinition wants that whatever is wrong with a task is told by a field of the form, and that a task
// without a fault can be stored.
func FuzzDefinition(f *testing.F) {
	for _, text := range []string{
		`{"name":"tick","text":"hello","schedule":"*/5 * * * *","zone":"Europe/Berlin"}`,
		`{"name":"get","kind":"http","http":{"url":"https://example.com"},"report":"never","timeout_s":30}`,
		`{"name":"x","kind":"http","http":{"url":"https://example.com","timeout_s":-1}}`,
		`{"name":"x","text":"t","schedule":"@at 2026-12-24 18:00","zone":"Mars/Olympus"}`,
		`{"name":"x","text":"t","retry":{"max_attempts":101,"backoff_s":10,"max_backoff_s":1}}`,
		`{"name":"x","text":"t","concurrency":{"limit":1}}`, `{"name":"x","text":"t","concurrency":{"key":"\u0000","limit":-1}}`,
		`{"name":"x","text":"t","overlap":"maybe","misfire":"all","misfire_cap":1001,"priority":5,"at_most_once":true}`,
		`{"name":"a/b"}`, `{"name":".."}`, `{"name":"\u202e"}`, `{"name":"x","kind":"nonsense"}`, `{"name":"x","text":"t","version":-1}`,
		`{"name":"x","text":"t","zone":" ","schedule":" "}`, `{"name":"x","text":"t","timeout_s":9223372036854775807}`,
	} {
		f.Add([]byte(text))
	}
	backend := memory.Open(memory.Options{})
	f.Cleanup(func() {
		if err := backend.Close(f.Context()); err != nil {
			f.Error(err)
		}
	})
	fields := map[string]bool{"text": true, "kind": true, "report": true, "http": true}
	for _, field := range formFields {
		fields[field] = true
	}
	for _, field := range []string{"method", "url", "headers", "body", "expect_status", "timeout_s"} {
		fields["http."+field] = true
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var d Definition
		if json.Unmarshal(text, &d) != nil {
			return
		}
		task, err := d.task()
		if err == nil {
			task.Version = 0 // of a new one
			if task, err = backend.Claimer().PutTask(t.Context(), task); err == nil {
				if err := backend.Claimer().DeleteTask(t.Context(), task.Name); err != nil {
					t.Fatal(err)
				}
			}
			err = formError(err)
		}
		bad, ok := errors.AsType[*coord.InvalidError](err)
		if err != nil && (!ok || !fields[bad.Field] || bad.Reason == "" || strings.Contains(bad.Reason, "Task.")) {
			t.Errorf("%s: %#v", text, err)
		}
	})
}
