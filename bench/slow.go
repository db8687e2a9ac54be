package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tandemhq/tandem/app/rooms"
)

// pastEvents are fewer than the hub's store keeps, and more than the system and the hub keep for a
// client that reads nothing.
const pastEvents = 15_000

// servePast is the application's hub with a room in which much was said already.
func servePast(ctx context.Context, mux *http.ServeMux) (func(context.Context, []byte) error, error) {
	publish, err := serveHub(ctx, mux)
	if err != nil {
		return nil, err
	}
	for range pastEvents {
		if err := publish(ctx, letter{Sent: time.Now().UnixNano()}.encode()); err != nil {
			return nil, err
		}
	}
	return publish, nil
}

// measureSlow measures how long an event takes to sockets that are quick while one more
// follows the room from its beginning and reads nothing, beside the same hub without that one.
func measureSlow(ctx context.Context, _ subject, length time.Duration, prepares func(string)) (row, error) {
	sockets := 1000
	if length < 100*time.Millisecond { // only to see that all works
		sockets = 20
	}
	prepares(fmt.Sprintf("opening %d sockets", 2*sockets))
	var beside [2]*audience // with the slow one, and without
	for i := range beside {
		a, err := openAudience(ctx, "past", room{sockets: sockets})
		if err != nil {
			return row{}, err
		}
		defer a.close()
		beside[i] = a
	}
	r, err := compare(ctx, length, besideSlow(beside[0]), "without", pacedDeliveries(beside[1]))
	r.Ratio = r.BesideP99 / r.P99
	r.Note = fmt.Sprintf("of the p50 the ratio is %.2f", r.BesideP50/r.P50)
	return r, err
}

// besideSlow is pacedDeliveries with a socket that is slow in each turn.
func besideSlow(a *audience) side {
	return func(ctx context.Context, d time.Duration) (s sample, err error) {
		slow, err := dialHub(ctx, a, false)
		if err != nil {
			return sample{}, err
		}
		defer func() { err = errors.Join(err, slow.conn.Close()) }()
		if err := slow.say(frameText, fmt.Appendf(nil, `{"type":"subscribe","id":"1","topics":{%q:"0"}}`, rooms.Topic(fanoutRoom))); err != nil {
			return sample{}, err
		}
		return pacedDeliveries(a)(ctx, d)
	}
}
