package check

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/internal/child"
)

// patience is how long a test waits for what must happen soon, on a busy machine too.
const patience = 2 * time.Minute

// program builds the program of driver pg.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tandem")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-tags=pg", "-o", path, ".")
	build.Dir = filepath.Join("..", "..")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, output)
	}
	return path
}

// process is a run of a program.
type process struct {
	*child.Process
	output child.Transcript
}

// start runs a program in a folder of its own, with no other variables of the environment than those given. It is
// killed at the end of the test, and what it has written is shown when the test failed.
func start(t *testing.T, name string, env []string, input, path string, args ...string) *process {
	t.Helper()
	p := &process{}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append([]string{}, env...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	var err error
	if p.Process, err = child.Start(cmd); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", name, p.output.Tail())
		}
	})
	return p
}

// freeAddress returns an address of this machine on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("that never came: %s", what)
		}
		pause(t.Context(), 20*time.Millisecond)
	}
}

// pause waits for a time, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
