package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/tandemhq/tandem/app/hub"
	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/rooms"
	chat "github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
)

// everybody is the people and the rooms of the hub that is measured: whoever has a
// ticket is in, and may read what they ask for.
type everybody struct{ user chat.User }

func (e everybody) Session(_ context.Context, id int64) (chat.Session, error) {
	return chat.Session{ID: id, User: e.user}, nil
}

func (everybody) MayRead(context.Context, chat.User, ...int64) error { return nil }

var errNotMeasured = errors.New("this is not measured")

func (everybody) Post(context.Context, chat.User, int64, string, string) (chat.Message, bool, error) {
	return chat.Message{}, false, errNotMeasured
}

func (everybody) Typing(context.Context, chat.User, int64) error { return errNotMeasured }

func (everybody) MarkRead(context.Context, chat.User, int64, int64) error { return errNotMeasured }

const fanoutRoom = 1

// serveHub is the application's hub, with tickets, positions and history, on the memory
// driver.
func serveHub(ctx context.Context, mux *http.ServeMux) (func(context.Context, []byte) error, error) {
	backend := memory.Open(memory.Options{Retain: 20_000})
	log := slog.New(slog.DiscardHandler)
	all := everybody{user: chat.User{ID: 1, Name: "Ada", Role: chat.Member}}
	h := hub.New(backend, hub.Services{Sessions: all, Rooms: all}, metrics.New("bench", "memory"), hub.Options{PerPerson: 1 << 30}, log)
	mux.HandleFunc("GET /ws", func(w http.ResponseWriter, r *http.Request) {
		if err := h.Serve(w, r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("POST /ticket", func(w http.ResponseWriter, r *http.Request) {
		ticket, err := h.Ticket(r.Context(), chat.Session{ID: 1, User: all.user}, "")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprint(w, ticket.Secret)
	})
	events := backend.Broadcaster()
	return func(ctx context.Context, payload []byte) error {
		_, err := events.Publish(ctx, coord.NewEvent{Topic: rooms.Topic(fanoutRoom), Kind: rooms.KindMessage, Payload: payload})
		return err
	}, nil
}

func dialHub(ctx context.Context, a *audience, inRoom bool) (*listener, error) {
	ticket, err := a.call(ctx, "/ticket")
	if err != nil {
		return nil, err
	}
	l, err := dialListener(ctx, a.addr, "/ws", "Sec-WebSocket-Protocol: "+hub.Protocol+", "+hub.TicketProtocol+string(ticket)+"\r\n")
	if err != nil {
		return nil, err
	}
	if inRoom {
		err = l.say(frameText, fmt.Appendf(nil, `{"type":"subscribe","id":"1","topics":{%q:"head"}}`, rooms.Topic(fanoutRoom)))
	}
	for answered := !inRoom; err == nil && !answered; {
		var m []byte
		m, err = l.next()
		answered = strings.Contains(string(m), `"ack"`)
	}
	if err != nil {
		return nil, errors.Join(err, l.conn.Close())
	}
	return l, nil
}
