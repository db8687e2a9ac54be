package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/tandemhq/tandem/client"
)

// measureIdle runs three replicas of the program, and counts what they ask of the database
// when nobody does anything: with a thousand sockets beside none. Its unit is transactions
// a second, nearly all of them single statements; less is better.
func measureIdle(ctx context.Context, sub subject, length time.Duration, prepares func(string)) (r row, err error) {
	st, err := sub.store(ctx)
	if err != nil {
		return row{}, err
	}
	defer st.close()
	s := st.(*pgStore)
	if err := s.b.Close(ctx); err != nil { // it asks things too
		return row{}, err
	}
	sockets, pause := 1000, 15*time.Second
	if length < 100*time.Millisecond { // only to see that all works
		sockets, pause = 10, 100*time.Millisecond
	}
	length = max(length, 2*time.Second)

	prepares("building the program")
	dir, err := os.MkdirTemp("", "tandem-bench-")
	if err != nil {
		return row{}, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "tandem")
	build := exec.CommandContext(ctx, "go", "build", "-tags=pg", "-o", program, "github.com/tandemhq/tandem")
	build.Dir = ".."
	if text, err := build.CombinedOutput(); err != nil {
		return row{}, fmt.Errorf("build: %w\n%s", err, text)
	}
	if err := addUser(ctx, program, s.url); err != nil {
		return row{}, err
	}
	var urls []string
	for i := range 3 {
		p, err := startProgram(ctx, program, fmt.Sprintf("replica-%d", i), s.url)
		if err != nil {
			return row{}, err
		}
		defer p.stop()
		urls = append(urls, p.url)
	}
	// It would clean up, while nothing is done, behind what was done before.
	if err := s.autovacuum(ctx, "off"); err != nil {
		return row{}, err
	}
	defer func() { err = errors.Join(err, s.autovacuum(ctx, "on")) }()
	// Sessions report what they did up to ten seconds late.
	prepares("letting the replicas come to rest")
	if err := rest(ctx, pause); err != nil {
		return row{}, err
	}
	r.Beside = "no sockets"
	none, err := s.traffic(ctx, length)
	if err != nil {
		return row{}, err
	}
	prepares(fmt.Sprintf("opening %d sockets", sockets))
	cookie, err := client.SignIn(ctx, http.DefaultClient, urls[0], benchUser, benchPassword)
	if err != nil {
		return row{}, err
	}
	session := func(context.Context) (*http.Cookie, error) { return cookie, nil }
	for i := range sockets {
		c, err := client.Dial(ctx, client.Options{Endpoints: urls[i%3 : i%3+1], Session: session})
		if err != nil {
			return row{}, err
		}
		defer c.Close()
	}
	if err := rest(ctx, pause); err != nil {
		return row{}, err
	}
	some, err := s.traffic(ctx, length)
	r.PerSecond, r.BesidePerSecond = some.transactions, none.transactions
	r.Ratio = none.transactions / some.transactions
	r.Note = fmt.Sprintf("3 replicas, %d sockets: %.1f transactions/s and %.0f bytes of WAL/s; without sockets %.1f and %.0f",
		sockets, some.transactions, some.wal, none.transactions, none.wal)
	return r, err
}

const benchUser, benchPassword = "bench", "correct horse battery"

// addUser adds the user of the sockets, in a database that has the tables of package coord alone.
func addUser(ctx context.Context, program, url string) error {
	if text, err := exec.CommandContext(ctx, program, "migrate", "--database-url", url).CombinedOutput(); err != nil {
		return fmt.Errorf("migrate: %w\n%s", err, text)
	}
	add := exec.CommandContext(ctx, program, "user", "add", benchUser, "--admin", "--password-stdin", "--database-url", url)
	add.Stdin = strings.NewReader(benchPassword + "\n")
	if text, err := add.CombinedOutput(); err != nil {
		return fmt.Errorf("user add: %w\n%s", err, text)
	}
	return nil
}

// running is a replica of the program.
type running struct {
	command *exec.Cmd
	url     string
}

var address = regexp.MustCompile(`msg="tandem is listening".* address=(\S+)`)

func startProgram(ctx context.Context, program, node, url string) (*running, error) {
	p := &running{command: exec.CommandContext(ctx, program, "serve", "--addr", "127.0.0.1:0", "--person-connections", "1000", "--node", node, "--database-url", url)}
	out, err := p.command.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(out)
	var text strings.Builder
	for {
		line, err := lines.ReadString('\n')
		text.WriteString(line)
		if match := address.FindStringSubmatch(line); match != nil {
			p.url = "http://" + match[1]
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return p, nil
		}
		if err != nil {
			p.stop()
			return nil, fmt.Errorf("the program did not start: %w\n%s", err, &text)
		}
	}
}

func (p *running) stop() {
	_ = p.command.Process.Signal(syscall.SIGTERM)
	_ = p.command.Wait()
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// autovacuum turns it "on" or "off".
func (s *pgStore) autovacuum(ctx context.Context, value string) error {
	_, err := s.db.ExecContext(ctx, `ALTER SYSTEM SET autovacuum = `+value)
	if err == nil {
		_, err = s.db.ExecContext(ctx, `SELECT pg_reload_conf()`)
	}
	return err
}

// traffic is what a database does a second.
type traffic struct{ transactions, wal float64 }

func (s *pgStore) traffic(ctx context.Context, d time.Duration) (traffic, error) {
	// Where the log ends is known at once, and the statistics of it are late.
	read := func() (transactions, wal float64, err error) {
		err = s.db.QueryRowContext(ctx, `SELECT xact_commit + xact_rollback, pg_current_wal_insert_lsn() - '0/0'
			FROM pg_stat_database WHERE datname = current_database()`).Scan(&transactions, &wal)
		return transactions, wal, err
	}
	t1, w1, err := read()
	began := time.Now()
	if err == nil {
		err = rest(ctx, d)
	}
	t2, w2, readErr := read()
	took := time.Since(began).Seconds()
	if err := errors.Join(err, readErr); err != nil {
		return traffic{}, err
	}
	return traffic{(t2 - t1) / took, (w2 - w1) / took}, nil
}
