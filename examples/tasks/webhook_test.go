package tasks_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/webhook"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
)

// hook is the server that the document's script calls: it answers as the application does.
type hook struct {
	t       *testing.T
	secret  string
	claimer coord.Claimer
	calls   int
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.calls++
	if r.Method != http.MethodPost || r.URL.Path != "/hooks/v1/tasks/deploy-news" {
		h.t.Errorf("the script asks %s %s", r.Method, r.URL.Path)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		h.t.Error(err)
	}
	var content struct{ Text string }
	if err := json.Unmarshal(body, &content); err != nil || content.Text == "" {
		h.t.Errorf("the script sends %s: %v", body, err)
	}
	secret, err := webhook.ParseSecret(h.secret)
	if err != nil {
		h.t.Error(err)
	}
	if err := webhook.Verify(secret, r.Header, body, time.Now()); err != nil {
		h.t.Error(err)
	}
	run, err := h.claimer.Trigger(r.Context(), "deploy-news", coord.TriggerOptions{
		Key: "hook:" + r.Header.Get(webhook.HeaderID), Payload: body,
	})
	if err != nil {
		h.t.Error(err)
	}
	w.WriteHeader(http.StatusAccepted)
	_ = json.NewEncoder(w).Encode(map[string]any{"run_id": run.ID, "duplicate": run.Duplicate})
}

// TestWebhookScript runs the document's script twice, by sh with curl and openssl.
func TestWebhookScript(t *testing.T) {
	scripts := blocks(t, "sh")
	if len(scripts) != 1 {
		t.Fatalf("%s has %d scripts, want 1: which test runs the others?", document, len(scripts))
	}
	for _, program := range []string{"sh", "curl", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("install %s, which the script of %s needs: %v", program, document, err)
		}
	}
	secret := regexp.MustCompile(`whsec_[\w+/=]+`).FindString(scripts[0].text)
	b := memory.Open(memory.Options{})
	defer b.Close(t.Context())
	if _, err := b.Claimer().PutTask(t.Context(), coord.Task{Name: "deploy-news", Kind: "message"}); err != nil {
		t.Fatal(err)
	}
	h := &hook{t: t, secret: secret, claimer: b.Claimer()}
	server := httptest.NewServer(h)
	defer server.Close()
	script := strings.ReplaceAll(scripts[0].text, "https://chat.example.com", server.URL)
	for _, want := range []string{`{"duplicate":false,"run_id":1}`, `{"duplicate":true,"run_id":1}`} {
		var errs strings.Builder
		cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script)
		cmd.Env = append(cmd.Environ(), "no_proxy=*")
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("the script says %s, want %s (%v)\n%s", got, want, err, &errs)
		}
	}
	if h.calls != 2 {
		t.Errorf("the server was called %d times", h.calls)
	}
}
