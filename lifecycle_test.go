package main

import (
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// A replica that was told to stop goes on serving for its grace, and a second signal ends it at
// once, with the exit code of that signal.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	r := serve(t, "one", newDatabase(t), "--drain-grace", "10m", "--shutdown-timeout", "20m")
	r.signal(syscall.SIGTERM)
	p := newPerson(t)
	eventually(t, func() string {
		a, err := p.ask("GET", r.url+"/healthz/ready", nil)
		if err != nil {
			t.Fatal(err)
		}
		if a.status != http.StatusServiceUnavailable {
			return "a program that is stopping says that it is ready"
		}
		return ""
	})
	p.want(http.StatusOK, "GET", r.url+"/healthz/live", nil, nil)
	r.signal(syscall.SIGTERM)
	if code := r.wait(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("it ended with code %d", code)
	}
}

// A replica says of each part when it has stopped, and how long that took.
func TestStopIsTold(t *testing.T) {
	t.Parallel()
	r := serve(t, "one", newDatabase(t))
	r.signal(syscall.SIGTERM)
	if code := r.wait(); code != 0 {
		t.Errorf("it ended with code %d", code)
	}
	told := map[string]bool{}
	for _, match := range regexp.MustCompile(`msg="a part has stopped" part=(\w+) took=\d`).FindAllStringSubmatch(r.stderr.String(), -1) {
		told[match[1]] = true
	}
	for _, part := range []string{"sockets", "requests", "runs", "background"} {
		if !told[part] {
			t.Errorf("nothing is told of the end of %s", part)
		}
	}
	if !strings.Contains(r.stderr.String(), "tandem has stopped") {
		t.Error("the end is not told of")
	}
}
