//go:build !linux

package pg

import (
	"syscall"
	"time"
)

// userTimeout: the system's own patience counts here.
func userTimeout(syscall.RawConn, time.Duration) error { return nil }
