package stress

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// shifts says whether startShifted can shift clocks here.
const shifts = true

// startShifted starts a program whose wall clock is ahead of the machine's, and whose
// monotonic clock is not. It is to be called on a locked thread.
//
// A program of Go reads the clocks by a function that the kernel maps into each process,
// out of reach of what is usually put in between. The kernel stops the program before its
// first instruction, and that function is replaced in its memory.
func startShifted(cmd *exec.Cmd, ahead time.Duration) error {
	if ahead == 0 {
		return cmd.Start()
	}
	cmd.SysProcAttr.Ptrace = true
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	err := func() error {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
			return err
		}
		if !status.Stopped() {
			return fmt.Errorf("it has not stopped at its start: %v", status)
		}
		if err := shift(pid, ahead); err != nil {
			return err
		}
		return syscall.PtraceDetach(pid)
	}()
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("shift the clock of a process: %w", err), cmd.Process.Kill(), cmd.Wait())
}

// shift replaces clock_gettime in a process that is stopped.
func shift(pid int, ahead time.Duration) error {
	from, to, err := vdso(pid)
	if err != nil {
		return err
	}
	image := make([]byte, to-from)
	if _, err := syscall.PtracePeekText(pid, from, image); err != nil {
		return err
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return err
	}
	code := clockGettime(ahead)
	for _, s := range symbols {
		if s.Name != "__vdso_clock_gettime" {
			continue
		}
		if s.Size < uint64(len(code)) {
			return fmt.Errorf("%s has only %d bytes", s.Name, s.Size)
		}
		_, err := syscall.PtracePokeText(pid, from+uintptr(s.Value), code)
		return err
	}
	return errors.New("the kernel gives no clock_gettime")
}

// vdso returns where the kernel's functions are in the memory of a process.
func vdso(pid int) (from, to uintptr, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			_, err := fmt.Sscanf(line, "%x-%x", &from, &to)
			return from, to, err
		}
	}
	return 0, 0, errors.New("the kernel maps no functions")
}

// clockGettime is the machine code of a clock_gettime that asks the kernel, and adds whole
// seconds to what the wall clock says.
func clockGettime(ahead time.Duration) []byte {
	code := []byte{
		0xb8, 0xe4, 0x00, 0x00, 0x00, // mov eax, SYS_clock_gettime
		0x0f, 0x05, // syscall
		0x85, 0xff, // test edi, edi
		0x75, 0x0d, // jne to the end: not CLOCK_REALTIME
		0x48, 0xb9, // mov rcx, seconds
	}
	code = binary.LittleEndian.AppendUint64(code, uint64(ahead/time.Second))
	return append(
		code,
		0x48, 0x01, 0x0e, // add [rsi], rcx
		0xc3, // ret
	)
}
