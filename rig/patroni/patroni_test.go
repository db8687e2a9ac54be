//go:build linux

package patroni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The profile that docs/failure-rig.md tells of is the one that runs.
func TestProfileIsDocumented(t *testing.T) {
	document, err := os.ReadFile(filepath.Join("..", "..", "docs", "failure-rig.md"))
	if err != nil {
		t.Fatal(err)
	}
	var node, proxy strings.Builder
	if err := nodeSettings.Execute(&node, map[string]any{"Synchronous": true}); err != nil {
		t.Fatal(err)
	}
	if err := proxySettings.Execute(&proxy, map[string]any{}); err != nil {
		t.Fatal(err)
	}
	for what, block := range map[string]string{
		"Patroni": part(node.String(), "  dcs:\n", "  initdb:\n"),
		"HAProxy": part(proxy.String(), "    bind 127.0.0.1:<no value>\n", ""),
	} {
		if block == "" || !strings.Contains(string(document), block) {
			t.Errorf("the document does not have these settings of %s:\n%s", what, block)
		}
	}
}

func part(text, from, to string) string {
	_, text, _ = strings.Cut(text, from)
	if to != "" {
		text, _, _ = strings.Cut(text, to)
	}
	return text
}

func TestStatusOfProcess(t *testing.T) {
	parent, state := status(os.Getpid())
	if parent != os.Getppid() || state == "" || state == zombie {
		t.Errorf("this process: started by %d, %q; want %d and something that runs", parent, state, os.Getppid())
	}
	const nobody = 1 << 30
	if left := running([]int{os.Getpid(), nobody}); len(left) != 1 || left[0] != os.Getpid() {
		t.Errorf("%v run, want this process alone", left)
	}
}
