package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// target is a fuzz test of the root module.
type target struct{ dir, name string }

var (
	targetLine = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)
	counts     = regexp.MustCompile(`execs: (\d+) .*new interesting: (\d+)`)
	deadline   = regexp.MustCompile(`(?m)^--- FAIL: Fuzz\w+ \([0-9.]+s\)\n    context deadline exceeded\nFAIL$`)
	crash      = regexp.MustCompile(`Failing input written to (\S+)`)
)

// findTargets lists the fuzz tests in the packages below root, in order. Other modules are not looked into.
func findTargets(root string) ([]target, error) {
	others, err := findModules(root)
	if err != nil {
		return nil, err
	}
	var targets []target
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if path != root && (notCode(entry.Name()) || slices.Contains(others, path)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		for _, match := range targetLine.FindAllSubmatch(source, -1) {
			targets = append(targets, target{filepath.Dir(path), string(match[1])})
		}
		return err
	})
	slices.SortFunc(targets, func(a, b target) int { return cmp.Or(cmp.Compare(a.dir, b.dir), cmp.Compare(a.name, b.name)) })
	return targets, err
}

// fuzz runs every target for its share of the time and prints a line for each, and for one that fails all
// of its output and the input.
func fuzz(ctx context.Context, s *session) error {
	targets, err := findTargets(".")
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return errors.New("there is no fuzz test")
	}
	share := s.fuzzTime / time.Duration(len(targets))
	var failed []string
	for _, t := range targets {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		name := filepath.ToSlash(filepath.Join(t.dir, t.name))
		cmd := s.command(ctx, t.dir, "go", "test", "-run=^$", "-fuzz=^"+t.name+"$", "-fuzztime="+share.String(), ".")
		output, err := cmd.CombinedOutput()
		if err != nil && !outOfTime(output) {
			failed = append(failed, name)
			fmt.Fprintf(s.output, "FAIL %s: %v\n%s%s", name, err, output, crashInput(t.dir, output))
			continue
		}
		line := "ok   " + name
		if all := counts.FindAllSubmatch(output, -1); len(all) > 0 {
			last := all[len(all)-1]
			line += fmt.Sprintf(": %s inputs, %s new", last[1], last[2])
		}
		fmt.Fprintln(s.output, line)
	}
	if len(failed) > 0 {
		return fmt.Errorf("these targets fail: %s", strings.Join(failed, ", "))
	}
	return nil
}

// outOfTime reports whether a target has only not ended when its time was over, which the go command calls a
// failure now and then until Go 1.27 (https://go.dev/issue/75804).
func outOfTime(output []byte) bool {
	return deadline.Match(output) && !crash.Match(output)
}

// crashInput is the file with the input that the output names.
func crashInput(dir string, output []byte) string {
	match := crash.FindSubmatch(output)
	if match == nil {
		return ""
	}
	path := filepath.Join(dir, string(match[1]))
	input, err := os.ReadFile(path)
	if err != nil {
		return err.Error() + "\n"
	}
	return fmt.Sprintf("%s:\n%s\n", path, input)
}
