package hub

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	lingerTime  = time.Second
	lingerBytes = 1 << 20
)

// hijackWriter gives out its connection as a lingerConn.
type hijackWriter struct {
	http.ResponseWriter
	took func(*lingerConn)
}

func (w hijackWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	linger := &lingerConn{Conn: conn}
	w.took(linger)
	return linger, rw, nil
}

// lingerConn closes so that the close frame arrives: a connection that is closed
// with bytes unread is reset, and a reset can overtake what was written last.
type lingerConn struct {
	net.Conn
	once    sync.Once
	closing atomic.Bool
}

// Close ends the writing side, reads on for a moment until the client closes
// too, and closes.
func (c *lingerConn) Close() error {
	var err error
	c.once.Do(func() {
		c.closing.Store(true)
		if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			_ = c.Conn.SetReadDeadline(time.Now().Add(lingerTime))
			_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
		}
		err = c.Conn.Close()
	})
	return err
}

// SetReadDeadline does nothing while the connection lingers.
func (c *lingerConn) SetReadDeadline(t time.Time) error {
	if c.closing.Load() {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

// abort closes at once, also under a Close or Write that is waiting.
func (c *lingerConn) abort() { _ = c.Conn.Close() }
