package check

import (
	"bytes"
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
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

// transcript is what a process has written so far.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// tail is the end of a long text.
func tail(text string) string {
	const most = 4000
	return text[max(0, len(text)-most):]
}

// process is a run of a program.
type process struct {
	cmd    *exec.Cmd
	output transcript
	exited chan struct{}
}

// start runs a program in a folder of its own, with no other variables of the environment than those given. It is
// killed at the end of the test, and what it has written is shown when the test failed.
func start(t *testing.T, name string, env []string, input, path string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), path, args...), exited: make(chan struct{})}
	p.cmd.Dir = t.TempDir()
	p.cmd.Env = append([]string{}, env...)
	p.cmd.Stdin = strings.NewReader(input)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = dieWithParent()
	started := make(chan error)
	go func() {
		// The kernel ends the process when the thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		if t.Failed() {
			t.Logf("%s wrote:\n%s", name, tail(p.output.String()))
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
