//go:build unix && !(linux && amd64)

package stress

import (
	"os/exec"
	"time"
)

// shifts says whether startShifted can shift clocks here.
const shifts = false

// startShifted starts a program, with the machine's clock.
func startShifted(cmd *exec.Cmd, _ time.Duration) error { return cmd.Start() }
