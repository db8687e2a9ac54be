package stress

import "syscall"

// dieWithParent makes the kernel end a replica when the test ends, however it does.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
