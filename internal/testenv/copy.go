package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const backupProgram = "pg_basebackup"

// Copy starts another server with a copy of all databases of this one, as they are at one
// moment during the call. What happens on one of the two from then on the other does not
// know, as if a backup had been restored, unless primary is not empty: then the copy is a
// hot standby that follows the server at that URL, at its own pace, until Promote. ctx bounds
// the call only.
func (c *Cluster) Copy(ctx context.Context, opts Options, primary string) (*Cluster, error) {
	fill := func(ctx context.Context, bindir string, f *folder, own *account) error {
		ctx, cancel := context.WithTimeout(ctx, initTimeout)
		defer cancel()
		program := filepath.Join(bindir, backupProgram)
		if _, err := os.Stat(program); err != nil { // some systems have it with the clients
			program = backupProgram
		}
		cmd := exec.CommandContext(ctx, program,
			"-D", f.data(), "-d", c.URL(maintenance), "--checkpoint=fast", "--no-sync")
		cmd.Dir = f.path
		cmd.Env = serverEnv()
		cmd.SysProcAttr = own.attributes()
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", backupProgram, err, output)
		}
		if primary == "" {
			return nil
		}
		return signal(f, own, standbyName)
	}
	var settings []string
	if primary != "" {
		settings = append(settings, "primary_conninfo="+primary, "wal_retrieve_retry_interval=200ms")
	}
	return startCluster(ctx, opts, fill, settings...)
}
