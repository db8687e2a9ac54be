package stand

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// transcript is the end of what a process has written.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// transcriptMost bounds a transcript; the first half goes when it is full.
const transcriptMost = 8 << 20

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text.Len() > transcriptMost {
		t.text.Next(transcriptMost / 2)
	}
	return t.text.Write(p)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// Process is a program that was started. It ends with this one, however that ends.
type Process struct {
	Name   string
	cmd    *exec.Cmd
	output transcript
	exited chan struct{}
}

// Launch starts a program with no other variables of the environment than those given.
func Launch(name string, env, command []string, input string) (*Process, error) {
	// It is not bound to a context: its end is a part of what is done.
	p := &Process{Name: name, cmd: exec.Command(command[0], command[1:]...), exited: make(chan struct{})} //nolint:noctx // see above
	p.cmd.Dir = os.TempDir()
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
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
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// Pid is its process number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Output is what it has written, the end of it if that was much.
func (p *Process) Output() string { return p.output.String() }

// Exited is closed when it has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Ended reports whether it has.
func (p *Process) Ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Signal sends it a signal.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	return nil
}

// Kill ends it as kill -9 does, and waits for that.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// Wait waits until it has ended, and returns with which code; a signal is -1.
func (p *Process) Wait(ctx context.Context) (code int, err error) {
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s has not ended: %w", p.Name, ctx.Err())
	}
}

// Freeze stops it where it is, and Thaw lets it go on.
func (p *Process) Freeze() error { return p.Signal(syscall.SIGSTOP) }

// Thaw lets a process go on that Freeze has stopped.
func (p *Process) Thaw() error { return p.Signal(syscall.SIGCONT) }

// tail is the end of a long text.
func tail(text string) string {
	const most = 3000
	return text[max(0, len(text)-most):]
}

// FreePort finds a port that no connection is given by chance, so that a server which was away finds its own
// free.
func FreePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	var err error
	for range 1000 {
		port := 20000 + rand.IntN(12000)
		var l net.Listener
		if l, err = lc.Listen(ctx, "tcp4", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}

// Pause waits for a time, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ErrUnready is in the chain of what is returned when something that was to come did not.
var ErrUnready = errors.New("it did not come")

// Patience is how long is waited for what must happen soon, on a busy machine too.
const Patience = 90 * time.Second

// Await waits until nothing is missing any more.
func Await(ctx context.Context, what string, missing func() string) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for {
		lack := missing()
		if lack == "" {
			return nil
		}
		if err := Pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%w: %s: %s: %w", ErrUnready, what, lack, err)
		}
	}
}
