package main

import (
	"bufio"
	"errors"
	"go/build/constraint"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tandemhq/tandem"

// dependencies lists the packages that a package's own code, not its tests, is linked with,
// itself included: those of the standard library, and the others.
func dependencies(t *testing.T, tag, pkg string) (standard, others []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags="+tag,
		"-f", "{{.Standard}} {{.ImportPath}}", pkg)
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps -tags=%s %s: %v", tag, pkg, err)
	}
	for line := range strings.Lines(string(output)) {
		switch kind, path, _ := strings.Cut(strings.TrimSpace(line), " "); kind {
		case "true":
			standard = append(standard, path)
		case "false":
			others = append(others, path)
		}
	}
	if len(others) == 0 {
		t.Fatalf("go list -deps -tags=%s %s names no package", tag, pkg)
	}
	return standard, others
}

// within says whether a package is one of the named ones or lies below one.
func within(path string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return path == name || strings.HasPrefix(path, name+"/")
	})
}

func TestBuildsAreIsolated(t *testing.T) {
	postgres := []string{"github.com/lib/pq", "github.com/uptrace/bun/dialect/pgdialect", module + "/coord/pg"}
	sqlite := []string{
		"modernc.org/sqlite", "github.com/uptrace/bun/dialect/sqlitedialect", module + "/coord/sqlite",
	}
	everywhere := []string{
		"github.com/google/wire", "testing", "pgregory.net/rapid", "go.uber.org/goleak",
		module + "/coord/coordtest", module + "/internal/testenv", module + "/internal/apptest", module + "/internal/child", module + "/internal/browsertest",
	}
	for _, build := range []struct {
		name, tag         string
		required, without []string
	}{
		{"sqlite", "", sqlite, slices.Concat(everywhere, postgres, []string{module + "/coord/memory"})},
		{"pg", "pg", postgres, slices.Concat(everywhere, sqlite, []string{module + "/coord/memory"})},
		// This one keeps the application's rows in an in-memory SQLite.
		{"memory", "memory", []string{module + "/coord/memory"}, slices.Concat(everywhere, postgres)},
	} {
		t.Run(build.name, func(t *testing.T) {
			standard, others := dependencies(t, build.tag, ".")
			for _, path := range slices.Concat(standard, others) {
				if within(path, build.without) {
					t.Errorf("the %s build must not link %s", build.name, path)
				}
			}
			for _, path := range build.required {
				if !slices.Contains(others, path) {
					t.Errorf("the %s build does not link %s", build.name, path)
				}
			}
		})
	}
}

func TestPackagesKeepToTheirNeighbours(t *testing.T) {
	coord := module + "/coord"
	drivers := []string{coord + "/pg", coord + "/sqlite", coord + "/memory"}
	for _, test := range []struct {
		pkg           string
		only, without []string // only: what it may use beside the standard library
	}{
		{pkg: "./coord", only: []string{coord}, without: append(drivers, coord+"/coordtest", "testing")},
		{
			pkg: "./coord/memory", only: []string{coord},
			without: []string{drivers[0], drivers[1], coord + "/coordtest", "testing", "database/sql"},
		},
		{
			pkg: "./coord/coordtest", without: append(drivers, "database/sql"),
			only: []string{coord, "pgregory.net/rapid", "go.uber.org/goleak", "github.com/anishathalye/porcupine"},
		},
		{
			pkg:  "./coord/httplimit", // other programs link it
			only: []string{coord, "github.com/realclientip/realclientip-go"}, without: append(drivers, coord+"/coordtest", "testing"),
		},
		{
			pkg:  "./coord/httpreceipt", // other programs link it
			only: []string{coord}, without: append(drivers, coord+"/coordtest", "testing", "database/sql"),
		},
		{
			pkg:  "./coord/keyring", // other programs link it
			only: []string{coord}, without: append(drivers, coord+"/coordtest", "testing", "database/sql"),
		},
		{
			pkg:  "./coord/leader", // other programs link it
			only: []string{coord}, without: append(drivers, coord+"/coordtest", "testing", "database/sql"),
		},
		{pkg: "./coord/pg", without: []string{
			drivers[1], drivers[2], coord + "/coordtest", "modernc.org/sqlite", "github.com/uptrace/bun/dialect/sqlitedialect",
		}},
		{pkg: "./coord/sqlite", without: []string{
			drivers[0], drivers[2], coord + "/coordtest", "github.com/lib/pq", "github.com/uptrace/bun/dialect/pgdialect",
		}},
		{
			pkg:  "./client", // other programs link it
			only: []string{module + "/client", coord, "github.com/gorilla/websocket", "github.com/google/uuid"}, without: append(drivers, "testing"),
		},
		{pkg: "./app/...", without: append(drivers, "github.com/google/wire")},
		{pkg: "./web/...", without: append(drivers, "github.com/google/wire")},
	} {
		t.Run(test.pkg, func(t *testing.T) {
			standard, others := dependencies(t, "", test.pkg)
			for _, path := range slices.Concat(standard, others) {
				if within(path, test.without) {
					t.Errorf("%s must not depend on %s", test.pkg, path)
				}
			}
			for _, path := range others {
				if test.only != nil && !within(path, test.only) {
					t.Errorf("%s must not depend on %s, which is none of %v", test.pkg, path, test.only)
				}
			}
		})
	}
}

// TestOnlyTheRootHasBuilds is why one run of the other packages' tests counts for all builds.
func TestOnlyTheRootHasBuilds(t *testing.T) {
	used := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			name := entry.Name()
			if path != "." && (strings.HasPrefix(name, ".") || slices.Contains([]string{"bin", "node_modules", "testdata"}, name)) {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); path != "." && err == nil {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		tags, err := buildTags(path)
		if err != nil {
			return err
		}
		for _, tag := range tags {
			if !slices.Contains([]string{"pg", "memory", "wireinject"}, tag) {
				continue
			}
			used++
			if filepath.Dir(path) != "." {
				t.Errorf("%s uses the build tag %s: only files of the root package may", path, tag)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if used == 0 {
		t.Error("no file uses the build tags: does this test still look for the right ones?")
	}
}

// buildTags returns the tags that the //go:build line of a file names.
func buildTags(path string) (tags []string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "package ") {
			break
		}
		if !constraint.IsGoBuild(line) {
			continue
		}
		expr, err := constraint.Parse(line)
		if err != nil {
			return nil, err
		}
		expr.Eval(func(tag string) bool {
			tags = append(tags, tag)
			return true
		})
		// Eval stops as soon as the answer is known: the other answer visits the rest.
		expr.Eval(func(tag string) bool {
			tags = append(tags, tag)
			return false
		})
	}
	return tags, lines.Err()
}
