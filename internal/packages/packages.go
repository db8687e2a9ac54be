// Package packages brings programs of Debian packages for those who test and break: as root on a system of the Debian
// family it installs them, elsewhere it can only say what to install.
package packages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// clusterFile tells the package of PostgreSQL whether to make a server of its own, and start it.
const clusterFile = "/etc/postgresql-common/createcluster.conf"

// CanInstall reports whether this is root on a system of the Debian family.
func CanInstall() bool {
	if os.Geteuid() != 0 {
		return false
	}
	if _, err := os.Stat("/etc/debian_version"); err != nil {
		return false
	}
	_, err := exec.LookPath("apt-get")
	return err == nil
}

// Missing returns those of the packages that are not installed, as far as the system knows of packages.
func Missing(ctx context.Context, names ...string) (missing []string) {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		return nil
	}
	for _, name := range names {
		out, err := exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat=${db:Status-Status}", name).Output()
		if err != nil || strings.TrimSpace(string(out)) != "installed" {
			missing = append(missing, name)
		}
	}
	return missing
}

// Install installs packages by means of run, which runs a program. PostgreSQL starts no server of its own.
func Install(ctx context.Context, run func(ctx context.Context, name string, args ...string) error, names ...string) error {
	if err := noDefaultCluster(clusterFile); err != nil {
		return err
	}
	for _, args := range [][]string{{"update"}, append([]string{"install", "--yes", "--no-install-recommends"}, names...)} {
		if err := run(ctx, "env", append([]string{"DEBIAN_FRONTEND=noninteractive", "apt-get"}, args...)...); err != nil {
			return fmt.Errorf("apt-get %s: %w", args[0], err)
		}
	}
	return nil
}

// noDefaultCluster writes the file, unless someone has decided already.
func noDefaultCluster(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString("create_main_cluster = false\n")
	return errors.Join(err, f.Close())
}
