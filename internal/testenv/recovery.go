package testenv

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	standbyName = "standby.signal"
	promoteName = "promote"
	recoverTime = 20 * time.Millisecond // between two looks whether a recovery is over
)

// errForeign is the answer for a server that this process has not started.
var errForeign = errors.New("the server is somebody else's")

// Recover stops the server, which cuts its connections, and starts it anew at the same
// address as a standby without a primary: it is in recovery until Promote ends that. When it
// is hot it takes connections and refuses whatever writes (25006), and otherwise it refuses
// connections (57P03). The server must be one that StartCluster has started, not the shared one.
func (c *Cluster) Recover(ctx context.Context, hot bool) error {
	s := c.own()
	if s == nil {
		return errForeign
	}
	s.stop()
	if err := signal(c.folder, c.account, standbyName); err != nil {
		return err
	}
	setting, state := "hot_standby=off", statusStandby
	if hot {
		setting, state = "hot_standby=on", statusReady
	}
	s, err := c.start(ctx, func() bool {
		status, err := readStatus(c.folder.data())
		return err == nil && status.state == state
	}, setting)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = s
	return nil
}

// Promote ends the recovery that Recover began, and returns when the server takes writes.
func (c *Cluster) Promote(ctx context.Context) error {
	s := c.own()
	if s == nil {
		return errForeign
	}
	if err := signal(c.folder, c.account, promoteName); err != nil {
		return err
	}
	if err := s.Signal(signalPromote); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return c.admin(ctx, func(conn *sql.Conn) error {
		for {
			var recovering bool
			if err := conn.QueryRowContext(ctx, `SELECT pg_is_in_recovery()`).Scan(&recovering); err != nil || !recovering {
				return err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("the server is still in recovery: %w", ctx.Err())
			case <-time.After(recoverTime):
			}
		}
	})
}

// signal makes a file that tells the server something.
func signal(f *folder, own *account, name string) error {
	path := filepath.Join(f.data(), name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	return own.chown(path)
}

// Log returns what the server has logged since it was last started.
func (c *Cluster) Log() (string, error) {
	if c.own() == nil {
		return "", errForeign
	}
	text, err := os.ReadFile(c.folder.log())
	return string(text), err
}
