package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/gorilla/websocket"

	"github.com/tandemhq/tandem/coord"
)

//go:embed index.html
var page []byte

// handler answers a request, or returns an error that is to be told.
type handler func(http.ResponseWriter, *http.Request) error

// serve serves the page and the handlers of patterns until ctx ends.
func serve(ctx context.Context, listener net.Listener, handlers map[string]handler) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page)
	})
	for pattern, handle := range handlers {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
			if err := handle(w, r); err != nil {
				http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			}
		})
	}
	server := &http.Server{
		Handler:           http.NewCrossOriginProtection().Handler(mux),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 10 * time.Second,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// frame is what a page gets: a note, or why its history is gone, and from where to resume.
type frame struct {
	Position coord.Position  `json:"position"`
	Note     json.RawMessage `json:"note,omitempty"`
	Reset    string          `json:"reset,omitempty"`
}

// send gives up on a page that takes nothing.
func send(ws *websocket.Conn, f frame) error {
	if err := ws.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	return ws.WriteJSON(f)
}

// notice calls a function when a page, which says nothing, has gone.
func notice(ws *websocket.Conn, gone func()) {
	_, _, _ = ws.NextReader()
	gone()
}
