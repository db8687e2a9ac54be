package pg

import (
	"syscall"
	"time"
)

// userTimeout bounds how long what was sent may stay unacknowledged. Meanwhile
// no keepalive is sent, and the kernel's own patience is a quarter of an hour.
func userTimeout(socket syscall.RawConn, d time.Duration) (err error) {
	const tcpUserTimeout = 0x12 // linux/tcp.h
	cerr := socket.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds()))
	})
	if cerr != nil {
		return cerr
	}
	return err
}
