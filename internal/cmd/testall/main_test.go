package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/internal/testenv"
)

func names(steps []step) string {
	var out []string
	for _, s := range steps {
		out = append(out, s.name)
	}
	return strings.Join(out, " ")
}

func TestChoose(t *testing.T) {
	all := allSteps()
	for _, test := range []struct{ list, want string }{
		{"", "format generate tidy vet vet-pg vet-memory lint lint-pg lint-memory test test-pg test-memory fuzz modules rig"},
		{"test,format", "format test test-pg test-memory"},
		{"vet-pg", "vet-pg"},
		{"lint-memory,vet-pg", "vet-pg lint-memory"},
	} {
		got, err := choose(all, test.list)
		if err != nil || names(got) != test.want {
			t.Errorf("-only %q: got %q, %v; want %q", test.list, names(got), err, test.want)
		}
	}
	for _, list := range []string{"nonsense", "vet,nonsense", "test-", "vet,,"} {
		if _, err := choose(all, list); err == nil {
			t.Errorf("-only %q was taken", list)
		}
	}
}

func TestFindModules(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"go.mod", "tools/go.mod", "bench/go.mod", "x/testdata/module/go.mod", ".git/go.mod"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := findModules(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{root, filepath.Join(root, "bench"), filepath.Join(root, "tools")}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestFindTargets(t *testing.T) {
	root := t.TempDir()
	const fuzz = "package x\n\nfunc FuzzB(f *testing.F) {\n}\n\nfunc FuzzA(f *testing.F) {\n}\n\nfunc Fuzzy(t *testing.T) {}\n"
	for _, path := range []string{"x/x_test.go", "a_test.go", "x/x.go", "x/testdata/y_test.go", "bench/b_test.go"} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(fuzz), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"", "bench"} {
		if err := os.WriteFile(filepath.Join(root, dir, "go.mod"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := findTargets(root)
	x := filepath.Join(root, "x")
	if want := []target{{root, "FuzzA"}, {root, "FuzzB"}, {x, "FuzzA"}, {x, "FuzzB"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

// TestFuzz runs a target that fails as soon as it meets what it looks for, which must be shown, and one that
// does not fail.
func TestFuzz(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example\n\ngo 1.26\n",
		"x_test.go": `package x

import "testing"

TEST FuzzBad(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 0 {
			t.Error("met it")
		}
	})
}

TEST FuzzGood(f *testing.F) { f.Fuzz(func(*testing.T, string) {}) }
`,
	} {
		text = strings.ReplaceAll(text, "TEST", "func") // so that this file has no targets
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(root)
	var out bytes.Buffer
	s := &session{env: append(os.Environ(), "GOFLAGS=", "GOWORK=off"), output: &out, fuzzTime: 10 * time.Second}
	err := fuzz(t.Context(), s)
	if err == nil || err.Error() != "these targets fail: FuzzBad" {
		t.Errorf("got %v", err)
	}
	for _, part := range []string{"FAIL FuzzBad", "met it", "go test fuzz v1\nstring(", "ok   FuzzGood: "} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("no %q in\n%s", part, &out)
		}
	}
}

func TestOutOfTimeIsNoFailure(t *testing.T) {
	const ended = "fuzz: elapsed: 2s, execs: 36\n--- FAIL: FuzzX (2.31s)\n    context deadline exceeded\nFAIL\nexit status 1\n"
	if !outOfTime([]byte(ended)) {
		t.Error("the end of the time is a failure")
	}
	for _, output := range []string{
		"--- FAIL: FuzzX (2.31s)\n    x_test.go:7: context deadline exceeded\n    Failing input written to testdata/fuzz/FuzzX/1\nFAIL\n",
		ended + "Failing input written to testdata/fuzz/FuzzX/1\n", "FAIL\n",
	} {
		if outOfTime([]byte(output)) {
			t.Errorf("no failure: %s", output)
		}
	}
}

func TestSummary(t *testing.T) {
	var out bytes.Buffer
	good := result{"vet", nil, 1500 * time.Millisecond, []string{"not this"}}
	bad := result{"test", errors.New("exit status 1"), time.Minute, []string{"--- FAIL: TestX (0.00s)"}}
	if err := summary(&out, []result{good}, 1, time.Second); err != nil {
		t.Errorf("all well: got %v", err)
	}
	if err := summary(&out, []result{good, bad}, 2, time.Minute); err == nil || err.Error() != "failed: test" {
		t.Errorf("one failed: got %v", err)
	}
	if err := summary(&out, []result{good}, 3, time.Minute); err == nil {
		t.Error("two steps that were not run are no success")
	}
	if strings.Contains(out.String(), "not this") {
		t.Errorf("what did not fail is shown in\n%s", out.String())
	}
	for _, part := range []string{"=== test failed\n--- FAIL: TestX (0.00s)\n", "vet    ok         1.5s", "test   FAILED    60.0s", "total"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("no %q in\n%s", part, out.String())
		}
	}
}

// Whatever the pieces in which it comes, the output goes through, and what failed is kept with what explains it.
func TestDigest(t *testing.T) {
	const output = `ok  	a	1s
==================
WARNING: DATA RACE
Write at 0x1 by goroutine 2:
  a.TestX()
      /a/x_test.go:7 +0xc9b

Previous read at 0x1
--- FAIL: TestX (0.01s)
    x_test.go:7: why
    --- FAIL: TestX/y (0.00s)
        x_test.go:8: that
    x_test.go:9: 1
    x_test.go:9: 2
    x_test.go:9: 3
    x_test.go:9: 4
FAIL	b	2s
ok  	c	1s
panic: test timed out after 10m0s
`
	want := []string{
		"WARNING: DATA RACE", "Write at 0x1 by goroutine 2:", "  a.TestX()", "      /a/x_test.go:7 +0xc9b", "",
		"--- FAIL: TestX (0.01s)", "    x_test.go:7: why", "    --- FAIL: TestX/y (0.00s)", "        x_test.go:8: that",
		"    x_test.go:9: 1", "    x_test.go:9: 2", "    x_test.go:9: 3",
		"FAIL\tb\t2s",
		"panic: test timed out after 10m0s",
	}
	for _, size := range []int{1, 7, len(output)} {
		var out bytes.Buffer
		d := &digest{w: &out}
		for part := range slices.Chunk([]byte(output), size) {
			if n, err := d.Write(part); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		if out.String() != output {
			t.Errorf("what went through in pieces of %d is\n%s", size, &out)
		}
		if got := d.failures(); !slices.Equal(got, want) {
			t.Errorf("of pieces of %d it kept\n%s", size, strings.Join(got, "\n"))
		}
		if got := d.failures(); len(got) > 0 {
			t.Errorf("the next step is said to have failed by %q", got)
		}
		_, _ = d.Write([]byte(strings.Repeat("before\n", 100) + "a.go:7: this is wrong\n"))
		if got := d.failures(); len(got) != mostLast || got[mostLast-1] != "a.go:7: this is wrong" {
			t.Errorf("of what nothing is known of it kept %q", got)
		}
		long := strings.Repeat("--- FAIL: long ", 1000) + "\n"
		for range 1000 {
			_, _ = d.Write([]byte(long))
		}
		if got := strings.Join(d.failures(), ""); len(got) > mostKept*mostBytes {
			t.Errorf("%d bytes are kept", len(got))
		}
	}
}

func TestCommandsRunWithTheSessionsEnvironment(t *testing.T) {
	var out bytes.Buffer
	s := &session{env: os.Environ(), output: &out}
	s.setenv("TESTALL_WORD", "heard")
	if err := s.run(t.Context(), ".", "sh", "-c", "echo $TESTALL_WORD >&2"); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), "\nheard\n") {
		t.Errorf("got %q", out.String())
	}
	if err := s.run(t.Context(), ".", "sh", "-c", "exit 3"); err == nil {
		t.Error("a failed command is no success")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := s.run(ctx, ".", "sleep", "60"); err == nil || time.Since(began) > 30*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
}

func TestMissingCompilerIsExplained(t *testing.T) {
	t.Setenv("CC", "no-such-compiler")
	if err := findCompiler(); !errors.Is(err, testenv.ErrMissing) || !strings.Contains(err.Error(), "gcc") {
		t.Errorf("got %v", err)
	}
}

func TestWrongVariableIsNotInstalledOver(t *testing.T) {
	t.Setenv(testenv.EnvPostgresURL, "")
	t.Setenv(testenv.EnvPostgresBin, t.TempDir())
	var out bytes.Buffer
	s := &session{env: os.Environ(), output: &out}
	err := s.install(t.Context(), postgres)
	if err == nil || !strings.Contains(err.Error(), testenv.EnvPostgresBin) || out.Len() > 0 {
		t.Errorf("got %v and %q, want a sentence that names the variable", err, &out)
	}
}
