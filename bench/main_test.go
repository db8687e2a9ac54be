package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// A row of each workload on each driver, however short, so that what make bench
// prints can be relied on. Nothing is said of the figures.
func TestRows(t *testing.T) {
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			env := map[string]string{"SECONDS": "0.02", "JSON": "1", "FILTER": d.name + "/claim," + d.name + "/decision," +
				d.name + "/ticket," + d.name + "/publish," + d.name + "/deliver"}
			if err := run(t.Context(), &out, func(key string) string { return env[key] }); err != nil {
				t.Fatal(err)
			}
			kinds := map[string]int{}
			for line := range strings.Lines(out.String()) {
				var r row
				if err := json.Unmarshal([]byte(line), &r); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				if r.Driver != d.name || r.PerSecond <= 0 || r.FloorPerSecond <= 0 || r.Ratio <= 0 || r.P99 < r.P50 {
					t.Errorf("a row that can't be right: %s", line)
				}
				kind, _, _ := strings.Cut(r.Name, "/")
				kinds[kind]++
			}
			for _, kind := range []string{
				"claim", "claim-single", "decision-uniform", "decision-hot-denied", "ticket", "publish-many", "publish-hot", "deliver",
			} {
				if kinds[kind] != 3 {
					t.Errorf("%d rows of %s, want one each for 1, 8 and 32 callers", kinds[kind], kind)
				}
			}
		})
	}
}

func TestWrongSettings(t *testing.T) {
	for _, env := range []map[string]string{{"SECONDS": "soon"}, {"SECONDS": "-1"}, {"FILTER": "nothing-like-that"}} {
		var out bytes.Buffer
		if err := run(t.Context(), &out, func(key string) string { return env[key] }); err == nil {
			t.Errorf("%v was accepted", env)
		}
	}
}
