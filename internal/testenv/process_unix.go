//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package testenv

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

const (
	signalFast      = syscall.SIGINT
	signalImmediate = syscall.SIGQUIT
	signalPromote   = syscall.SIGUSR1
)

// account is the user that the server runs as, nil for the user of this process.
type account struct {
	credential syscall.Credential
}

// serverAccount chooses an account: the server refuses to run as root.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(found.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(found.Gid, 10, 32)
		if errUID != nil || errGID != nil || uid == 0 {
			continue
		}
		return &account{syscall.Credential{
			Uid: uint32(uid), Gid: uint32(gid), Groups: []uint32{uint32(gid)},
		}}, nil
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as")
}

func (a *account) chown(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.credential.Uid), int(a.credential.Gid))
}

// attributes are those of a helper program that is waited for.
func (a *account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{}
	if a != nil {
		attr.Credential = &a.credential
	}
	return attr
}

// reachable says whether the server's user may enter a folder.
func reachable(dir string, a *account) bool {
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	if a == nil {
		return true
	}
	for {
		if info, err := os.Stat(dir); err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

func tryLock(file *os.File) bool {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
