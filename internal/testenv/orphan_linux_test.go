package testenv

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"
)

// TestKilledProcessLeavesNoServer kills a process that has a cluster, as a time limit would.
func TestKilledProcessLeavesNoServer(t *testing.T) {
	cmd := childCommand(t, "cluster", EnvPostgresURL+"=")
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var folder string
	line, err := bufio.NewReader(output).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscanf(line, "pid %d folder %s", &pid, &folder)
	}
	if err != nil {
		t.Fatalf("the child said %q: %v", line, err)
	}
	if !commandHas(pid, folder) {
		t.Fatal("the child has no server")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	began := time.Now()
	for commandHas(pid, folder) {
		if time.Since(began) > 20*time.Second {
			t.Fatal("the server outlives the process that started it")
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("the server was gone %s after the kill", time.Since(began).Round(time.Millisecond))

	start(t, Options{})
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the next start did not remove the folder: %v", err)
	}
}
