package pg

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"
)

// Data that nobody acknowledges ends the connection; a socket of the file system
// knows no such thing.
func TestUserTimeout(t *testing.T) {
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "socket")} {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		conn, err := dialer().DialContext(t.Context(), network, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if network != "tcp" {
			continue
		}
		raw, err := conn.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var timeout int
		if err := raw.Control(func(fd uintptr) { timeout, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, 0x12) }); err != nil {
			t.Fatal(err)
		}
		if err != nil || timeout != int(deadPeer.Milliseconds()) {
			t.Errorf("TCP_USER_TIMEOUT is %d ms, %v", timeout, err)
		}
	}
}
