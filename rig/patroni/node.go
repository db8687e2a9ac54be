//go:build linux

package patroni

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Node is Patroni and the PostgreSQL that it runs.
type Node struct {
	Name      string
	Port, API int // of PostgreSQL and of Patroni's REST interface
	Dir       string

	cluster *Cluster
	patroni *process
}

// Start starts Patroni, which starts PostgreSQL.
func (n *Node) Start() (err error) {
	program, err := find("patroni", "patroni")
	if err != nil {
		return err
	}
	n.patroni, err = n.cluster.launch(n.Name, "/usr/bin/python3", program, n.config())
	return err
}

// URL leads to a database on this node, whatever the node is.
func (n *Node) URL(database string) string {
	return address("127.0.0.1:"+strconv.Itoa(n.Port), database, url.Values{})
}

func (n *Node) config() string { return n.Dir + ".yaml" }

func (n *Node) rest(path string) string { return "http://127.0.0.1:" + strconv.Itoa(n.API) + path }

// Kill ends Patroni and every process of PostgreSQL at once, as the loss of the machine does.
// What had been sent to others may arrive.
func (n *Node) Kill() {
	n.patroni.kill()
	n.KillPostgres()
}

// KillPostgres ends every process of PostgreSQL at once.
func (n *Node) KillPostgres() {
	// Stopped first, so that none acts on the end of another.
	for range 2 {
		n.signalPostgres(syscall.SIGSTOP)
	}
	pids := n.postgres()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for range 500 {
		if len(running(pids)) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Freeze stops Patroni, and PostgreSQL with it when all is set: they keep what they have and do
// nothing, until Thaw.
func (n *Node) Freeze(all bool) {
	n.patroni.signal(syscall.SIGSTOP)
	if all {
		n.signalPostgres(syscall.SIGSTOP)
	}
}

// Thaw lets everything of the node go on.
func (n *Node) Thaw() {
	n.signalPostgres(syscall.SIGCONT)
	n.patroni.signal(syscall.SIGCONT)
}

// HoldBack keeps the node from sending its log to others until ctx ends, or the node.
func (n *Node) HoldBack(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		for _, pid := range n.postgres() {
			if strings.Contains(commandLine(pid), "walsender") {
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (n *Node) signalPostgres(s syscall.Signal) {
	for _, pid := range n.postgres() {
		_ = syscall.Kill(pid, s)
	}
}

// postgres lists the processes of PostgreSQL, the first of which started the others.
func (n *Node) postgres() []int {
	text, err := os.ReadFile(filepath.Join(n.Dir, "data", "postmaster.pid"))
	if err != nil {
		return nil
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil || !strings.Contains(commandLine(pid), n.Dir) {
		return nil // left by one that has ended
	}
	return append([]int{pid}, children(pid)...)
}

func children(of int) (pids []int) {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		if parent, state := status(pid); parent == of && state != zombie {
			pids = append(pids, pid)
		}
	}
	return pids
}

const zombie = "Z"

// status reads who started a process and what it does. Both are zero for one that has ended.
func status(pid int) (parent int, state string) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, ""
	}
	// Behind the name, which may have anything in it.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 2 {
		return 0, ""
	}
	parent, _ = strconv.Atoi(string(fields[1]))
	return parent, string(fields[0])
}

func running(pids []int) (left []int) {
	for _, pid := range pids {
		if _, state := status(pid); state != "" && state != zombie {
			left = append(left, pid)
		}
	}
	return left
}

func commandLine(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return string(text)
}
