package client_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
)

// Follow a room and say something in it.
func Example() {
	endpoint, stop := chat()
	defer stop()
	ctx := context.Background()

	c, err := client.Dial(ctx, client.Options{
		Endpoints: []string{endpoint}, // or all replicas
		Name:      "ada", Password: "secret",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	if err := c.Subscribe(ctx, map[string]coord.Position{"room:1": coord.Head}); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := c.Send(ctx, client.NewMessage{Room: 1, Text: "Hello"}); err != nil {
		fmt.Println(err)
		return
	}
	events, err := c.Next(ctx)
	if err != nil { // after a *coord.ResetError the room would have to be loaded anew
		fmt.Println(err)
		return
	}
	for _, e := range events {
		fmt.Println(e.Topic, e.Kind, string(e.Payload))
	}
	fmt.Println("to be resumed behind", c.Positions()["room:1"])
	// Output:
	// room:1 said {"text":"Hello"}
	// to be resumed behind 1.00c0ffee
}

// chat starts a server with one room.
func chat() (endpoint string, stop func()) {
	s := newServer("chat")
	hs := httptest.NewServer(s.http.Handler)
	go func() {
		k := <-s.sockets
		for f := range k.frames {
			switch f["type"] {
			case "subscribe":
				k.send(body{"type": "ack", "id": f["id"], "positions": body{"room:1": "0"}})
			case "send":
				k.send(stored(f), body{
					"type": "event", "topic": "room:1", "position": "1.00c0ffee", "kind": "said",
					"payload": body{"text": f["text"]}, "at": "2026-01-02T15:04:05Z",
				})
			}
		}
	}()
	return hs.URL, hs.Close
}
