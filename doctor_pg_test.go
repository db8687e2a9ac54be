//go:build pg

package main

import (
	"strings"
	"testing"

	"github.com/tandemhq/tandem/coord/keyring"
	"github.com/tandemhq/tandem/internal/testenv"
)

// TestDoctorOfACluster looks at three replicas that run on a server as one is in production, with
// settings that are not theirs, and when an index is lost.
func TestDoctorOfACluster(t *testing.T) {
	t.Parallel()
	server, err := testenv.StartCluster(t.Context(), testenv.Options{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	kek := keyring.NewKEK()
	c := &cluster{tb: t, url: server.NewDatabase(t, "", nil), flags: []string{"--key-encryption-key", kek}}
	for range 3 {
		c.replicas = append(c.replicas, c.launch())
	}
	for _, r := range c.replicas {
		r.listening()
	}
	var checks map[string]doctorResult
	var verdict string
	look := func(flags ...string) (code int) {
		code, checks, verdict = doctorSays(t, append(flags, "--database-url", c.url)...)
		return code
	}
	eventually(t, func() string {
		if look(c.flags...); strings.Count(checks["replicas"].Found, "node-") != 3 {
			return "not all replicas are seen: " + checks["replicas"].Found
		}
		return ""
	})
	if code := look(c.flags...); code != 0 || verdict != "A second replica is safe." {
		t.Errorf("three replicas: exit code %d: %s\n%+v", code, verdict, checks)
	}
	if r := checks["connections"]; !strings.HasPrefix(r.Found, "3 replicas") {
		t.Errorf("connections: %+v", r)
	}
	if code := look("--key-encryption-key", keyring.NewKEK()); code != 1 || !strings.Contains(verdict, "keys are sealed by what these settings lack") {
		t.Errorf("with other settings: exit code %d: %s", code, verdict)
	}
	if _, err := c.open().ExecContext(t.Context(), `DROP INDEX coord_runs_occurrence`); err != nil {
		t.Fatal(err)
	}
	if code := look(c.flags...); code != 1 || !strings.HasPrefix(verdict, "A second replica is NOT safe") || !strings.Contains(verdict, "coord_runs_occurrence is missing") {
		t.Errorf("without an index: exit code %d: %s", code, verdict)
	}
}
