//go:build linux

package patroni

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// answerLimit is how long an answer may take that says how a node or etcd is.
const answerLimit = 2 * time.Second

// A frozen node must not keep connections that are used again.
var rest = &http.Client{Timeout: answerLimit, Transport: &http.Transport{DisableKeepAlives: true}}

// get asks, and reads the answer into v unless that is nil. Anything but 200 is an error.
func get(ctx context.Context, address string, v any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	answer, err := rest.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", address, answer.Status)
	}
	if v == nil {
		return nil
	}
	return json.NewDecoder(answer.Body).Decode(v)
}

// post asks for something that may take a while.
func post(ctx context.Context, address string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", answer.Status, bytes.TrimSpace(text))
	}
	return nil
}

// psql runs a statement as somebody at a terminal would, and returns what it printed.
func (c *Cluster) psql(ctx context.Context, address, statement string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bindir, "psql"), "-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1",
		"-d", address, "-c", statement)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"}
	var output, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("psql: %w: %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
	return strings.TrimSpace(output.String()), nil
}
