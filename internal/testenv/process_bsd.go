//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package testenv

import (
	"bytes"
	"context"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// serverAttributes cannot tie the server to this process here: it stays in the process
// group, where an interrupt at the terminal reaches it, and the next start ends a leftover.
func (a *account) serverAttributes() *syscall.SysProcAttr { return a.attributes() }

func memoryFolders() []string { return nil }

// commandHas says whether a process runs and has an argument on its command line.
func commandHas(pid int, argument string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	line, err := exec.CommandContext(ctx, "ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && bytes.Contains(line, []byte(argument))
}
