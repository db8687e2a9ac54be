// Command bench measures every driver beside something else, in the same run: the
// floor, which is the same purpose by the plainest statements through database/sql
// or by the raw operation in memory; River on the same server or disk; centrifuge and
// melody, for what goes across replicas and out to sockets; or the same of ours in
// easier circumstances.
//
// These variables of the environment steer it:
//
//	FILTER=claim,pg/work  only the rows whose "driver/name" contains one of the words
//	SECONDS=2             the length of one measurement
//	JSON=1                one object per row
//	PROFILE=cpu.pprof     a CPU profile; its label "side" tells ours from what is beside it
//
// PostgreSQL is a throw-away server with the default durability; SQLite has
// synchronous=FULL.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if server := os.Getenv(serveVariable); server != "" {
		err = serve(ctx, server, os.Stdin, os.Stdout)
	} else {
		err = run(ctx, os.Stdout, os.Stderr, os.Getenv)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// settings come from the environment.
type settings struct {
	filter  []string
	length  time.Duration
	json    bool
	profile string
}

func readSettings(getenv func(string) string) (settings, error) {
	s := settings{length: 2 * time.Second, json: getenv("JSON") == "1", profile: getenv("PROFILE")}
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

var drivers = []struct {
	name string
	open func(ctx context.Context) (subject, error)
	rows []measurement
}{
	{"memory", openMemory, append(workloads(), limiterMemoryRows()...)},
	{"sqlite", openSQLite, append(workloads(), queueRows(40_000, 5_000)...)},
	{"hub", openNothing, append(fanoutRows(), measurement{"fanout-slow-other/1000", measureSlow})},
	{"pg", openPG, slices.Concat(workloads(), limiterPGRows(), queueRows(60_000, 40_000), acrossRows(), []measurement{
		{"publish-notify/32", measureNotify}, {"idle/1000", measureIdle},
	})},
}

func run(ctx context.Context, out, progress io.Writer, getenv func(string) string) error {
	s, err := readSettings(getenv)
	if err != nil {
		return err
	}
	if s.profile != "" {
		file, err := os.Create(s.profile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	if !s.json {
		_, _ = fmt.Fprintf(out, "%-8s %-24s %11s %9s %9s   %-12s %11s %9s %9s %7s\n",
			"driver", "name/callers", "per second", "p50", "p99", "beside", "per second", "p50", "p99", "ratio")
	}
	shown := 0
	for _, d := range drivers {
		var wanted []measurement
		for _, m := range d.rows {
			if s.wants(d.name, m.name) {
				wanted = append(wanted, m)
			}
		}
		if len(wanted) == 0 {
			continue
		}
		err := func() error {
			sub, err := d.open(ctx)
			if err != nil {
				return err
			}
			defer sub.close()
			for _, m := range wanted {
				r, err := m.measure(ctx, sub, s.length, func(what string) {
					_, _ = fmt.Fprintf(progress, "%s/%s: %s\n", d.name, m.name, what)
				})
				if err != nil {
					return fmt.Errorf("%s: %w", m.name, err)
				}
				r.Driver, r.Name = d.name, m.name
				if err := show(out, r, s.json); err != nil {
					return err
				}
				shown++
			}
			return nil
		}()
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	if shown == 0 {
		return errors.New("FILTER matches no row; names are like pg/claim/8")
	}
	return nil
}

func show(out io.Writer, r row, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	if r.Note != "" {
		r.Note = "   " + r.Note
	}
	_, err := fmt.Fprintf(out, "%-8s %-24s %11.0f %9s %9s   %-12s %11.0f %9s %9s %7.2f%s\n",
		r.Driver, r.Name, r.PerSecond, micros(r.P50), micros(r.P99),
		r.Beside, r.BesidePerSecond, micros(r.BesideP50), micros(r.BesideP99), r.Ratio, r.Note)
	return err
}

func micros(us float64) string {
	d := time.Duration(us * 1000)
	switch {
	case d == 0:
		return "-"
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d >= 10*time.Microsecond:
		return d.Round(100 * time.Nanosecond).String()
	}
	return d.String()
}
