package checker

import "syscall"

// dieWithParent makes the kernel end a server when the test ends, however it does.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
