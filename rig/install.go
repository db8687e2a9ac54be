package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"github.com/tandemhq/tandem/internal/packages"
	"github.com/tandemhq/tandem/internal/testenv"
)

// install brings what scenarios need where it can, and else names it.
func install(ctx context.Context, out io.Writer, chosen []Scenario) error {
	var missing, names []string
	for debian, find := range map[string]func() (string, error){"postgresql": testenv.FindPostgres, "haproxy": testenv.FindHAProxy} {
		if _, err := find(); err != nil {
			missing = append(missing, debian)
		}
	}
	for _, s := range chosen {
		names = append(names, s.Programs...)
	}
	slices.Sort(names)
	missing = append(missing, packages.Missing(ctx, slices.Compact(names)...)...)
	if len(missing) == 0 {
		return nil
	}
	if !packages.CanInstall() {
		return fmt.Errorf("these packages are missing; install them (Debian, Ubuntu: apt-get install %s)", strings.Join(missing, " "))
	}
	_, _ = fmt.Fprintln(out, "installing", strings.Join(missing, ", "))
	return packages.Install(ctx, func(ctx context.Context, name string, args ...string) error {
		command := exec.CommandContext(ctx, name, args...)
		command.Stdout, command.Stderr = out, out
		return command.Run()
	}, missing...)
}
