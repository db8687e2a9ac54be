package check

import "syscall"

// dieWithParent makes the kernel kill a process when this one ends, whatever ends it.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
