//go:build !linux

package main

import "syscall"

// dieWithParent cannot be had here: the end of each test ends its processes.
func dieWithParent() *syscall.SysProcAttr { return nil }
