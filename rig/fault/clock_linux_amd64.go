package fault

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// shiftLimit is how long it may take until all threads are met where they may be.
const shiftLimit = 10 * time.Second

// ShiftClock sets the wall clock of a running program of Go ahead of the machine's, or behind it,
// by whole seconds, as a step. Its monotonic clock goes on as it was. A further call sets it
// anew; 0 makes it the machine's again.
//
// A program of Go reads the clocks by a function that the kernel maps into each process. It is
// replaced in the memory of the process while all its threads stand still outside of it.
func ShiftClock(pid int, ahead time.Duration) error {
	err := shift(pid, ahead)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		err = ErrPrivilege
	}
	if err != nil {
		return fmt.Errorf("shift the clock of a process: %w", err)
	}
	return nil
}

func shift(pid int, ahead time.Duration) error {
	from, to, err := vdso(pid)
	if err != nil {
		return err
	}
	for began := time.Now(); ; {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			return err
		}
		outside, err := standing(pid, from, to)
		if err == nil && outside {
			err = replace(pid, from, to, ahead)
		}
		err = errors.Join(err, unix.Kill(pid, unix.SIGCONT))
		switch {
		case err != nil || outside:
			return err
		case time.Since(began) > shiftLimit:
			return errors.New("one of its threads always reads the clock")
		}
	}
}

// standing waits until all threads of a process stand still, and says whether they do outside of a part of the memory.
func standing(pid int, from, to uintptr) (outside bool, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(threads) == 0 {
		return false, errors.Join(err, unix.ESRCH)
	}
	for _, thread := range threads {
		for state := ""; state != "T"; {
			text, err := os.ReadFile(filepath.Join(thread, "stat"))
			if err != nil {
				return false, err
			}
			// The name before it may have blanks in it.
			if _, err := fmt.Sscan(string(text[bytes.LastIndexByte(text, ')')+1:]), &state); err != nil {
				return false, err
			}
		}
		text, err := os.ReadFile(filepath.Join(thread, "syscall"))
		if err != nil {
			return false, err
		}
		fields := strings.Fields(string(text))
		at, err := strconv.ParseUint(strings.TrimPrefix(fields[len(fields)-1], "0x"), 16, 64)
		if err != nil {
			return false, fmt.Errorf("where a thread stands still: %q: %w", text, err)
		}
		if uint64(from) <= at && at < uint64(to) {
			return false, nil
		}
	}
	return true, nil
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

// replace puts another clock_gettime in place of the kernel's.
func replace(pid int, from, to uintptr, ahead time.Duration) error {
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	image := make([]byte, to-from)
	if _, err := memory.ReadAt(image, int64(from)); err != nil {
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
		_, err := memory.WriteAt(code, int64(from)+int64(s.Value)) //nolint:gosec // within the mapping
		return err
	}
	return errors.New("the kernel gives no clock_gettime")
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
