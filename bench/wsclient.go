package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// listener is a WebSocket client that costs little: of a message it finds the letters,
// and decodes nothing else. Thousands of them share the cores with the server.
type listener struct {
	conn net.Conn
	r    *bufio.Reader
	buf  []byte
}

// dialListener opens a socket; headers end with \r\n each.
func dialListener(ctx context.Context, addr, path, headers string) (*listener, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	l := &listener{conn: conn, r: bufio.NewReaderSize(conn, 4<<10)}
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGFuZGVtLWJlbmNobWFyaw==\r\n%s\r\n", path, addr, headers)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	answer, err := http.ReadResponse(l.r, nil)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusSwitchingProtocols {
		return nil, errors.Join(fmt.Errorf("the upgrade was answered with %s", answer.Status), conn.Close())
	}
	return l, nil
}

// The kinds of frames, and their bits.
const (
	frameText  = 1
	frameClose = 8
	framePing  = 9
	framePong  = 10
	frameFinal = 0x80
)

// say sends a short message; its mask is zero, which is a mask.
func (l *listener) say(kind byte, message []byte) error {
	head := []byte{frameFinal | kind, 0x80 | byte(len(message))}
	if len(message) > 125 {
		head[1] = 0x80 | 126
		head = binary.BigEndian.AppendUint16(head, uint16(len(message)))
	}
	_, err := l.conn.Write(append(append(head, 0, 0, 0, 0), message...))
	return err
}

// next returns the next message of the server, which is valid until the next call.
func (l *listener) next() ([]byte, error) {
	for {
		head, err := l.r.Peek(2)
		if err != nil {
			return nil, err
		}
		kind, size := head[0]&15, int(head[1]&127)
		_, _ = l.r.Discard(2)
		if long := map[int]int{126: 2, 127: 8}[size]; long > 0 {
			var b [8]byte
			if _, err := io.ReadFull(l.r, b[8-long:]); err != nil {
				return nil, err
			}
			size = int(binary.BigEndian.Uint64(b[:]))
		}
		if cap(l.buf) < size {
			l.buf = make([]byte, size)
		}
		l.buf = l.buf[:size]
		if _, err := io.ReadFull(l.r, l.buf); err != nil {
			return nil, err
		}
		switch kind {
		case frameClose:
			return nil, fmt.Errorf("closed by the server: %q", l.buf)
		case framePing:
			if err := l.say(framePong, bytes.Clone(l.buf)); err != nil {
				return nil, err
			}
		default:
			return l.buf, nil
		}
	}
}

// letterMark begins each letter, see letter.encode.
var letterMark = []byte(`{"t":`)

// stampDigits is how many a time has: until the year 2286.
const stampDigits = 19

// listen calls got for each message with the number of letters in it and when the first
// was sent, until the socket ends. pong answers a ping that is a message.
func (l *listener) listen(got func(letters int, sent time.Time), pong func(message []byte) []byte) error {
	for {
		m, err := l.next()
		if err != nil {
			return err
		}
		if answer := pong(m); answer != nil {
			if err := l.say(frameText, answer); err != nil {
				return err
			}
		}
		i := bytes.Index(m, letterMark)
		if i < 0 || len(m) < i+len(letterMark)+stampDigits {
			continue
		}
		nanos, err := strconv.ParseInt(string(m[i+len(letterMark):][:stampDigits]), 10, 64)
		if err != nil {
			return err
		}
		got(bytes.Count(m, letterMark), time.Unix(0, nanos))
	}
}
