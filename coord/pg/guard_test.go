package pg

import (
	"context"
	"net"
	"testing"
)

// soundConn is a connection of lib/pq that took no notice of any context.
type soundConn struct{ pqConn }

func (soundConn) IsValid() bool                      { return true }
func (soundConn) ResetSession(context.Context) error { return nil }

// A context that ends at the moment when the answer comes may leave the socket
// with a deadline, which would end somebody else's request.
func TestLateEndOfContextSpoilsTheConnection(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	conn, err := guard(soundConn{}, client, &era{&route{}, make(chan struct{})}, false)
	if err != nil {
		t.Fatal(err)
	}
	g := conn.(*guarded)
	ctx, cancel := context.WithCancel(t.Context())
	_, release := g.watch(ctx)
	release()
	cancel()
	if !g.IsValid() || g.ResetSession(t.Context()) != nil {
		t.Error("a context that ended after the answer spoilt the connection")
	}
	_, release = g.watch(ctx)
	release()
	if g.IsValid() || g.ResetSession(t.Context()) == nil {
		t.Error("the connection goes back into the pool with a deadline")
	}
}
