//go:build unix && !linux

package stress

import "syscall"

// dieWithParent does nothing where the kernel offers nothing.
func dieWithParent() *syscall.SysProcAttr { return nil }
