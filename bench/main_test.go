package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// The servers of fan-out rows are this program in processes of their own.
func TestMain(m *testing.M) {
	if os.Getenv(serveVariable) != "" {
		main()
		return
	}
	m.Run()
}

// Every row of each driver, however short, so that what make bench prints can be
// relied on. Nothing is said of the figures.
func TestRows(t *testing.T) {
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			var out, progress bytes.Buffer
			env := map[string]string{"SECONDS": "0.02", "JSON": "1", "FILTER": d.name + "/"}
			if err := run(t.Context(), &out, &progress, func(key string) string { return env[key] }); err != nil {
				t.Fatalf("%v\n%s", err, &progress)
			}
			var names []string
			for line := range strings.Lines(out.String()) {
				var r row
				if err := json.Unmarshal([]byte(line), &r); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				if r.Driver != d.name || r.PerSecond <= 0 || r.BesidePerSecond <= 0 || r.Ratio <= 0 ||
					r.P99 < r.P50 || r.BesideP99 < r.BesideP50 || r.Beside == "" {
					t.Errorf("a row that can't be right: %s", line)
				}
				names = append(names, r.Name)
			}
			for _, m := range d.rows {
				if len(names) == 0 || names[0] != m.name {
					t.Fatalf("%q come next, want %s", names, m.name)
				}
				names = names[1:]
			}
		})
	}
}

func TestWrongSettings(t *testing.T) {
	for _, env := range []map[string]string{{"SECONDS": "soon"}, {"SECONDS": "-1"}, {"FILTER": "nothing-like-that"}} {
		var out, progress bytes.Buffer
		if err := run(t.Context(), &out, &progress, func(key string) string { return env[key] }); err == nil {
			t.Errorf("%v was accepted", env)
		}
	}
}
