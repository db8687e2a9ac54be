// Command bench measures every driver beside its floor: the same purpose by the
// plainest statements through database/sql, or by the raw operation in memory,
// measured right after it in the same run.
//
// FILTER=claim,decision-hot narrows it to the rows whose "driver/name" contains
// one of the words, SECONDS=2 sets the length of one measurement, and JSON=1
// prints one object per row. PostgreSQL is a throw-away server with the default
// durability; SQLite has synchronous=FULL.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout, os.Getenv)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// settings come from the environment.
type settings struct {
	filter []string
	length time.Duration
	json   bool
}

func readSettings(getenv func(string) string) (settings, error) {
	s := settings{length: 2 * time.Second, json: getenv("JSON") == "1"}
	if f := getenv("FILTER"); f != "" {
		s.filter = strings.Split(f, ",")
	}
	if text := getenv("SECONDS"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || seconds <= 0 || seconds > 3600 {
			return s, fmt.Errorf("SECONDS is %q; set the seconds of one measurement, such as 2", text)
		}
		s.length = time.Duration(seconds * float64(time.Second))
	}
	return s, nil
}

func (s settings) wants(driver, name string) bool {
	if len(s.filter) == 0 {
		return true
	}
	for _, word := range s.filter {
		if strings.Contains(driver+"/"+name, strings.TrimSpace(word)) {
			return true
		}
	}
	return false
}

// row is one line of the result.
type row struct {
	Driver         string  `json:"driver"`
	Name           string  `json:"name"`
	PerSecond      float64 `json:"per_second"`
	P50            float64 `json:"p50_us"`
	P99            float64 `json:"p99_us"`
	FloorPerSecond float64 `json:"floor_per_second"`
	Ratio          float64 `json:"ratio"`
}

// floor is the plainest way to do what a workload does.
type floor struct {
	setup func(ctx context.Context) error // may be nil
	op    func(ctx context.Context, caller int) (int, error)
}

// subject is a driver that is measured.
type subject interface {
	// store opens an empty store, so that no workload finds another's rows.
	store(ctx context.Context) (store, error)
	close()
}

// store is a backend and, beside it, what the floors work on.
type store interface {
	backend() coord.Backend
	floor(ctx context.Context, w coordtest.Workload) (floor, error)
	close()
}

var drivers = []struct {
	name string
	open func(ctx context.Context) (subject, error)
}{
	{"memory", openMemory},
	{"sqlite", openSQLite},
	{"pg", openPG},
}

func run(ctx context.Context, out io.Writer, getenv func(string) string) error {
	s, err := readSettings(getenv)
	if err != nil {
		return err
	}
	if !s.json {
		_, _ = fmt.Fprintf(out, "%-8s %-24s %12s %10s %10s %12s %7s\n", "driver", "name/callers", "per second", "p50", "p99", "floor", "ratio")
	}
	rows := 0
	for _, d := range drivers {
		var wanted []int
		for i, w := range coordtest.Workloads(nil) {
			if s.wants(d.name, rowName(w)) {
				wanted = append(wanted, i)
			}
		}
		if len(wanted) == 0 {
			continue
		}
		sub, err := d.open(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		for _, i := range wanted {
			r, err := measureRow(ctx, sub, i, s.length)
			if err != nil {
				sub.close()
				return fmt.Errorf("%s: %w", d.name, err)
			}
			r.Driver = d.name
			rows++
			if err := show(out, r, s.json); err != nil {
				sub.close()
				return err
			}
		}
		sub.close()
	}
	if rows == 0 {
		return errors.New("FILTER matches no row; names are like pg/claim/8")
	}
	return nil
}

func rowName(w coordtest.Workload) string { return fmt.Sprintf("%s/%d", w.Name, w.Callers) }

// measureRow measures the i-th workload.
func measureRow(ctx context.Context, sub subject, i int, length time.Duration) (row, error) {
	st, err := sub.store(ctx)
	if err != nil {
		return row{}, err
	}
	defer st.close()
	w := coordtest.Workloads(st.backend())[i]
	f, err := st.floor(ctx, w)
	if err != nil {
		return row{}, err
	}
	if err := w.Setup(ctx); err != nil {
		return row{}, err
	}
	defer w.Close()
	if f.setup != nil {
		if err := f.setup(ctx); err != nil {
			return row{}, fmt.Errorf("floor of %s: %w", w.Name, err)
		}
	}
	// Ours and the floor take turns, so that a disturbance hits both.
	const turns = 2
	r := row{Name: rowName(w)}
	for range turns {
		ours, err := coordtest.Measure(ctx, w.Name, w.Callers, length/turns, w.Op)
		if err != nil {
			return row{}, err
		}
		raw, err := coordtest.Measure(ctx, w.Name, w.Callers, length/turns, f.op)
		if err != nil {
			return row{}, fmt.Errorf("floor: %w", err)
		}
		r.PerSecond += ours.PerSecond / turns
		r.FloorPerSecond += raw.PerSecond / turns
		r.P50 += float64(ours.P50.Nanoseconds()) / 1000 / turns
		r.P99 += float64(ours.P99.Nanoseconds()) / 1000 / turns
	}
	r.Ratio = r.PerSecond / r.FloorPerSecond
	return r, nil
}

func show(out io.Writer, r row, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	_, err := fmt.Fprintf(out, "%-8s %-24s %12.0f %10s %10s %12.0f %7.2f\n",
		r.Driver, r.Name, r.PerSecond, micros(r.P50), micros(r.P99), r.FloorPerSecond, r.Ratio)
	return err
}

func micros(us float64) string {
	d := time.Duration(us * 1000)
	switch {
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d >= 10*time.Microsecond:
		return d.Round(100 * time.Nanosecond).String()
	}
	return d.String()
}
