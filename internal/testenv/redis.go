package testenv

import (
	"context"
	"strconv"
)

// Redis is a throw-away Redis that keeps nothing on the disk. Only benchmarks use it, for what
// they set beside ours.
type Redis struct {
	Addr string // host:port

	folder *folder
	server *server
}

// StartRedis starts a Redis; end it with Stop. Like a Cluster it belongs to a user other than
// root, and on Linux dies with this process. Without the program it fails with one sentence
// that says what to install.
func StartRedis(ctx context.Context) (*Redis, error) {
	program, err := FindRedis()
	if err != nil {
		return nil, err
	}
	var r Redis
	r.Addr, r.folder, r.server, err = startOnPort(ctx, "Ready to accept connections", func(f *folder, port int) (string, []string, error) {
		return program, []string{
			"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", f.path,
		}, nil
	})
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// Stop ends it and removes its files.
func (r *Redis) Stop() {
	r.server.stop()
	r.folder.remove()
}

// FindRedis returns the path of the redis-server program. It looks at TANDEM_TEST_REDIS, PATH
// and the usual folders. The error says what to install, and wraps ErrMissing unless
// TANDEM_TEST_REDIS is wrong.
func FindRedis() (path string, err error) {
	return findProgram("Redis", EnvRedis, []string{"redis-server", "valkey-server"}, []string{
		"/usr/bin/redis-server",
		"/usr/sbin/redis-server",
		"/usr/local/bin/redis-server",
		"/opt/homebrew/bin/redis-server",
	}, adviceRedis)
}
