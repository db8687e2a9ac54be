//go:build unix

package pg

import (
	"errors"
	"net"
	"syscall"
)

// silent reports whether the other end of an idle connection has said nothing.
// It has when it closed the connection, or is about to.
func silent(socket net.Conn) bool {
	raw, ok := socket.(syscall.Conn)
	if !ok {
		return true
	}
	conn, err := raw.SyscallConn()
	if err != nil {
		return false
	}
	var heard error
	err = conn.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, heard = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		return true
	})
	return err == nil && (errors.Is(heard, syscall.EAGAIN) || errors.Is(heard, syscall.EINTR))
}
