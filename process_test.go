package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/internal/child"
	"github.com/tandemhq/tandem/internal/testenv"
)

// patience is how long a test waits for what must happen soon, on a busy machine too.
const patience = 30 * time.Second

// built is the program as it is shipped, built once per run of the tests with their tags.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// build is not bound to the test that happens to be the first.
func build() {
	if built.dir, built.err = os.MkdirTemp("", "tandem-test-"); built.err != nil {
		return
	}
	tags := map[string]string{"pg": "pg", "memory": "memory"}[driverName]
	cmd := exec.Command("go", "build", "-buildvcs=false", "-tags="+tags, "-o", built.dir+string(filepath.Separator), ".")
	if output, err := cmd.CombinedOutput(); err != nil {
		built.err = fmt.Errorf("%w\n%s", err, output)
	}
}

func removeProgram() {
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
}

// program returns the path of the built program.
func program(tb testing.TB) string {
	tb.Helper()
	built.once.Do(build)
	if built.err != nil {
		tb.Fatalf("build the program: %v", built.err)
	}
	name := "tandem"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(built.dir, name)
}

// process is a run of the program. It is killed at the end of the test, and what it has written
// is shown when the test failed.
type process struct {
	tb   testing.TB
	name string
	*child.Process
	stdout, stderr child.Transcript
}

// start runs the program in a folder of its own; with may change how.
func start(tb testing.TB, name string, with func(*exec.Cmd), args ...string) *process {
	tb.Helper()
	p := &process{tb: tb, name: name}
	cmd := exec.Command(program(tb), args...) // it ends by what the test does to it
	cmd.Dir = tb.TempDir()
	cmd.Stdout, cmd.Stderr = &p.stdout, &p.stderr
	if with != nil {
		with(cmd)
	}
	var err error
	if p.Process, err = child.Start(cmd); err != nil {
		tb.Fatalf("start %s: %v", name, err)
	}
	tb.Cleanup(func() {
		p.Kill()
		if tb.Failed() {
			tb.Logf("%s (tandem %s) wrote:\n%s%s", name, strings.Join(args, " "), &p.stdout, &p.stderr)
		}
	})
	return p
}

func (p *process) signal(s os.Signal) {
	p.tb.Helper()
	if err := p.Signal(s); err != nil {
		p.tb.Fatalf("signal %s: %v", p.name, err)
	}
}

// wait returns the exit code of a process that is about to end.
func (p *process) wait() int {
	p.tb.Helper()
	eventually(p.tb, func() string {
		if p.Ended() {
			return ""
		}
		return p.name + " has not ended"
	})
	return p.Code()
}

// find waits until the process has written what the pattern matches, and returns the group.
func (p *process) find(in *child.Transcript, pattern *regexp.Regexp) string {
	p.tb.Helper()
	var found string
	eventually(p.tb, func() string {
		ended := p.Ended()
		if match := pattern.FindStringSubmatch(in.String()); match != nil {
			found = match[1]
			return ""
		}
		if ended {
			p.tb.Fatalf("%s ended with code %d before it wrote %s", p.name, p.Code(), pattern)
		}
		return fmt.Sprintf("%s has not written %s", p.name, pattern)
	})
	return found
}

// replica is a running server.
type replica struct {
	*process
	url string
}

// launch starts a server on a free port; listening waits for it.
func launch(tb testing.TB, node, database string, flags ...string) *replica {
	tb.Helper()
	// Few connections, for many replicas on one server at a time.
	args := []string{"serve", "--addr", "127.0.0.1:0", "--database-url", database, "--database-conns", "5", "--node", node}
	return &replica{process: start(tb, node, nil, append(args, flags...)...)}
}

var (
	listeningLine = regexp.MustCompile(`msg="tandem is listening".* address=(\S+)`)
	setupLink     = regexp.MustCompile(`(http://127\.0\.0\.1:\d+/#setup=\S+)`)
)

func (r *replica) listening() *replica {
	r.tb.Helper()
	r.url = "http://" + r.find(&r.stderr, listeningLine)
	return r
}

// serve starts a server and waits until it listens.
func serve(tb testing.TB, node, database string, flags ...string) *replica {
	tb.Helper()
	return launch(tb, node, database, flags...).listening()
}

// setupLink returns the link that the server printed.
func (r *replica) setupLink() string {
	r.tb.Helper()
	return r.find(&r.stdout, setupLink)
}

// newDatabase returns the URL of an empty database of this build's driver.
func newDatabase(tb testing.TB) string {
	tb.Helper()
	switch driverName {
	case "pg":
		return testenv.NewDatabase(tb, "", nil)
	case "sqlite":
		return "sqlite:" + filepath.Join(tb.TempDir(), "tandem.db")
	}
	return driverDefaultURL
}

// eventually waits until the condition says that nothing is missing.
func eventually(tb testing.TB, condition func() (missing string)) {
	tb.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		missing := condition()
		if missing == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			tb.Fatalf("after %v: %s", patience, missing)
		}
	}
}
