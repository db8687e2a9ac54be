package stand

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOverlay: a change is made of the text that is there once, and refused otherwise; several of one file add up.
func TestOverlay(t *testing.T) {
	b := &Builds{Root: t.TempDir()}
	if err := os.WriteFile(filepath.Join(b.Root, "x.go"), []byte("one two two three"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []Change{{"x.go", "four", "4"}, {"x.go", "two", "2"}, {"x.go", "one", "one"}, {"y.go", "one", "1"}} {
		if _, err := b.overlay(t.TempDir(), []Change{wrong}); err == nil {
			t.Errorf("%+v was made", wrong)
		}
	}
	dir := t.TempDir()
	file, err := b.overlay(dir, []Change{{"x.go", "one", "1"}, {"x.go", "three", "3"}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "0.go"))
	if err != nil || string(text) != "1 two two 3" {
		t.Errorf("%q, %v", text, err)
	}
	if overlay, _ := os.ReadFile(file); !strings.Contains(string(overlay), filepath.Join(b.Root, "x.go")) {
		t.Errorf("the compiler is not told: %s", overlay)
	}
}

// TestProxyConfiguration: what is changed of deploy/compose is still there to be changed.
func TestProxyConfiguration(t *testing.T) {
	text, err := os.ReadFile("../../deploy/compose/haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	config := string(text)
	for name, pattern := range map[string]interface{ MatchString(string) bool }{
		"the address": composeBind, "look-ups of names": composeLookUps, "servers": composeServers,
	} {
		if !pattern.MatchString(config) {
			t.Errorf("deploy/compose/haproxy.cfg has no %s", name)
		}
	}
	for name, change := range map[string]func(string) string{"NoHealthChecks": NoHealthChecks, "CutWhenDown": CutWhenDown} {
		if change(config) == config {
			t.Errorf("%s changes nothing", name)
		}
	}
}
