package pg_test

import (
	"net/url"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// Every connection of a backend, that on which it listens too, is given up when its peer is dead:
// they have keepalive and TCP_USER_TIMEOUT.
func TestSocketsNoticeDeadPeers(t *testing.T) {
	c, err := testenv.StartCluster(t.Context(), testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	database := c.URL("postgres")
	if err := migrate(database); err != nil {
		t.Fatal(err)
	}
	log := newLines()
	b := openWith(t, pg.Options{URL: database, Poll: 50 * time.Millisecond, Options: log.options()})
	log.wait(t, "listening for other replicas", 1)
	publish(t, b, "a", "k") // a connection of the work pool
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	const userTimeout = 0x12
	sockets := 0
	for fd := range 1024 {
		peer, err := syscall.Getpeername(fd)
		if in, ok := peer.(*syscall.SockaddrInet4); err != nil || !ok || in.Port != port {
			continue
		}
		sockets++
		alive, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_KEEPALIVE)
		if err != nil || alive == 0 {
			t.Errorf("a connection without keepalive: %v", err)
		}
		timeout, err := syscall.GetsockoptInt(fd, syscall.IPPROTO_TCP, userTimeout)
		if err != nil || timeout == 0 {
			t.Errorf("a connection without TCP_USER_TIMEOUT: %v", err)
		}
	}
	if listening := len(listeners(t, admin(t, database))); sockets < 4 || listening != 1 {
		t.Errorf("%d connections were looked at, %d of them listening", sockets, listening)
	}
}
