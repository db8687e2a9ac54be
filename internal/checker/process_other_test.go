//go:build unix && !linux

package checker

import "syscall"

// dieWithParent does nothing where the kernel offers nothing.
func dieWithParent() *syscall.SysProcAttr { return nil }
