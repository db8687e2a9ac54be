// Command tandem is a team chat with scheduled tasks that runs as one process
// on a laptop or as many replicas in a cluster. Build tags choose the driver:
// none for SQLite, pg for PostgreSQL, memory for tests.
package main

//go:generate go run ./internal/cmd/wiregen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	// Time zones come with the program, so that a task means the same on every
	// machine.
	_ "time/tzdata"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		os.Exit(signalCode(<-signals))
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// signalCode is the exit code of a program that a second signal has ended at once, as a shell gives
// it: 130 or 143. Without a handler the first process of a container would not end.
func signalCode(s os.Signal) int {
	if number, ok := s.(syscall.Signal); ok {
		return 128 + int(number)
	}
	return 1
}

// cli is the command line.
type cli struct {
	Config

	Serve   serveCmd   `cmd:"" help:"Run the server. Migrates the database first."`
	Migrate migrateCmd `cmd:"" help:"Bring the database up to date, or see how far it is."`
	User    userCmd    `cmd:"" help:"Manage accounts."`
	Keys    keysCmd    `cmd:"" help:"List, replace and revoke the keys that all replicas share."`
	Jobs    jobsCmd    `cmd:"" help:"List the background jobs, and what came of each."`
	Doctor  doctorCmd  `cmd:"" help:"Look at the deployment from the inside and say whether a second replica is safe."`
	Version versionCmd `cmd:"" help:"Print version, driver, commit and Go version."`
}

// env is what commands work with.
type env struct {
	ctx    context.Context //nolint:containedctx // kong passes it to the command's Run
	stdout io.Writer
	stderr io.Writer
}

// run is the program without the process. It returns the exit code: 0, 1 for a
// failure, 2 for wrong arguments or settings. See also signalCode.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	exit := -1
	parser, err := kong.New(&c,
		kong.Name("tandem"),
		kong.Description("A team chat with scheduled tasks, on one machine or on many ("+driverName+" build).\n\n"+
			"Every flag can also be set in the environment; flags win. First steps: tandem serve"),
		kong.Vars{"database_url": driverDefaultURL},
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exit = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
	)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "tandem:", err)
		return 1
	}
	k, err := parser.Parse(args)
	if exit >= 0 { // --help has been printed
		return exit
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "tandem: %s; see tandem --help\n", oneLine(err))
		return 2
	}
	err = k.Run(&env{ctx: ctx, stdout: stdout, stderr: stderr}, &c.Config)
	if _, wrong := errors.AsType[*settingError](err); wrong {
		_, _ = fmt.Fprintf(stderr, "tandem: %s\n", oneLine(err))
		return 2
	}
	if errors.Is(err, errUnsafe) {
		return 1
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		_, _ = fmt.Fprintf(stderr, "tandem: %s\n", oneLine(err))
		return 1
	}
	return 0
}

// oneLine keeps what a person reads on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
