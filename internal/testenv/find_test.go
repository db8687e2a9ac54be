package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func program(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestFindPostgresPrefersTheVariable(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(EnvPostgresBin, dir)
	if _, err := FindPostgres(); err == nil || errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), EnvPostgresBin) {
		t.Fatalf("a folder without programs: got %v, want an error that names %s", err, EnvPostgresBin)
	}
	program(t, filepath.Join(dir, "initdb"))
	program(t, filepath.Join(dir, "postgres"))
	if got, err := FindPostgres(); err != nil || got != dir {
		t.Fatalf("got %q, %v; want %q", got, err, dir)
	}
}

func TestFindPostgresLooksInPath(t *testing.T) {
	dir := t.TempDir()
	program(t, filepath.Join(dir, "initdb"))
	program(t, filepath.Join(dir, "postgres"))
	t.Setenv(EnvPostgresBin, "")
	t.Setenv("PATH", t.TempDir()+string(filepath.ListSeparator)+dir)
	if got, err := FindPostgres(); err != nil || got != dir {
		t.Fatalf("got %q, %v; want %q", got, err, dir)
	}
}

func TestFindChromium(t *testing.T) {
	path := filepath.Join(t.TempDir(), "my-browser")
	t.Setenv(EnvChromium, path)
	if _, err := FindChromium(); err == nil || errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), EnvChromium) {
		t.Fatalf("no such program: got %v, want an error that names %s", err, EnvChromium)
	}
	program(t, path)
	if got := Chromium(t); got != path {
		t.Fatalf("got %q, want %q", got, path)
	}
	t.Setenv(EnvChromium, "")
	dir := t.TempDir()
	program(t, filepath.Join(dir, "google-chrome"))
	t.Setenv("PATH", dir)
	if got, err := FindChromium(); err != nil || got != filepath.Join(dir, "google-chrome") {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestFindPgBouncer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "my-pooler")
	t.Setenv(EnvPgBouncer, path)
	if _, err := FindPgBouncer(); err == nil || errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), EnvPgBouncer) {
		t.Fatalf("no such program: got %v, want an error that names %s", err, EnvPgBouncer)
	}
	program(t, path)
	if got, err := FindPgBouncer(); err != nil || got != path {
		t.Fatalf("got %q, %v; want %q", got, err, path)
	}
	t.Setenv(EnvPgBouncer, "")
	dir := t.TempDir()
	program(t, filepath.Join(dir, "pgbouncer"))
	t.Setenv("PATH", dir)
	if got, err := FindPgBouncer(); err != nil || got != filepath.Join(dir, "pgbouncer") {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestNewestFirst(t *testing.T) {
	base := t.TempDir()
	for _, version := range []string{"9.6", "16", "15", "10"} {
		if err := os.MkdirAll(filepath.Join(base, version, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, dir := range newestFirst(filepath.Join(base, "*", "bin")) {
		got = append(got, filepath.Base(filepath.Dir(dir)))
	}
	if want := []string{"16", "15", "10", "9.6"}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestAdviceNamesAllWays(t *testing.T) {
	for _, test := range []struct {
		advice string
		words  []string
	}{
		{advicePostgres, []string{"apt-get install postgresql", "brew install", EnvPostgresBin, EnvPostgresURL}},
		{advicePgBouncer, []string{"apt-get install pgbouncer", "brew install", EnvPgBouncer}},
	} {
		for _, word := range test.words {
			if !strings.Contains(test.advice, word) {
				t.Errorf("the advice %q lacks %q", test.advice, word)
			}
		}
	}
}
