//go:build linux

package patroni

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandemhq/tandem/internal/child"
	"github.com/tandemhq/tandem/internal/testenv"
)

// account is the user that everything runs as; nil means the user of this process.
type account struct{ credential *syscall.Credential }

// serverAccount chooses the account: PostgreSQL refuses to run as root.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return &account{}, nil
	}
	found, err := user.Lookup(superuser)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL refuses to run as root: %w", err)
	}
	uid, errUID := strconv.ParseUint(found.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(found.Gid, 10, 32)
	return &account{&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, errors.Join(errUID, errGID)
}

func (a *account) mkdir(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return a.give(path)
}

func (a *account) give(path string) error {
	if a.credential == nil {
		return nil
	}
	return os.Chown(path, int(a.credential.Uid), int(a.credential.Gid))
}

const (
	folderParent = "/var/tmp" // on a disk: what a server has flushed must survive its end
	folderPrefix = "tandem-patroni-"
)

// newFolder makes the place of a cluster, and removes those of processes that were killed before
// they could.
func newFolder(own *account) (string, error) {
	left, _ := filepath.Glob(filepath.Join(folderParent, folderPrefix+"*"))
	for _, path := range left {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), folderPrefix), "-")
		if pid, err := strconv.Atoi(owner); err == nil && len(running([]int{pid})) == 0 {
			for i := range nodeCount {
				(&Node{Dir: filepath.Join(path, fmt.Sprintf("node%d", i+1))}).KillPostgres()
			}
			removeFolder(path)
		}
	}
	path, err := os.MkdirTemp(folderParent, folderPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", err
	}
	return path, errors.Join(own.give(path), os.Chmod(path, 0o755)) //nolint:gosec // for the servers
}

func removeFolder(path string) {
	// A process that is still ending may add a file while the tree is removed.
	for range 50 {
		if os.RemoveAll(path) == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// freePorts finds ports that no connection is given by chance, so that a server which was away
// finds its own free.
func freePorts(ctx context.Context, n int) (ports []int, err error) {
	var lc net.ListenConfig
	for try := 0; len(ports) < n && try < 1000; try++ {
		port := 20000 + rand.IntN(12000)
		l, listenErr := lc.Listen(ctx, "tcp4", "127.0.0.1:"+strconv.Itoa(port))
		if listenErr != nil {
			err = listenErr
			continue
		}
		defer l.Close() // all are held until there are enough
		ports = append(ports, port)
	}
	if len(ports) < n {
		return nil, fmt.Errorf("no free ports: %w", err)
	}
	return ports, nil
}

// process is a server that was started. A nil one has ended.
type process struct {
	*child.Process
	killed atomic.Bool
}

// launch starts a server whose output goes to a file of that name. It ends with this process.
func (c *Cluster) launch(name, program string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(c.folder, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	// It is not bound to a context: it is ended by kill.
	cmd := exec.Command(program, args...) //nolint:noctx // see above
	cmd.Dir = c.folder
	cmd.Env = []string{"PATH=" + c.bindir + ":/usr/bin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC", "HOME=" + c.folder}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: c.own.credential, Setsid: true,
		Pdeathsig: syscall.SIGTERM, // on which Patroni ends PostgreSQL
	}
	started, err := child.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return &process{Process: started}, nil
}

func (p *process) signal(s syscall.Signal) {
	if p != nil {
		_ = p.Signal(s)
	}
}

func (p *process) kill() {
	if p != nil {
		p.killed.Store(true)
		p.Kill()
	}
}

// fallen says whether the process has ended without having been killed.
func (p *process) fallen() bool {
	return p != nil && !p.killed.Load() && p.Ended()
}

// findPostgres returns the folder of all programs of PostgreSQL. What testenv finds may be links
// to some of them.
func findPostgres() (string, error) {
	dir, err := testenv.FindPostgres()
	if err != nil {
		return "", err
	}
	path, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
	return filepath.Dir(path), err
}

// find returns a program of a Debian package.
func find(name, pkg string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s was not found: apt-get install %s", name, pkg)
	}
	return path, nil
}

func tail(path string) string {
	const most = 15
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-most):], []byte("\n")))
}
