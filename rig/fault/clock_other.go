//go:build !(linux && amd64)

package fault

import (
	"errors"
	"time"
)

// ShiftClock fails: it is made for Linux on amd64.
func ShiftClock(int, time.Duration) error {
	return errors.New("the clock of a process can be shifted on Linux and amd64 only")
}
