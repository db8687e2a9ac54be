//go:build unix

package sqlite

import "syscall"

// mayWrite asks the system, without opening the file: closing it would give up SQLite's locks on it.
func mayWrite(path string) error {
	const write = 2 // W_OK
	return syscall.Access(path, write)
}
