package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/tandemhq/tandem/internal/packages"
	"github.com/tandemhq/tandem/internal/testenv"
)

// program is something that a package manager can bring.
type program struct {
	need   needs
	name   string
	find   func() error
	debian []string // packages
}

// programs lists what steps can need.
func programs() []program {
	return []program{
		{
			need: postgres, name: "PostgreSQL", debian: []string{"postgresql"},
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
	if !packages.CanInstall() {
		return errors.Join(errs...)
	}
	var names []string
	for _, p := range missing {
		fmt.Fprintln(s.output, p.name, "is missing and will be installed")
		names = append(names, p.debian...)
	}
	err := packages.Install(ctx, func(ctx context.Context, name string, args ...string) error { return s.run(ctx, ".", name, args...) }, names...)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, p := range missing {
		if err := p.find(); err != nil {
			return err
		}
	}
	return nil
}
