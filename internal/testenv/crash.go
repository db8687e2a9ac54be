package testenv

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// Crash ends the server without a chance to save anything: when it is not kind, by SIGKILL of the
// process that the others are children of, which end when they notice, else as pg_ctl stop -m
// immediate does. Restart starts it again. The server must be one that StartCluster has started.
func (c *Cluster) Crash(kind bool) error {
	s := c.own()
	if s == nil {
		return errForeign
	}
	signal := os.Kill
	if kind {
		signal = signalImmediate
	}
	if err := s.Signal(signal); err != nil && !s.Ended() {
		return fmt.Errorf("crash: %w", err)
	}
	<-s.Exited()
	return nil
}

// Ended reports whether the server has ended, by Crash or by itself.
func (c *Cluster) Ended() bool {
	s := c.own()
	return s != nil && s.Ended()
}

// Restart starts a server that has ended anew, at the same address and with the same data and
// settings, and returns when it takes connections. As long as processes of the one before are
// there it waits for them, until ctx ends.
func (c *Cluster) Restart(ctx context.Context) error {
	old := c.own()
	if old == nil {
		return errForeign
	}
	<-old.Exited()
	ready := func() bool {
		s, err := readStatus(c.folder.data())
		return err == nil && s.state == statusReady && s.pid != old.Cmd.Process.Pid
	}
	for {
		s, err := c.start(ctx, ready)
		if err == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.server = s
			return nil
		}
		log, _ := c.Log()
		if !strings.Contains(log, "pre-existing shared memory block") {
			return fmt.Errorf("restart: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("restart: %w", err)
		case <-time.After(recoverTime):
		}
	}
}
