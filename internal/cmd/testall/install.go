package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/tandemhq/tandem/internal/testenv"
)

// program is something that a package manager can bring.
type program struct {
	need    needs
	name    string
	find    func() error
	debian  []string // packages
	prepare func() error
}

// programs lists what steps can need.
func programs() []program {
	return []program{
		{
			need: postgres, name: "PostgreSQL", debian: []string{"postgresql"}, prepare: noDefaultCluster,
			find: func() error {
				if os.Getenv(testenv.EnvPostgresURL) != "" {
					return nil
				}
				_, err := testenv.FindPostgres()
				return err
			},
		},
		{
			need: pooler, name: "PgBouncer", debian: []string{"pgbouncer"},
			find: func() error { _, err := testenv.FindPgBouncer(); return err },
		},
		{
			need: chromium, name: "Chromium", debian: []string{"chromium"},
			find: func() error { _, err := testenv.FindChromium(); return err },
		},
		{
			need: redis, name: "Redis", debian: []string{"redis-server"},
			find: func() error { _, err := testenv.FindRedis(); return err },
		},
		{
			need: haproxy, name: "HAProxy", debian: []string{"haproxy"},
			find: func() error { _, err := testenv.FindHAProxy(); return err },
		},
		{need: compiler, name: "a C compiler", debian: []string{"gcc", "libc6-dev"}, find: findCompiler},
	}
}

// errNoCompiler wraps the sentinel for what an installation can mend.
var errNoCompiler = fmt.Errorf("a C compiler, which the race detector needs, was %w: "+
	"install gcc or clang (Debian, Ubuntu: apt-get install gcc libc6-dev; macOS: xcode-select --install)", testenv.ErrMissing)

func findCompiler() error {
	names := []string{"gcc", "clang", "cc"}
	if cc := os.Getenv("CC"); cc != "" {
		names = strings.Fields(cc)[:1]
	}
	for _, name := range names {
		if _, err := exec.LookPath(name); err == nil {
			return nil
		}
	}
	return errNoCompiler
}

// install brings what is missing where it can, and else says what to install.
func (s *session) install(ctx context.Context, needed needs) error {
	var missing []program
	var errs []error
	for _, p := range programs() {
		if needed&p.need == 0 {
			continue
		}
		err := p.find()
		if err == nil {
			continue
		}
		if !errors.Is(err, testenv.ErrMissing) {
			return err
		}
		missing = append(missing, p)
		errs = append(errs, err)
	}
	if len(missing) == 0 {
		return nil
	}
	if !canInstall() {
		return errors.Join(errs...)
	}
	packages := []string{"install", "--yes", "--no-install-recommends"}
	for _, p := range missing {
		fmt.Fprintln(s.output, p.name, "is missing and will be installed")
		packages = append(packages, p.debian...)
		if p.prepare != nil {
			if err := p.prepare(); err != nil {
				return err
			}
		}
	}
	s.setenv("DEBIAN_FRONTEND", "noninteractive")
	for _, args := range [][]string{{"update"}, packages} {
		if err := s.run(ctx, ".", "apt-get", args...); err != nil {
			return errors.Join(append(errs, fmt.Errorf("apt-get %s: %w", args[0], err))...)
		}
	}
	for _, p := range missing {
		if err := p.find(); err != nil {
			return err
		}
	}
	return nil
}

// canInstall says whether this is root on a system of the Debian family.
func canInstall() bool {
	if os.Geteuid() != 0 {
		return false
	}
	if _, err := os.Stat("/etc/debian_version"); err != nil {
		return false
	}
	_, err := exec.LookPath("apt-get")
	return err == nil
}

// noDefaultCluster keeps the Debian package from making and starting a server of its own.
func noDefaultCluster() error {
	const dir, file = "/etc/postgresql-common", "/etc/postgresql-common/createcluster.conf"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil // someone has decided already
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString("create_main_cluster = false\n")
	return errors.Join(err, f.Close())
}
