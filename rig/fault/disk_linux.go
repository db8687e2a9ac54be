package fault

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Disk is a small file system of its own, in memory.
type Disk struct {
	path    string
	ballast string
}

// NewDisk makes an empty disk of so many bytes. Every user may enter it.
func NewDisk(size int64) (*Disk, error) {
	path, err := os.MkdirTemp("", "tandem-rig-disk-")
	if err != nil {
		return nil, err
	}
	if err := syscall.Mount("tandem-rig", path, "tmpfs", 0, "mode=0755,size="+strconv.FormatInt(size, 10)); err != nil {
		if errors.Is(err, syscall.EPERM) {
			err = ErrPrivilege
		}
		return nil, errors.Join(fmt.Errorf("mount a disk: %w", err), os.Remove(path))
	}
	return &Disk{path, filepath.Join(path, "ballast")}, nil
}

// Path is where the disk is mounted.
func (d *Disk) Path() string { return d.path }

// Free is how many bytes of it are free.
func (d *Disk) Free() (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(d.path, &fs); err != nil {
		return 0, err
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}

// Fill takes what is free. What is freed later it takes when it is called again.
func (d *Disk) Fill() error {
	file, err := os.OpenFile(d.ballast, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err := file.Write(block); errors.Is(err, syscall.ENOSPC) {
			block = block[:len(block)/2]
		} else if err != nil {
			return err
		}
	}
	return nil
}

// Empty gives back what Fill took.
func (d *Disk) Empty() error {
	if err := os.Remove(d.ballast); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Close removes the disk with what is on it. Files that are still open live on until they are
// closed.
func (d *Disk) Close() error {
	return errors.Join(syscall.Unmount(d.path, syscall.MNT_DETACH), os.Remove(d.path))
}
