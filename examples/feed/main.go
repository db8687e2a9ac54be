// Command feed is a page of notes that everyone sees at once: the row of a note and the event that tells
// of it are written in one transaction, and each page hears of it over a WebSocket that it resumes by
// position, from any process that has the same database: a file (feed.db by default), postgres://… or
// memory:
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"

	"github.com/gorilla/websocket"

	"github.com/tandemhq/tandem/coord"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8090", "where to listen")
	flag.Parse()
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt)
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", *addr)
	if err == nil {
		err = run(ctx, append(flag.Args(), "feed.db")[0], listener, log)
	}
	if err != nil {
		log.Error("stopped", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, database string, listener net.Listener, log *slog.Logger) error {
	defer listener.Close()
	backend, err := open(ctx, database)
	if err != nil {
		return err
	}
	defer backend.Close(context.WithoutCancel(ctx))
	log.Info("open", "page", "http://"+listener.Addr().String())
	return serve(ctx, listener, map[string]handler{
		"POST /notes": func(_ http.ResponseWriter, r *http.Request) error { return add(backend, r) },
		"GET /feed":   func(w http.ResponseWriter, r *http.Request) error { return stream(backend, w, r) },
	})
}

// add writes a note and its event, or neither.
func add(backend coord.Backend, r *http.Request) error {
	note, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	return backend.InTx(r.Context(), func(ctx context.Context, tx coord.Tx) error {
		if err := exec(ctx, tx, `INSERT INTO notes VALUES (?)`, string(note)); err != nil {
			return err
		}
		payload, _ := json.Marshal(string(note)) // never fails
		return tx.Publish(ctx, coord.NewEvent{Topic: "notes", Kind: "note.added", Payload: payload})
	})
}

// stream sends what follows the position that a page asks for, until the page has gone. After any other
// error the page comes again.
func stream(backend coord.Backend, w http.ResponseWriter, r *http.Request) error {
	from, err := coord.ParsePosition(r.URL.Query().Get("from"))
	if err != nil {
		return err
	}
	notes, err := backend.Broadcaster().Subscribe(r.Context(), map[string]coord.Position{"notes": from})
	if err != nil {
		return err
	}
	defer notes.Close()
	ws, err := new(websocket.Upgrader).Upgrade(w, r, nil)
	if err != nil {
		return nil // it has been told already
	}
	defer ws.Close()
	go notice(ws, notes.Close)
	for err == nil {
		var list []coord.Event
		list, err = notes.Next(r.Context())
		if reset, ok := errors.AsType[*coord.ResetError](err); ok { // history is gone: say so
			err = send(ws, frame{Position: reset.Head, Reset: reset.Reason})
		}
		for _, e := range list {
			err = errors.Join(err, send(ws, frame{Position: e.Position, Note: e.Payload}))
		}
	}
	return nil
}
