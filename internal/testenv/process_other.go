//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package testenv

import (
	"errors"
	"os"
	"syscall"
)

var (
	signalFast      = os.Interrupt
	signalImmediate = os.Kill
	signalPromote   = os.Kill // never sent: no server can be started here
)

type account struct{}

func serverAccount() (*account, error) {
	return nil, errors.New("a throw-away cluster cannot be started on this system: set " + EnvPostgresURL + " to a running server")
}

func (a *account) chown(string) error                     { return nil }
func (a *account) attributes() *syscall.SysProcAttr       { return nil }
func (a *account) serverAttributes() *syscall.SysProcAttr { return nil }
func reachable(string, *account) bool                     { return false }
func tryLock(*os.File) bool                               { return false }
func memoryFolders() []string                             { return nil }
func commandHas(int, string) bool                         { return false }
