package fault

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// helperEnv makes this binary another program: its value is what it does.
const helperEnv = "TANDEM_RIG_FAULT_TEST"

func TestMain(m *testing.M) {
	switch what := os.Getenv(helperEnv); what {
	case "":
		os.Exit(m.Run())
	case "clock": // answers each line with the time, while others read the clock as well
		go func() {
			for time.Now().Unix() > 0 {
			}
		}()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			now := time.Now()
			fmt.Println(now.Unix(), now.Sub(now.Add(-time.Second).Round(0)) > 0)
		}
	default: // sends what it is told to an address
		conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp4", what)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		_, _ = io.Copy(conn, os.Stdin)
	}
}

// helper starts this binary as another program.
func helper(t *testing.T, what string, command func(program string, args ...string) []string) (*exec.Cmd, io.Writer, *bufio.Scanner) {
	t.Helper()
	args := []string{os.Args[0]}
	if command != nil {
		args = command(os.Args[0])
	}
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), helperEnv+"="+what)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, stdin, bufio.NewScanner(stdout)
}

// allowed ends a test when the process may not do what it is about; then it must have been told so.
func allowed(t *testing.T, err error) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		if !errors.Is(err, ErrPrivilege) {
			t.Errorf("without root: %v, want %v", err, ErrPrivilege)
		}
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

func TestNetwork(t *testing.T) {
	n, err := NewNetwork(t.Context())
	if !allowed(t, err) {
		return
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if links, err := filepath.Glob("/sys/class/net/*" + n.name[len("tandemrig"):]); err != nil || len(links) > 0 {
			t.Errorf("left behind: %v %v", links, err)
		}
	})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", net.JoinHostPort(n.Outside(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, tell, _ := helper(t, listener.Addr().String(), n.Command)
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if host, _, _ := net.SplitHostPort(conn.RemoteAddr().String()); host != n.Inside() {
		t.Errorf("the visitor comes from %s, want %s", host, n.Inside())
	}
	in := bufio.NewReader(conn)
	read := func(within time.Duration) string {
		_ = conn.SetReadDeadline(time.Now().Add(within))
		line, err := in.ReadString('\n')
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		return line
	}
	say := func(text string) { _, _ = io.WriteString(tell, text) }
	say("a\n")
	if got := read(long); got != "a\n" {
		t.Errorf("with the cable in: %q", got)
	}
	if err := n.Unplug(t.Context()); err != nil {
		t.Fatal(err)
	}
	say("b\n")
	if got := read(short); got != "" {
		t.Errorf("with the cable out: %q", got)
	}
	if err := n.Plug(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(long); got != "b\n" {
		t.Errorf("with the cable in again: %q", got)
	}
}

func TestDisk(t *testing.T) {
	d, err := NewDisk(8 << 20)
	if !allowed(t, err) {
		return
	}
	path := d.Path()
	file := filepath.Join(path, "file")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Fill(); err != nil {
		t.Fatal(err)
	}
	if free, err := d.Free(); free != 0 || err != nil {
		t.Errorf("a full disk has %d bytes, %v", free, err)
	}
	if err := os.WriteFile(filepath.Join(path, "other"), []byte("a"), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write to a full disk: %v", err)
	}
	if err := d.Empty(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, make([]byte, 6<<20), 0o600); err != nil {
		t.Errorf("write when there is room: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

func TestShiftClock(t *testing.T) {
	cmd, ask, answers := helper(t, "clock", nil)
	// ahead is how far the helper's clock is ahead of this one.
	ahead := func() time.Duration {
		_, _ = io.WriteString(ask, "\n")
		if !answers.Scan() {
			t.Fatal("the program has ended")
		}
		var seconds int64
		var grows bool
		if _, err := fmt.Sscan(answers.Text(), &seconds, &grows); err != nil || !grows {
			t.Fatalf("%q: %v", answers.Text(), err)
		}
		return time.Until(time.Unix(seconds, 0)).Round(time.Minute)
	}
	if got := ahead(); got != 0 {
		t.Fatalf("ahead by %v at first", got)
	}
	for _, want := range []time.Duration{time.Hour, -time.Hour, 0, time.Hour, 0} {
		err := ShiftClock(cmd.Process.Pid, want)
		if runtime.GOARCH != "amd64" {
			if err == nil {
				t.Error("it is not made for this machine, and does not say so")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := ahead(); got != want {
			t.Errorf("ahead by %v, want %v", got, want)
		}
	}
}

func TestShiftedPostgres(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"initdb", "postgres"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\nexec date +%s\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir, remove, err := ShiftedPostgres(bin, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	for name, want := range map[string]time.Duration{"initdb": 0, "postgres": time.Hour} {
		output, err := exec.CommandContext(t.Context(), filepath.Join(dir, name)).Output()
		if err != nil {
			t.Fatal(err)
		}
		seconds, err := strconv.ParseInt(string(output[:len(output)-1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if got := time.Until(time.Unix(seconds, 0)).Round(time.Minute); got != want {
			t.Errorf("%s is ahead by %v, want %v", name, got, want)
		}
	}
}
