package stand

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// module is what is built.
const module = "github.com/tandemhq/tandem"

// Change is a deliberate fault: a text of a source file, which must be there exactly once, that another one takes the place of.
type Change struct {
	File string // from the root of the repository
	Old  string
	New  string
}

// Builds builds the program, each variant once. Its methods may be called concurrently.
type Builds struct {
	// Root is the folder of the repository.
	Root string

	dir string

	mu    sync.Mutex
	built map[string]func() (string, error)
}

// NewBuilds prepares to build in a temporary folder, which Remove removes.
func NewBuilds(ctx context.Context) (*Builds, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return nil, fmt.Errorf("find the repository: %w", err)
	}
	b := &Builds{Root: strings.TrimSpace(string(out)), built: make(map[string]func() (string, error))}
	if b.dir, err = newFolder(); err != nil {
		return nil, err
	}
	return b, nil
}

// Remove removes what was built.
func (b *Builds) Remove() { _ = os.RemoveAll(b.dir) }

// Program returns the path of the program with a driver, pg or sqlite, and with changes of its source.
func (b *Builds) Program(ctx context.Context, driver string, changes ...Change) (string, error) {
	key, err := json.Marshal([]any{driver, changes})
	if err != nil {
		return "", err
	}
	return b.once(string(key), func(dir string) (string, error) {
		args := []string{}
		if len(changes) > 0 {
			overlay, err := b.overlay(dir, changes)
			if err != nil {
				return "", err
			}
			args = append(args, "-overlay="+overlay)
		}
		return compile(ctx, b.Root, dir, driver, args...)
	})
}

// Revision returns the path of the program with a driver as it was at a revision of the repository.
func (b *Builds) Revision(ctx context.Context, revision, driver string) (string, error) {
	return b.once(revision+" "+driver, func(dir string) (string, error) {
		if err := exec.CommandContext(ctx, "git", "-C", b.Root, "cat-file", "-e", revision+"^{commit}").Run(); err != nil {
			return "", fmt.Errorf("the history here has no revision %s: fetch it (git fetch --unshallow), or name another with -previous", revision)
		}
		source := filepath.Join(dir, "source")
		if err := os.Mkdir(source, 0o755); err != nil {
			return "", err
		}
		archive := filepath.Join(dir, "source.tar")
		for _, command := range [][]string{
			{"git", "-C", b.Root, "archive", "--output", archive, revision},
			{"tar", "-x", "-f", archive, "-C", source},
		} {
			if output, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
				return "", fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, output)
			}
		}
		return compile(ctx, source, dir, driver)
	})
}

// once makes what is built under a key, in a folder of its own.
func (b *Builds) once(key string, prepare func(dir string) (string, error)) (string, error) {
	b.mu.Lock()
	build, ok := b.built[key]
	if !ok {
		dir := filepath.Join(b.dir, strconv.Itoa(len(b.built)))
		build = sync.OnceValues(func() (string, error) {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return "", err
			}
			return prepare(dir)
		})
		b.built[key] = build
	}
	b.mu.Unlock()
	return build()
}

func compile(ctx context.Context, root, dir, driver string, args ...string) (string, error) {
	tags := map[string]string{"pg": "pg", "memory": "memory"}[driver]
	program := filepath.Join(dir, "tandem-"+driver)
	args = append([]string{"build", "-buildvcs=false", "-tags=" + tags, "-o", program}, args...)
	build := exec.CommandContext(ctx, "go", append(args, ".")...)
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, output)
	}
	return program, nil
}

// overlay writes the changed files, and what tells the compiler of them.
func (b *Builds) overlay(dir string, changes []Change) (string, error) {
	replace := make(map[string]string)
	for i, c := range changes {
		original := filepath.Join(b.Root, filepath.FromSlash(c.File))
		read := original
		if changed, ok := replace[original]; ok {
			read = changed
		}
		text, err := os.ReadFile(read)
		if err != nil {
			return "", err
		}
		if n := bytes.Count(text, []byte(c.Old)); n != 1 || c.Old == c.New {
			return "", fmt.Errorf("the fault can't be built in: %s has %d times, not once: %q", c.File, n, c.Old)
		}
		if replace[original] == "" {
			replace[original] = filepath.Join(dir, strconv.Itoa(i)+filepath.Ext(c.File))
		}
		text = bytes.Replace(text, []byte(c.Old), []byte(c.New), 1)
		if err := os.WriteFile(replace[original], text, 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	file := filepath.Join(dir, "overlay.json")
	return file, errors.Join(err, os.WriteFile(file, text, 0o600))
}
