package stand

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/tandemhq/tandem/internal/testenv"
)

const terminate = syscall.SIGTERM

var (
	composeBind    = regexp.MustCompile(`bind :8080`)
	composeLookUps = regexp.MustCompile(`(?m)^# Replicas that are made anew.*\n|^resolvers docker\n(    .*\n)*| resolvers docker init-addr libc,none`)
	composeServers = regexp.MustCompile(`(?m)^    server tandem-\d+ .*\n?`)
)

// NoHealthChecks changes the configuration of HAProxy so that it never asks replicas whether they are ready.
func NoHealthChecks(config string) string {
	return strings.Replace(config, "default-server check", "default-server", 1)
}

// CutWhenDown changes the configuration of HAProxy so that it ends the connections to a replica that does not answer.
func CutWhenDown(config string) string {
	return strings.Replace(config, "fall 2 rise 1", "fall 2 rise 1 on-marked-down shutdown-sessions", 1)
}

// startProxy runs HAProxy with the configuration of deploy/compose, but for addresses.
func (s *Stand) startProxy(o Options, port int) error {
	program, err := testenv.FindHAProxy()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(o.Root, "deploy", "compose", "haproxy.cfg"))
	if err != nil {
		return err
	}
	config := composeBind.ReplaceAllString(string(text), fmt.Sprintf("bind 127.0.0.1:%d", port))
	config = composeServers.ReplaceAllString(composeLookUps.ReplaceAllString(config, ""), "")
	for _, r := range s.Replicas {
		config += fmt.Sprintf("    server %s %s\n", r.Name, r.Addr)
	}
	config = strings.Replace(config, "global\n", "global\n    stats socket "+s.socket()+" mode 600 level admin\n", 1)
	if o.Proxy != nil {
		config = o.Proxy(config)
	}
	file := filepath.Join(s.folder, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	s.proxy, err = Launch("haproxy", nil, []string{program, "-db", "-f", file}, "")
	return err
}

func (s *Stand) socket() string { return filepath.Join(s.folder, "haproxy.sock") }

// upstreams is how many replicas HAProxy leads to.
func (s *Stand) upstreams(ctx context.Context) (up int) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", s.socket())
	if err != nil {
		return -1
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("show servers state tandem\n")); err != nil {
		return -1
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		// Number, backend, id, name, address, operational state (2: running).
		fields := strings.Fields(lines.Text())
		if len(fields) > 5 && fields[1] == "tandem" && fields[5] == "2" {
			up++
		}
	}
	return up
}
