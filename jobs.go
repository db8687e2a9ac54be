package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/jobs"
	"github.com/tandemhq/tandem/app/store"
)

type jobsCmd struct {
	JSON bool `name:"json" help:"Print JSON, one object per line."`
}

// Run lists the jobs as the database has them; no server need run.
func (j jobsCmd) Run(e *env, c *Config) error {
	return withReadOnly(e, c, func(d *database) error {
		a, err := c.application(io.Discard)
		if err != nil {
			return err
		}
		list, err := app.ListJobs(e.ctx, a, d.readStore())
		if err != nil {
			return asSetting(err)
		}
		return j.print(e, list)
	})
}

func (j jobsCmd) print(e *env, list []jobs.Status) error {
	if j.JSON {
		enc := json.NewEncoder(e.stdout)
		for _, s := range list {
			if err := enc.Encode(s); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAME\tCLASS\tEVERY\tLAST RUN\tTOOK\tNEXT\tLAST ERROR")
	for _, s := range list {
		_, _ = fmt.Fprintln(w, strings.Join(jobRow(s), "\t"))
	}
	return w.Flush()
}

// jobRow is a row of the table of jobs.
func jobRow(s jobs.Status) []string {
	const none = "-"
	every, last := brief(time.Duration(s.Every*float64(time.Second))), "never"
	took, next, problem := none, none, none
	if s.Loop {
		every, last = "always", "by every replica"
	}
	if s.Turn > 0 {
		last, next = moment(s.StartedAt)+" on "+s.Node, moment(s.NextAt)
		if took = "not ended"; !s.EndedAt.IsZero() {
			took = s.EndedAt.Sub(s.StartedAt.Time).Round(time.Millisecond).String()
		}
	}
	if s.Error != "" {
		problem = moment(s.ErrorAt) + ": " + strings.Join(strings.Fields(s.Error), " ")
	}
	return []string{s.Name, string(s.Class), every, last, took, next, problem}
}

func moment(t store.Time) string { return t.UTC().Format(time.RFC3339) }

// brief is a duration without the zeros at its end: 1h, not 1h0m0s.
func brief(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
