package testenv

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// memoryRoom is the free space below which the memory file system is not used for data.
const memoryRoom = 512 << 20

// serverAttributes make the kernel end the server when the thread that started it ends.
func (a *account) serverAttributes() *syscall.SysProcAttr {
	attr := a.attributes()
	attr.Pdeathsig = signalImmediate
	attr.Setpgid = true // an interrupt at the terminal is for the tests, which stop the server
	return attr
}

// memoryFolders are places for data that need not last.
func memoryFolders() []string {
	const dir = "/dev/shm"
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < memoryRoom {
		return nil
	}
	return []string{dir}
}

// commandHas says whether a process runs and has an argument on its command line.
func commandHas(pid int, argument string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(line, []byte(argument))
}
