// Command testall is make test: it sets the test environment up, runs every check of the
// repository in order, and ends with a table of what passed and how long it took.
//
// It finds PostgreSQL, PgBouncer, Redis, HAProxy, Chromium and a C compiler, and as root on Debian and its
// like installs what is missing. It starts one throw-away PostgreSQL for all tests. It stops for no failed
// step, and fails at the end if there was one.
//
// Usage, from the root of the repository:
//
//	go run ./internal/cmd/testall
//	go run ./internal/cmd/testall -list
//	go run ./internal/cmd/testall -only vet,test
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/tandemhq/tandem/internal/testenv"
)

// stopWait is how long a command may take to end after it was interrupted.
const stopWait = 20 * time.Second

func main() {
	list := flag.Bool("list", false, "list the steps and end")
	only := flag.String("only", "", "comma-separated `steps` to run, a name without its tag meaning all tags")
	flag.Parse()
	all := allSteps()
	if *list {
		printSteps(os.Stdout, all)
		return
	}
	steps, err := choose(all, *only)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, steps)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testall:", err)
		os.Exit(1)
	}
}

// session is what the steps share.
type session struct {
	env    []string
	output io.Writer // shared with the commands; it keeps nothing back

	fuzzTime time.Duration // for all fuzz targets together, besides what building them takes
}

// result is what became of a step.
type result struct {
	name string
	err  error
	took time.Duration
	said []string // of what failed
}

func run(ctx context.Context, steps []step) error {
	output := &digest{w: os.Stdout}
	s := &session{env: os.Environ(), output: output, fuzzTime: 50 * time.Second}
	if _, err := os.Stat("tools/go.mod"); err != nil {
		return errors.New("run this from the root of the repository")
	}
	began := time.Now()
	stop, err := s.setUp(ctx, steps)
	if err != nil {
		return err
	}
	defer stop()
	results := []result{{name: "set-up", took: time.Since(began)}}
	for _, step := range steps {
		s.heading(step.name, step.about)
		start := time.Now()
		err := step.run(ctx, s)
		if err != nil {
			fmt.Fprintf(s.output, "%s: %v\n", step.name, err)
		}
		results = append(results, result{step.name, err, time.Since(start), output.failures()})
		if ctx.Err() != nil {
			break
		}
	}
	return summary(s.output, results, len(steps)+1, time.Since(began))
}

// setUp provides what the steps need and tells their commands where it is.
func (s *session) setUp(ctx context.Context, steps []step) (stop func(), err error) {
	stop = func() {}
	var needed needs
	for _, step := range steps {
		needed |= step.needs
	}
	if needed == 0 {
		return stop, nil
	}
	s.heading("set-up", "what the tests need")
	if err := s.install(ctx, needed); err != nil {
		return nil, err
	}
	if needed&chromium != 0 {
		path, err := testenv.FindChromium()
		if err != nil {
			return nil, err
		}
		s.setenv(testenv.EnvChromium, path)
		fmt.Fprintln(s.output, "browser:", path)
	}
	if needed&postgres == 0 {
		return stop, nil
	}
	if os.Getenv(testenv.EnvPostgresURL) != "" {
		fmt.Fprintln(s.output, "PostgreSQL: the running server of", testenv.EnvPostgresURL)
		return stop, nil
	}
	cluster, err := testenv.StartCluster(ctx, testenv.Options{})
	if err != nil {
		return nil, err
	}
	url := cluster.URL("postgres")
	s.setenv(testenv.EnvPostgresURL, url)
	fmt.Fprintln(s.output, "PostgreSQL:", url)
	return cluster.Stop, nil
}

func (s *session) setenv(name, value string) { s.env = append(s.env, name+"="+value) }

func (s *session) heading(name, about string) {
	fmt.Fprintf(s.output, "\n=== %s: %s\n", name, about)
}

// run runs a command with its output going straight through.
func (s *session) run(ctx context.Context, dir, name string, args ...string) error {
	fmt.Fprintln(s.output, "$", strings.Join(append([]string{name}, args...), " "))
	cmd := s.command(ctx, dir, name, args...)
	cmd.Stdout, cmd.Stderr = s.output, s.output
	return cmd.Run()
}

// capture runs a command and returns what it wrote to its standard output.
func (s *session) capture(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := s.command(ctx, dir, name, args...)
	cmd.Stderr = s.output
	output, err := cmd.Output()
	return string(output), err
}

func (s *session) command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = s.env
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopWait
	return cmd
}

// summary prints what the failed steps said of it and the table, and returns an error that names the failed steps.
func summary(w io.Writer, results []result, planned int, total time.Duration) error {
	for _, r := range results {
		if r.err == nil {
			continue
		}
		fmt.Fprintf(w, "\n=== %s failed\n", r.name)
		for _, line := range r.said {
			fmt.Fprintln(w, line)
		}
	}
	fmt.Fprintf(w, "\n=== summary\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var failed []string
	for _, r := range results {
		word := "ok"
		if r.err != nil {
			word = "FAILED"
			failed = append(failed, r.name)
		}
		fmt.Fprintf(table, "%s\t%s\t%7s\n", r.name, word, seconds(r.took))
	}
	fmt.Fprintf(table, "total\t\t%7s\n", seconds(total))
	if err := table.Flush(); err != nil {
		return err
	}
	switch {
	case len(results) < planned:
		return fmt.Errorf("interrupted: %d of %d steps were not run", planned-len(results), planned)
	case len(failed) > 0:
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
