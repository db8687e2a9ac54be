// Package child starts programs for tests and for the failure rig, and ends them.
package child

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"sync"
)

// Process is a program that was started. On Linux it ends with this one, however that ends.
type Process struct {
	Cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts a command, which must not be bound to a context that ends before it is to.
func Start(cmd *exec.Cmd) (*Process, error) {
	endWithParent(cmd)
	p := &Process{Cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the program and waits for it on one thread: the kernel ends the process when the thread that
// started it ends, and Go ends idle threads as it likes.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.Cmd.Start()
	started <- err
	if err == nil {
		_ = p.Cmd.Wait()
		close(p.exited)
	}
}

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

// Code is the exit code of one that has ended, -1 after a signal.
func (p *Process) Code() int { return p.Cmd.ProcessState.ExitCode() }

// Signal sends it a signal: os.ErrProcessDone when it has ended.
func (p *Process) Signal(s os.Signal) error { return p.Cmd.Process.Signal(s) }

// Kill ends it as kill -9 does, and waits for that.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.exited
}

// Transcript is what a process has written, the end of it if that was much. It is safe for concurrent use.
type Transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// most bounds a transcript; the first half goes when it is full.
const most = 8 << 20

func (t *Transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text.Len() > most {
		t.text.Next(most / 2)
	}
	return t.text.Write(p)
}

func (t *Transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// Tail is the end of it, for people.
func (t *Transcript) Tail() string {
	const most = 4000
	text := t.String()
	return text[max(0, len(text)-most):]
}
