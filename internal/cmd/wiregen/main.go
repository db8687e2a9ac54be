// Command wiregen writes the wiring of each build of the root package.
//
// Wire knows one output file with one build line, while this repository has one injector and
// three builds of it. For each build wiregen lets Wire generate into a temporary folder and
// writes wire_gen_<build>.go with the build line that belongs to it.
//
// Usage, from the folder of the package or with -dir:
//
//	go run ./internal/cmd/wiregen          # write the files: go generate does this
//	go run ./internal/cmd/wiregen -check   # fail if the files are not what would be written
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
)

// build is one choice of tags.
type build struct {
	name       string // part of the file name
	tags       string // what go build -tags gets
	constraint string // the generated file's build line
}

var builds = []build{
	{"sqlite", "", "!wireinject && !pg && !memory"},
	{"pg", "pg", "!wireinject && pg"},
	{"memory", "memory", "!wireinject && memory && !pg"},
}

func main() {
	dir := flag.String("dir", ".", "`folder` of the package that has the injector")
	modfile := flag.String("modfile", "", "go.mod `file` that pins Wire (default tools/go.mod below -dir)")
	check := flag.Bool("check", false, "write nothing, fail if a file is not up to date")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *modfile == "" {
		*modfile = filepath.Join(*dir, "tools", "go.mod")
	}
	if err := run(ctx, *dir, *modfile, *check); err != nil {
		fmt.Fprintln(os.Stderr, "wiregen:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has just run
	}
}

func run(ctx context.Context, dir, modfile string, check bool) error {
	dir, err := realPath(dir)
	if err != nil {
		return err
	}
	if modfile, err = filepath.Abs(modfile); err != nil {
		return err
	}
	texts, errs := make([][]byte, len(builds)), make([]error, len(builds))
	var wg sync.WaitGroup
	for i, b := range builds {
		wg.Go(func() {
			if texts[i], errs[i] = generate(ctx, dir, modfile, b); errs[i] != nil {
				errs[i] = fmt.Errorf("build %s: %w", b.name, errs[i])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var stale []error
	for i, b := range builds {
		text := texts[i]
		name := filepath.Join(dir, "wire_gen_"+b.name+".go")
		committed, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		switch {
		case err == nil && bytes.Equal(committed, text):
		case check:
			stale = append(stale, fmt.Errorf("%s is not up to date, run go generate:\n%s",
				filepath.Base(name), difference(committed, text)))
		default:
			if err := os.WriteFile(name, text, 0o644); err != nil {
				return err
			}
			fmt.Println("wrote", filepath.Base(name))
		}
	}
	return errors.Join(stale...)
}

// generate returns the contents of one build's file.
func generate(ctx context.Context, dir, modfile string, b build) (text []byte, err error) {
	temp, err := os.MkdirTemp("", "wiregen")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	if temp, err = realPath(temp); err != nil {
		return nil, err
	}
	// Wire joins the package's folder and the prefix: a relative path leads it elsewhere.
	prefix, err := filepath.Rel(dir, temp)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile="+modfile, "wire", "gen",
		"-tags", b.tags, "-output_file_prefix", prefix+string(filepath.Separator), ".")
	cmd.Dir = dir
	if output, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("wire: %w\n%s", err, output)
	}
	raw, err := os.ReadFile(filepath.Join(temp, "wire_gen.go"))
	if err != nil {
		return nil, err
	}
	return finish(raw, b.constraint)
}

// finish gives Wire's output one build line in place of its own, and drops the go:generate
// line, which would run Wire without this program.
func finish(raw []byte, constraint string) ([]byte, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "//go:build %s\n\n", constraint)
	for line := range strings.Lines(string(raw)) {
		switch {
		case strings.HasPrefix(line, "//go:build "),
			strings.HasPrefix(line, "//go:generate "),
			strings.HasPrefix(line, "// +build "),
			strings.HasPrefix(line, "//+build "):
			continue
		}
		out.WriteString(line)
	}
	return format.Source(out.Bytes())
}

// difference shows the lines in which two texts differ, from the first to the last of them.
func difference(have, want []byte) string {
	a, b := strings.SplitAfter(string(have), "\n"), strings.SplitAfter(string(want), "\n")
	start := 0
	for start < len(a) && start < len(b) && a[start] == b[start] {
		start++
	}
	endA, endB := len(a), len(b)
	for endA > start && endB > start && a[endA-1] == b[endB-1] {
		endA--
		endB--
	}
	var out strings.Builder
	fmt.Fprintf(&out, "@@ line %d @@\n", start+1)
	for _, line := range a[start:endA] {
		fmt.Fprintf(&out, "-%s\n", strings.TrimSuffix(line, "\n"))
	}
	for _, line := range b[start:endB] {
		fmt.Fprintf(&out, "+%s\n", strings.TrimSuffix(line, "\n"))
	}
	return out.String()
}

func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}
