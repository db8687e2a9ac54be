// Command limits is a server that answers each address 10 times a minute, at most 5 times at once, however
// many of it run on one database: a file (limits.db by default), postgres://… or memory:
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/httplimit"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8091", "where to listen")
	flag.Parse()
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt)
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", *addr)
	if err == nil {
		err = run(ctx, append(flag.Args(), "limits.db")[0], listener, log)
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
	clients, err := httplimit.NewClients() // the addresses of proxies go here
	if err != nil {
		return err
	}
	limit, err := httplimit.New(backend.Limiter(), httplimit.Options{}, httplimit.Policy{
		Name: "address", Limit: coord.Limit{Rate: 10, Per: time.Minute, Burst: 5}, Key: clients.Key,
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "Hello.\n") })
	server := &http.Server{Handler: limit(mux), ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	log.Info("open", "url", "http://"+listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
