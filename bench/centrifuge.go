package main

import (
	"bytes"
	"context"
	"errors"

	"github.com/centrifugal/centrifuge"

	"github.com/tandemhq/tandem/internal/testenv"
)

// centrifugeLine is two nodes of the centrifuge library with its Redis broker: Redis
// keeps nothing on the disk.
type centrifugeLine struct {
	redis    *testenv.Redis
	nodes    []*centrifuge.Node
	leave    func() error
	channel  string
	shutdown context.Context //nolint:containedctx // for the end alone
}

func openCentrifugeLine(ctx context.Context, _ shared, got func([]byte)) (_ line, err error) {
	l := &centrifugeLine{channel: "room", shutdown: context.WithoutCancel(ctx)}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.redis, err = testenv.StartRedis(ctx); err != nil {
		return nil, err
	}
	for range 2 {
		if err := l.addNode(); err != nil {
			return nil, err
		}
	}
	client, leave, err := centrifuge.NewClient(ctx, l.nodes[1], &inProcess{got: got})
	if err != nil {
		return nil, err
	}
	l.leave = leave
	client.Connect(centrifuge.ConnectRequest{})
	if !client.IsSubscribed(l.channel) {
		return nil, errors.New("the centrifuge client is not subscribed")
	}
	return l, nil
}

func (l *centrifugeLine) addNode() error {
	node, err := centrifuge.New(centrifuge.Config{})
	if err != nil {
		return err
	}
	shard, err := centrifuge.NewRedisShard(node, centrifuge.RedisShardConfig{Address: l.redis.Addr})
	if err != nil {
		return err
	}
	broker, err := centrifuge.NewRedisBroker(node, centrifuge.RedisBrokerConfig{Shards: []*centrifuge.RedisShard{shard}})
	if err != nil {
		return err
	}
	node.SetBroker(broker)
	node.OnConnecting(func(context.Context, centrifuge.ConnectEvent) (centrifuge.ConnectReply, error) {
		return centrifuge.ConnectReply{
			Credentials:   &centrifuge.Credentials{UserID: "reader"},
			Subscriptions: map[string]centrifuge.SubscribeOptions{l.channel: {}},
		}, nil
	})
	l.nodes = append(l.nodes, node)
	return node.Run()
}

func (l *centrifugeLine) publish(_ context.Context, payload []byte) error {
	_, err := l.nodes[0].Publish(l.channel, payload)
	return err
}

func (l *centrifugeLine) close() {
	if l.leave != nil {
		_ = l.leave()
	}
	for _, node := range l.nodes {
		_ = node.Shutdown(l.shutdown)
	}
	if l.redis != nil {
		l.redis.Stop()
	}
}

// inProcess is a client without a network, so that what is compared is the way between
// the nodes.
type inProcess struct{ got func(payload []byte) }

func (*inProcess) Name() string                      { return "in-process" }
func (*inProcess) AcceptProtocol() string            { return "" }
func (*inProcess) Protocol() centrifuge.ProtocolType { return centrifuge.ProtocolTypeJSON }

func (*inProcess) ProtocolVersion() centrifuge.ProtocolVersion { return centrifuge.ProtocolVersion2 }
func (*inProcess) Unidirectional() bool                        { return true }
func (*inProcess) Emulation() bool                             { return false }
func (*inProcess) DisabledPushFlags() uint64                   { return 0 }
func (*inProcess) PingPongConfig() centrifuge.PingPongConfig {
	return centrifuge.PingPongConfig{PingInterval: -1}
}
func (*inProcess) Close(centrifuge.Disconnect) error { return nil }

func (t *inProcess) WriteMany(messages ...[]byte) error {
	for _, m := range messages {
		if err := t.Write(m); err != nil {
			return err
		}
	}
	return nil
}

// Write finds the payload without decoding what is around it.
func (t *inProcess) Write(message []byte) error {
	field := []byte(`"data":`)
	if i := bytes.Index(message, field); i >= 0 && len(message) >= i+len(field)+letterBytes {
		t.got(message[i+len(field):][:letterBytes])
	}
	return nil
}
