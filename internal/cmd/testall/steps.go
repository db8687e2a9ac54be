package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// needs says what a step cannot do without.
type needs uint

const (
	postgres needs = 1 << iota
	pooler
	redis   // what benchmarks set beside ours
	haproxy // in front of replicas, as deploy/compose has it
	chromium
	compiler // of C: the race detector is linked with it
)

// step is one check of the repository.
type step struct {
	name  string // with the build tag after a dash
	about string
	needs needs
	run   func(context.Context, *session) error
}

const toolsModule = "tools/go.mod"

// tags are the builds: no tag is SQLite.
var tags = []string{"", "pg", "memory"}

// allSteps lists the steps in the order in which they run: quick ones first.
func allSteps() []step {
	steps := []step{
		{"format", "every file is formatted", 0, checkFormat},
		{"generate", "generated files are what the generators write", 0, checkGenerated},
		{"tidy", "every go.mod is tidy", 0, checkTidy},
	}
	for _, tag := range tags {
		steps = append(steps, step{tagged("vet", tag), "go vet, " + build(tag), 0, goCommand("vet", "-tags="+tag, "./...")})
	}
	for _, tag := range tags {
		steps = append(steps, step{tagged("lint", tag), "golangci-lint, " + build(tag), 0, lint(tag)})
	}
	steps = append(steps, step{
		"test", "every test of the " + build(""), postgres | pooler | redis | chromium | compiler,
		goTest("./..."),
	})
	for _, tag := range tags[1:] {
		// Only the root package may use the tags, which a test of its own proves.
		steps = append(steps, step{
			tagged("test", tag), "the command's tests, " + build(tag), postgres | chromium | compiler,
			goTest("-tags="+tag, "."),
		})
	}
	steps = append(steps, step{"fuzz", "every fuzz target for a short while", 0, fuzz})
	return append(steps,
		step{"modules", "the other modules of the repository", postgres | redis | haproxy | chromium, checkModules},
		step{"rig", "the failure rig, its short scenarios", postgres | haproxy, shortRig},
	)
}

func tagged(name, tag string) string {
	if tag == "" {
		return name
	}
	return name + "-" + tag
}

func build(tag string) string {
	if tag == "" {
		return "default build"
	}
	return tag + " build"
}

// choose returns the steps that a comma-separated list names, in their usual order.
func choose(all []step, list string) ([]step, error) {
	if list == "" {
		return all, nil
	}
	var chosen []step
	names := strings.Split(list, ",")
	used := map[string]bool{}
	for _, s := range all {
		name, _, _ := strings.Cut(s.name, "-")
		exact, family := slices.Contains(names, s.name), slices.Contains(names, name)
		if exact || family {
			chosen = append(chosen, s)
			used[s.name], used[name] = exact || used[s.name], family || used[name]
		}
	}
	for _, name := range names {
		if !used[name] {
			return nil, fmt.Errorf("there is no step %q: see -list", name)
		}
	}
	return chosen, nil
}

func printSteps(w io.Writer, steps []step) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range steps {
		fmt.Fprintf(table, "%s\t%s\n", s.name, s.about)
	}
	_ = table.Flush()
}

// goCommand is a step of one go command at the root.
func goCommand(args ...string) func(context.Context, *session) error {
	return func(ctx context.Context, s *session) error { return s.run(ctx, ".", "go", args...) }
}

// hang is how long the tests of a package may take: more than any does on a machine that is busy with others.
const hang = "-timeout=30m"

// goTest looks for races everywhere but in the C of SQLite and its library, translated to Go:
// there the detector takes four times as long as all the rest.
func goTest(args ...string) func(context.Context, *session) error {
	return goCommand(append([]string{
		"test", "-race", hang, "-gcflags=modernc.org/sqlite/lib=-race=false", "-gcflags=modernc.org/libc=-race=false",
	}, args...)...)
}

func lint(tag string) func(context.Context, *session) error {
	return goCommand("tool", "-modfile="+toolsModule, "golangci-lint", "run", "--build-tags="+tag, "./...")
}

// checkFormat asks gofmt too, for gofumpt leaves generated files alone.
func checkFormat(ctx context.Context, s *session) error {
	var unformatted []string
	for _, args := range [][]string{
		{"go", "tool", "-modfile=" + toolsModule, "gofumpt", "-l", "."},
		{"gofmt", "-l", "."},
	} {
		output, err := s.capture(ctx, ".", args[0], args[1:]...)
		if err != nil {
			return err
		}
		unformatted = append(unformatted, strings.Fields(output)...)
	}
	if len(unformatted) == 0 {
		return nil
	}
	slices.Sort(unformatted)
	return fmt.Errorf("run make fmt, for these files are not formatted:\n%s", strings.Join(slices.Compact(unformatted), "\n"))
}

func checkGenerated(ctx context.Context, s *session) error {
	return s.run(ctx, ".", "go", "run", "./internal/cmd/wiregen", "-check")
}

func checkTidy(ctx context.Context, s *session) error {
	modules, err := findModules(".")
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range modules {
		fmt.Fprintln(s.output, "in", dir)
		if err := s.run(ctx, dir, "go", "mod", "tidy", "-diff"); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// checkModules vets and tests the modules that ./... at the root does not reach.
func checkModules(ctx context.Context, s *session) error {
	modules, err := findModules(".")
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range modules {
		if dir == "." || dir == filepath.Dir(toolsModule) {
			continue
		}
		fmt.Fprintln(s.output, "in", dir)
		for _, args := range [][]string{{"vet", "./..."}, {"test", hang, "./..."}} {
			if err := s.run(ctx, dir, "go", args...); err != nil {
				errs = append(errs, fmt.Errorf("%s: go %s: %w", dir, args[0], err))
			}
		}
	}
	return errors.Join(errs...)
}

func shortRig(ctx context.Context, s *session) error {
	return s.run(ctx, "rig", "go", "run", ".", "-short")
}

// findModules returns the folders with a go.mod, the root first.
func findModules(root string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != root && notCode(name) {
				return filepath.SkipDir
			}
			return nil
		}
		if name == "go.mod" {
			dirs = append(dirs, filepath.Dir(path))
		}
		return nil
	})
	slices.Sort(dirs)
	return dirs, err
}

// notCode reports whether a folder of that name is passed over by the go command, or holds what was built.
func notCode(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") ||
		slices.Contains([]string{"bin", "node_modules", "testdata", "vendor"}, name)
}
