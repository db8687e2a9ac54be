package stand

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// TestFolders: what a process has left that is no more goes, what others use stays.
func TestFolders(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ended := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, folderPrefix+strconv.Itoa(ended.Process.Pid)+"-1")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	first, err := newFolder()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newFolder(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("what a process had left is still there")
	}
	if _, err := os.Stat(first); err != nil {
		t.Errorf("what is used is gone: %v", err)
	}
}
