package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// TestImageBuild runs the build command of the Dockerfile for each driver, as it
// stands there, and looks whether the program can run on nothing: static, with the
// driver that was asked for, time zones included. It knows its version.
func TestImageBuild(t *testing.T) {
	t.Parallel()
	dockerfile, err := os.ReadFile("deploy/docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*) -o /out/tandem \.$`).FindSubmatch(dockerfile)
	if command == nil {
		t.Fatal("the Dockerfile has no build command that this test knows")
	}
	// One driver per build of the tests, so that all are covered once.
	program := filepath.Join(t.TempDir(), "tandem")
	build := exec.CommandContext(t.Context(), "sh", "-c", string(command[1])+` -o "$OUT" .`)
	build.Env = append(os.Environ(), "DRIVER="+driverName, "VERSION=1.2.3", "REVISION=abc", "OUT="+program)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command[1], err, out)
	}
	run := exec.CommandContext(t.Context(), program, "version")
	run.Env = []string{"PATH=/nonexistent"}
	out, err := run.Output()
	if err != nil || !strings.HasPrefix(string(out), "tandem 1.2.3\ndriver  "+driverName+"\ncommit  abc\n") {
		t.Errorf("version: %v\n%s", err, out)
	}
	if runtime.GOOS != "linux" {
		return
	}
	file, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			t.Error("the program is not static: it asks for a loader")
		}
	}
}
