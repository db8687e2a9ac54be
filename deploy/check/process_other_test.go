//go:build !linux

package check

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
