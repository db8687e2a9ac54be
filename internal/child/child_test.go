package child

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const variable = "TANDEM_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(variable) != "" {
		_, _ = os.Stdout.WriteString("here\n")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the other end is closed
		os.Exit(3)
	}
	os.Exit(m.Run())
}

func TestProcess(t *testing.T) {
	start := func() (*Process, *Transcript, func()) {
		var output Transcript
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), variable+"=1")
		cmd.Stdout = &output
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		p, err := Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		return p, &output, func() { _ = in.Close() }
	}
	p, output, end := start()
	if p.Ended() {
		t.Error("it has ended by itself")
	}
	end()
	<-p.Exited()
	if !p.Ended() || p.Code() != 3 || output.String() != "here\n" {
		t.Errorf("it ended with %d and wrote %q", p.Code(), output)
	}
	if err := p.Signal(os.Interrupt); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal to one that has ended: %v", err)
	}
	p.Kill()
	p, _, end = start()
	defer end()
	p.Kill()
	if !p.Ended() || p.Code() != -1 {
		t.Errorf("it was killed, and ended with %d", p.Code())
	}
	if _, err := Start(exec.Command("/nowhere/at-all")); err == nil {
		t.Error("a program that there is not was started")
	}
}

func TestTranscript(t *testing.T) {
	var log Transcript
	for range 3 {
		_, _ = log.Write([]byte(strings.Repeat("x", most/2)))
	}
	_, _ = log.Write([]byte("the end"))
	if n := len(log.String()); n > most+most/2 || !strings.HasSuffix(log.Tail(), "the end") || len(log.Tail()) > 4000 {
		t.Errorf("%d bytes are kept, and it ends with %q", n, log.Tail())
	}
}
