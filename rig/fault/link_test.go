package fault

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo is a server that sends back what it is sent.
func echo(t *testing.T) (address string, got chan string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	got = make(chan string, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					got <- lines.Text()
					_, _ = io.WriteString(conn, lines.Text()+"\n")
				}
			}()
		}
	}()
	return listener.Addr().String(), got
}

// visitor sends lines and reads what comes back.
type visitor struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func visit(t *testing.T, address string) *visitor {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &visitor{t, conn, bufio.NewReader(conn)}
}

// ask sends a line. The answer is "nothing" when none comes within a while, and "end" when the
// connection ends.
func (v *visitor) ask(line string, within time.Duration) string {
	v.t.Helper()
	if _, err := io.WriteString(v.conn, line+"\n"); err != nil {
		return "end"
	}
	_ = v.conn.SetReadDeadline(time.Now().Add(within))
	answer, err := v.in.ReadString('\n')
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "nothing"
	case err != nil:
		return "end"
	}
	return answer[:len(answer)-1]
}

const (
	long  = 20 * time.Second
	short = 200 * time.Millisecond
)

func TestLink(t *testing.T) {
	server, got := echo(t)
	link, err := NewLink("127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	good := func(v *visitor) {
		t.Helper()
		check("a good link", v.ask("a", long), "a")
		check("the server", <-got, "a")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	old := visit(t, link.Addr())
	good(old)

	must(link.Swallow())
	check("a swallowed question", old.ask("b", short), "nothing")
	check("one on a new connection", visit(t, link.Addr()).ask("b", short), "nothing")
	link.Mend()
	check("after it", old.ask("c", long), "end")
	good(visit(t, link.Addr()))

	must(link.Swallow(FromServer))
	check("a swallowed answer", visit(t, link.Addr()).ask("d", short), "nothing")
	check("the server", <-got, "d")
	link.Mend()

	must(link.Reset())
	check("a reset", visit(t, link.Addr()).ask("e", long), "end")
	link.Mend()

	must(link.CutAnswers(1))
	check("a cut answer", visit(t, link.Addr()).ask("g", long), "end")
	check("the server", <-got, "g")
	link.Mend()

	good(visit(t, link.Addr()))
	if len(got) > 0 {
		t.Errorf("the server got %q as well", <-got)
	}
}
