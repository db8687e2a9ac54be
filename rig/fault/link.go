package fault

import (
	"context"
	"fmt"
	"strings"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Way is a direction of a link.
type Way string

// The two ways of a link.
const (
	ToServer   Way = "upstream"
	FromServer Way = "downstream"
)

// Link is a way to a server that can be broken. Its methods may be called concurrently.
type Link struct {
	proxy *toxiproxy.Proxy
}

// NewLink listens on an address, where port 0 stands for any that is free, and passes on what
// comes to the server at another. The link is good until one of its methods breaks it.
func NewLink(listen, server string) (*Link, error) {
	// Only its metrics and its logger are used, and both are off.
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	l := &Link{toxiproxy.NewProxy(api, server, listen, server)}
	if err := l.proxy.Start(); err != nil {
		return nil, fmt.Errorf("a link to %s: %w", server, err)
	}
	return l, nil
}

// Addr is where the link is to be entered.
func (l *Link) Addr() string {
	l.proxy.Lock()
	defer l.proxy.Unlock()
	return l.proxy.Listen
}

// Swallow loses whatever goes a way, without ending a connection: with no way given, both ways.
// New connections are taken and get no answer.
func (l *Link) Swallow(ways ...Way) error {
	if len(ways) == 0 {
		ways = []Way{ToServer, FromServer}
	}
	for _, way := range ways {
		if err := l.add("timeout", way, "timeout", 0); err != nil {
			return err
		}
	}
	return nil
}

// Reset ends each connection as soon as its client sends something, new ones too.
func (l *Link) Reset() error { return l.add("reset_peer", ToServer, "timeout", 0) }

// CutAnswers ends each connection, new ones too, when the server has sent so many more bytes on it.
func (l *Link) CutAnswers(after int) error { return l.add("limit_data", FromServer, "bytes", after) }

// Delay holds back what comes from the server.
func (l *Link) Delay(d time.Duration) error {
	return l.add("latency", FromServer, "latency", int(d.Milliseconds()))
}

func (l *Link) add(kind string, way Way, attribute string, value int) error {
	_, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
		`{"type":%q,"stream":%q,"attributes":{%q:%d}}`, kind, way, attribute, value)))
	if err != nil {
		return fmt.Errorf("break the link at %s: %w", l.proxy.Listen, err)
	}
	return nil
}

// Mend makes the link good again. Connections that had lost something are closed.
func (l *Link) Mend() { l.proxy.Toxics.ResetToxics(context.Background()) }

// Close ends the link and its connections.
func (l *Link) Close() { l.proxy.Stop() }
