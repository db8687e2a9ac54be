package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Names of the environment variables that override what this package would find or start.
const (
	// EnvPostgresURL names a running server, as postgres://…, whose role may create databases.
	EnvPostgresURL = "TANDEM_TEST_PG_URL"
	// EnvPostgresBin names the folder that holds initdb and postgres.
	EnvPostgresBin = "TANDEM_TEST_PG_BIN"
	// EnvPgBouncer names the pgbouncer program.
	EnvPgBouncer = "TANDEM_TEST_PGBOUNCER"
	// EnvRedis names the redis-server program, which only benchmarks use.
	EnvRedis = "TANDEM_TEST_REDIS"
	// EnvChromium names the Chromium or Chrome program.
	EnvChromium = "TANDEM_TEST_CHROMIUM"
)

// ErrMissing is in the chain of what the Find functions return when the program is not
// installed in any of the places they look at.
var ErrMissing = errors.New("not found")

const (
	adviceURL      = ", or set " + EnvPostgresURL + " to a running server"
	advicePostgres = "install PostgreSQL 15 or newer (Debian, Ubuntu: apt-get install postgresql; " +
		"Fedora: dnf install postgresql-server; macOS: brew install postgresql@17), " +
		"or set " + EnvPostgresBin + " to the folder of its programs" + adviceURL
	advicePgBouncer = "install PgBouncer (Debian, Ubuntu: apt-get install pgbouncer; " +
		"Fedora: dnf install pgbouncer; macOS: brew install pgbouncer), " +
		"or set " + EnvPgBouncer + " to the program"
	adviceRedis = "install Redis (Debian, Ubuntu: apt-get install redis-server; " +
		"Fedora: dnf install redis; macOS: brew install redis), " +
		"or set " + EnvRedis + " to the program"
	adviceChromium = "install Chromium (Debian: apt-get install chromium; " +
		"Fedora: dnf install chromium; macOS: brew install --cask google-chrome), " +
		"or set " + EnvChromium + " to the program of a Chromium or Chrome"
)

// FindPostgres returns the folder that holds the server programs initdb and postgres. It
// looks at TANDEM_TEST_PG_BIN, PATH and the usual folders of packages, newest version first.
// The error says what to install, and wraps ErrMissing unless TANDEM_TEST_PG_BIN is wrong.
func FindPostgres() (bindir string, err error) {
	if dir := os.Getenv(EnvPostgresBin); dir != "" {
		if !hasServer(dir) {
			return "", fmt.Errorf("%s is %s, which holds no initdb and postgres", EnvPostgresBin, dir)
		}
		return dir, nil
	}
	dirs := filepath.SplitList(os.Getenv("PATH"))
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/usr/local/pgsql/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
		"/opt/homebrew/bin",
		"/usr/local/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		dirs = append(dirs, newestFirst(pattern)...)
	}
	for _, dir := range dirs {
		if dir != "" && hasServer(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the PostgreSQL server programs were %w: %s", ErrMissing, advicePostgres)
}

// FindChromium returns the path of a Chromium or Chrome program. It looks at
// TANDEM_TEST_CHROMIUM, PATH and the usual folders. The error says what to install, and
// wraps ErrMissing unless TANDEM_TEST_CHROMIUM is wrong.
func FindChromium() (path string, err error) {
	return findProgram("a Chromium browser", EnvChromium, []string{
		"chromium", "chromium-browser", "google-chrome", "google-chrome-stable",
		"chrome", "headless-shell", "chrome-headless-shell",
	}, []string{
		"/usr/bin/chromium",
		"/usr/lib/chromium/chromium",
		"/snap/bin/chromium",
		"/opt/google/chrome/chrome",
		"/headless-shell/headless-shell",
		"/Applications/Chromium.app/Contents/MacOS/Chromium",
		"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
	}, adviceChromium)
}

// findProgram returns what the variable names, or else the first program that is found by its
// name in PATH or at one of the places.
func findProgram(what, variable string, names, places []string, advice string) (path string, err error) {
	if path := os.Getenv(variable); path != "" {
		if !executable(path) {
			return "", fmt.Errorf("%s is %s, which is not a program", variable, path)
		}
		return path, nil
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	for _, path := range places {
		if executable(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s was %w: %s", what, ErrMissing, advice)
}

// Chromium is FindChromium for tests: it fails tb when there is no browser.
func Chromium(tb testing.TB) (path string) {
	tb.Helper()
	path, err := FindChromium()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

func hasServer(dir string) bool {
	return executable(filepath.Join(dir, "initdb")) && executable(filepath.Join(dir, "postgres"))
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// newestFirst expands a pattern with at most one version number in it.
func newestFirst(pattern string) []string {
	dirs, _ := filepath.Glob(pattern)
	before, after, found := strings.Cut(pattern, "*")
	if !found {
		return dirs
	}
	version := func(dir string) float64 {
		n, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimPrefix(dir, before), after), 64)
		return n
	}
	slices.SortStableFunc(dirs, func(a, b string) int {
		switch va, vb := version(a), version(b); {
		case va > vb:
			return -1
		case va < vb:
			return 1
		}
		return 0
	})
	return dirs
}
