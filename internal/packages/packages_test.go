package packages

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestNoDefaultCluster(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "createcluster.conf")
	for range 2 {
		if err := noDefaultCluster(file); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "create_main_cluster = false\n" {
		t.Errorf("%q, %v", text, err)
	}
	const decided = "create_main_cluster = true\n"
	if err := os.WriteFile(file, []byte(decided), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := noDefaultCluster(file); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(file); string(text) != decided {
		t.Errorf("what somebody had decided became %q", text)
	}
}

func TestMissing(t *testing.T) {
	const name = "tandem-no-such-package"
	if got := Missing(t.Context(), name); CanInstall() && !slices.Equal(got, []string{name}) {
		t.Errorf("missing: %q", got)
	}
}
