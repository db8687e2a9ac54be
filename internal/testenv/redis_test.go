package testenv

import (
	"io"
	"net"
	"testing"
)

func TestRedisAnswers(t *testing.T) {
	r, err := StartRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer := make([]byte, 7)
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "+PONG\r\n" {
		t.Errorf("it answers %q, %v", answer, err)
	}
}
