package stand

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tandemhq/tandem/internal/child"
)

// Process is a program that was started. It ends with this one, however that ends.
type Process struct {
	Name string
	*child.Process
	output child.Transcript
}

// Launch starts a program with no other variables of the environment than those given.
func Launch(name string, env, command []string, input string) (*Process, error) {
	p := &Process{Name: name}
	// It is not bound to a context: its end is a part of what is done.
	cmd := exec.Command(command[0], command[1:]...) //nolint:noctx // see above
	cmd.Dir = os.TempDir()
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	var err error
	if p.Process, err = child.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// Pid is its process number.
func (p *Process) Pid() int { return p.Cmd.Process.Pid }

// Output is what it has written, the end of it if that was much.
func (p *Process) Output() string { return p.output.String() }

// Signal sends it a signal.
func (p *Process) Signal(s os.Signal) error {
	if err := p.Process.Signal(s); err != nil {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	return nil
}

// Wait waits until it has ended, and returns with which code; a signal is -1.
func (p *Process) Wait(ctx context.Context) (code int, err error) {
	select {
	case <-p.Exited():
		return p.Code(), nil
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
