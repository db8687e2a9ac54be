package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/tandemhq/tandem/internal/child"
)

// server is one run of a server program.
type server struct {
	*child.Process
	endings []ending
}

// ending is a signal that asks a server to end, and how long to wait for that.
type ending struct {
	signal os.Signal
	wait   time.Duration
}

// startServer starts a program and returns once ready says that it takes connections. ctx
// bounds the start only. The endings are tried in turn before the program is killed.
func startServer(
	ctx context.Context, f *folder, own *account, program string, args []string, ready func() bool, endings ...ending,
) (*server, error) {
	log, err := os.Create(f.log())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	// The server outlives ctx, so it must not be bound to it.
	cmd := exec.Command(program, args...) //nolint:noctx // see above
	cmd.Dir = f.path
	cmd.Env = serverEnv()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = own.serverAttributes()
	process, err := child.Start(cmd)
	if err != nil {
		return nil, err
	}
	s := &server{process, endings}
	if err := s.waitReady(ctx, ready); err != nil {
		s.stop()
		return nil, fmt.Errorf("%s %w; the end of its log:\n%s", filepath.Base(program), err, tail(f.log(), logLines))
	}
	return s, nil
}

func (s *server) waitReady(ctx context.Context, ready func() bool) error {
	deadline := time.NewTimer(readyTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.Exited():
			return fmt.Errorf("ended while it started: %s", s.Cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("was not ready in time: %w", context.Cause(ctx))
		case <-deadline.C:
			return fmt.Errorf("was not ready within %s", readyTimeout)
		case <-tick.C:
		}
		if ready() {
			return nil
		}
	}
}

func (s *server) stop() {
	for _, e := range s.endings {
		_ = s.Signal(e.signal)
		select {
		case <-s.Exited():
			return
		case <-time.After(e.wait):
		}
	}
	s.Kill()
}
