//go:build !pg && !memory

package main

import (
	"os/exec"
	"regexp"
	"testing"
)

// TestRig asks make rig for its list; CI runs the short scenarios in a step of their own. Once for all builds is enough.
func TestRig(t *testing.T) {
	t.Parallel()
	list, err := exec.CommandContext(t.Context(), "make", "--no-print-directory", "rig", "ARGS=-list").CombinedOutput()
	if err != nil {
		t.Fatalf("make rig: %v\n%s", err, list)
	}
	for _, scenario := range []string{"kill", "rolling", "failover-kill"} {
		if !regexp.MustCompile(`(?m)^` + scenario + `( |$)`).Match(list) {
			t.Errorf("make rig does not know %s:\n%s", scenario, list)
		}
	}
}
