package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/centrifugal/centrifuge"
	"github.com/olahol/melody"
)

// fanoutServer is one that delivers what publish says to all sockets of its room.
type fanoutServer func(ctx context.Context, mux *http.ServeMux) (publish func(ctx context.Context, payload []byte) error, err error)

var fanoutServers = map[string]fanoutServer{
	"ours": serveHub, "past": servePast, "floor": serveFloor, "melody": serveMelody, "centrifuge": serveCentrifuge,
}

var diallers = map[string]dialler{
	"ours": dialHub, "past": dialHub, "floor": dialPlain, "melody": dialPlain, "centrifuge": dialCentrifuge,
}

// serve is what a process of a fan-out server does, until its input ends.
func serve(ctx context.Context, name string, in io.Reader, out io.Writer) error {
	start, ok := fanoutServers[name]
	if !ok {
		return fmt.Errorf("%s is %q, which is no server", serveVariable, name)
	}
	mux := http.NewServeMux()
	publish, err := start(ctx, mux)
	if err != nil {
		return err
	}
	control := func(path string, do func(w http.ResponseWriter, r *http.Request) error) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			if err := do(w, r); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})
	}
	control("/publish", func(_ http.ResponseWriter, r *http.Request) error {
		return publish(r.Context(), letter{Sent: time.Now().UnixNano()}.encode())
	})
	control("/usage", func(w http.ResponseWriter, _ *http.Request) error {
		u, err := ownUsage()
		if err != nil {
			return err
		}
		return json.NewEncoder(w).Encode(u)
	})
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		_, _ = io.Copy(io.Discard, in) // until whoever measures has ended
		_ = server.Close()
	}()
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return err
	}
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func ownUsage() (u usage, err error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return u, err
	}
	u.CPU = (r.Utime.Nano() + r.Stime.Nano()) / 1000
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return u, nil //nolint:nilerr // only Linux tells
	}
	for line := range strings.Lines(string(status)) {
		for name, into := range map[string]*int64{"VmRSS:": &u.RSS, "VmHWM:": &u.Peak} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				if *into, err = strconv.ParseInt(strings.Fields(rest)[0], 10, 64); err != nil {
					return u, err
				}
			}
		}
	}
	return u, nil
}

// serveFloor does the least that a server can: one goroutine a socket writes finished
// frames, all that wait at once.
func serveFloor(_ context.Context, mux *http.ServeMux) (func(context.Context, []byte) error, error) {
	var mu sync.Mutex
	var queues []chan []byte
	mux.HandleFunc("GET /ws", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		queue := make(chan []byte, 256)
		mu.Lock()
		queues = append(queues, queue)
		mu.Unlock()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		go func() {
			for frame := range queue {
				all := net.Buffers{frame}
				for more := true; more; {
					select {
					case frame := <-queue:
						all = append(all, frame)
					default:
						more = false
					}
				}
				if _, err := all.WriteTo(conn); err != nil {
					return
				}
			}
		}()
	})
	return func(_ context.Context, payload []byte) error {
		frame := append([]byte{frameFinal | frameText, 126, byte(len(payload) >> 8), byte(len(payload))}, payload...)
		mu.Lock()
		defer mu.Unlock()
		for _, queue := range queues {
			select {
			case queue <- frame:
			default:
				return errors.New("a socket is slow")
			}
		}
		return nil
	}, nil
}

func serveMelody(_ context.Context, mux *http.ServeMux) (func(context.Context, []byte) error, error) {
	m := melody.New()
	mux.HandleFunc("GET /ws", func(w http.ResponseWriter, r *http.Request) { _ = m.HandleRequest(w, r) })
	return func(_ context.Context, payload []byte) error { return m.Broadcast(payload) }, nil
}

func serveCentrifuge(_ context.Context, mux *http.ServeMux) (func(context.Context, []byte) error, error) {
	node, err := centrifuge.New(centrifuge.Config{})
	if err != nil {
		return nil, err
	}
	node.OnConnecting(func(context.Context, centrifuge.ConnectEvent) (centrifuge.ConnectReply, error) {
		return centrifuge.ConnectReply{
			Credentials:   &centrifuge.Credentials{},
			Subscriptions: map[string]centrifuge.SubscribeOptions{"room": {}},
		}, nil
	})
	mux.Handle("GET /ws", centrifuge.NewWebsocketHandler(node, centrifuge.WebsocketConfig{}))
	return func(_ context.Context, payload []byte) error {
		_, err := node.Publish("room", payload)
		return err
	}, node.Run()
}

func dialPlain(ctx context.Context, a *audience, _ bool) (*listener, error) {
	return dialListener(ctx, a.addr, "/ws", "")
}

func dialCentrifuge(ctx context.Context, a *audience, _ bool) (*listener, error) {
	l, err := dialListener(ctx, a.addr, "/ws", "")
	if err != nil {
		return nil, err
	}
	if err = l.say(frameText, []byte(`{"id":1,"connect":{}}`)); err == nil {
		_, err = l.next() // says that it is connected
	}
	if err != nil {
		return nil, errors.Join(err, l.conn.Close())
	}
	return l, nil
}

// centrifugePong answers its ping, which is an empty object, alone or behind others.
func centrifugePong(message []byte) []byte {
	if string(message) == "{}" || bytes.HasSuffix(message, []byte("\n{}")) {
		return []byte("{}")
	}
	return nil
}
