package main

import "syscall"

// dieWithParent makes the kernel end a process when the tests end, however they do.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
