package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
)

const (
	// KindRunChanged is the kind of an event on the topic of a task's runs: one was
	// queued, started, made progress, is to be cancelled, or ended. The payload is
	// the [Run].
	KindRunChanged = "run.changed"
	// KindRunLog is the kind of an event on that topic that brings [NewLines].
	KindRunLog = "run.log"
)

// RunsPrefix begins the topics of runs.
const RunsPrefix = "runs:"

// RunsTopic is the topic of the runs of a task, unless that reports into a private or
// direct room, on whose topic its runs are then. It is not for guests.
func RunsTopic(task string) string { return RunsPrefix + task }

// IsRunsTopic reports whether a task could have that topic.
func IsRunsTopic(topic string) bool {
	name, ok := strings.CutPrefix(topic, RunsPrefix)
	return ok && checkName(name) == nil
}

// IsWork reports whether an event of that kind is of a task or a run. Those of a task that
// reports into a private or direct room are on the room's topic, which guests may read;
// they are not for guests there either.
func IsWork(kind string) bool {
	return kind == KindChanged || kind == KindRunChanged || kind == KindRunLog
}

// NewLines are lines that were added to the log of a run. Those of a run follow one
// another by their numbers.
type NewLines struct {
	RunID coord.RunID `json:"run_id"`
	Lines []Line      `json:"lines"`
}

// maxLinesBytes is about how large one event with lines may be.
const maxLinesBytes = 64 << 10

// live is a Claimer that publishes what becomes of runs, in the transaction that
// makes it so, so that nobody sees one without the other, or in another order.
type live struct {
	coord.Claimer
	backend coord.Backend
	log     *slog.Logger
	lease   atomic.Int64 // of the last claim, for extending
}

// Claim publishes the starts afterwards, as a holder of the leases: nobody hears
// of a start that was so slow that somebody else has the run by now.
func (l *live) Claim(ctx context.Context, o coord.ClaimOptions) ([]coord.Claim, error) {
	claims, err := l.Claimer.Claim(ctx, o)
	if len(claims) == 0 {
		return claims, err
	}
	l.lease.Store(int64(o.Lease))
	soon, cancel := context.WithTimeout(ctx, o.Lease/4)
	defer cancel()
	failure := l.backend.InTx(soon, func(ctx context.Context, tx coord.Tx) error {
		held := make([]coord.Report, len(claims))
		var events []coord.NewEvent
		moved := make(map[string]bool) // tasks whose next time is another one now
		for i, c := range claims {
			held[i].Claim = c
			w := workOf(c.Run.Payload)
			events = append(events, runChanged(c.Run)...)
			if w.Task != "" && !c.Run.ScheduledFor.IsZero() && !moved[w.Task] {
				moved[w.Task] = true
				events = append(events, changed(w))
			}
		}
		if err := tx.Report(ctx, held...); err != nil {
			return err
		}
		return publish(ctx, tx, events)
	})
	if failure != nil && !errors.Is(failure, coord.ErrFenced) {
		l.log.WarnContext(ctx, "the start of runs was not published", "runs", len(claims), "error", failure)
	}
	return claims, err
}

// Report publishes the reports.
func (l *live) Report(ctx context.Context, reports ...coord.Report) error {
	if len(reports) == 0 {
		return l.Claimer.Report(ctx)
	}
	claims := make([]coord.Claim, len(reports))
	for i, r := range reports {
		claims[i] = r.Claim
	}
	return l.whileHeld(ctx, claims, func(ctx context.Context, tx coord.Tx, held []coord.Claim) error {
		var kept []coord.Report
		for _, c := range held {
			r := reports[slices.IndexFunc(reports, func(r coord.Report) bool { return same(r.Claim, c) })]
			r.Claim = c
			kept = append(kept, r)
		}
		return l.report(ctx, tx, kept...)
	})
}

// report makes reports whose claims are up to date, and publishes them.
func (l *live) report(ctx context.Context, tx coord.Tx, reports ...coord.Report) error {
	kept := make([]coord.Report, len(reports))
	var events []coord.NewEvent
	for i, r := range reports {
		lines := make([]string, len(r.Lines))
		for n, line := range r.Lines {
			lines[n] = readable(line, coord.MaxLogLine)
		}
		r.Lines = lines
		kept[i] = r
		events = append(events, reported(r)...)
	}
	if err := tx.Report(ctx, kept...); err != nil {
		return err
	}
	return publish(ctx, tx, events)
}

// Finish publishes the ends.
func (l *live) Finish(ctx context.Context, results ...coord.Result) error {
	if len(results) == 0 {
		return l.Claimer.Finish(ctx)
	}
	claims := make([]coord.Claim, len(results))
	for i, r := range results {
		claims[i] = r.Claim
	}
	var again []coord.RunID
	err := l.whileHeld(ctx, claims, func(ctx context.Context, tx coord.Tx, held []coord.Claim) error {
		again = again[:0]
		var kept []coord.Result
		for _, c := range held {
			r := results[slices.IndexFunc(results, func(r coord.Result) bool { return same(r.Claim, c) })]
			r.Claim = c
			if r.Outcome == coord.CancelRun {
				r.Error = "" // that it stopped when it was asked to is no error
			}
			kept = append(kept, r)
			if !r.Settle().State.Ended() {
				again = append(again, c.Run.ID)
			}
		}
		return l.finish(ctx, tx, kept)
	})
	// Only the store knows when a run is tried again, or whether it is not because
	// that was asked at the last moment.
	if err == nil || errors.Is(err, coord.ErrFenced) {
		for _, id := range again {
			l.tell(ctx, id)
		}
	}
	return err
}

// finish ends runs whose claims are up to date, and publishes those that ended for
// good.
func (l *live) finish(ctx context.Context, tx coord.Tx, results []coord.Result) error {
	var events []coord.NewEvent
	for _, r := range results {
		end, run := r.Settle(), r.Claim.Run
		if !end.State.Ended() {
			continue
		}
		run.State, run.FinishedAt = end.State, present(r.Claim)
		if end.Error != "" {
			run.Error = readable(end.Error, coord.MaxErrorText)
		}
		events = append(events, runChanged(run)...)
	}
	if err := tx.Finish(ctx, results...); err != nil {
		return err
	}
	return publish(ctx, tx, events)
}

// tell publishes what a run is now. That is a courtesy, so that a failure does not
// undo what was done.
func (l *live) tell(ctx context.Context, id coord.RunID) {
	run, err := l.Run(ctx, id)
	if err == nil {
		_, err = l.backend.Broadcaster().Publish(ctx, runChanged(run)...)
	}
	if err != nil {
		l.log.WarnContext(ctx, "a change of a run was not published", "run", id, "error", err)
	}
}

// whileHeld calls act in a transaction with those of the claims that are held, brought
// up to date by extending them. The others are named by a [coord.FencedError].
func (l *live) whileHeld(
	ctx context.Context, claims []coord.Claim, act func(context.Context, coord.Tx, []coord.Claim) error,
) error {
	var lost []coord.Claim
	for {
		held, err := l.extend(ctx, claims)
		fenced, ok := errors.AsType[*coord.FencedError](err)
		switch {
		case ok:
			lost = append(lost, fenced.Claims...)
		case err != nil:
			return err
		}
		if len(held) > 0 {
			err = l.backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error { return act(ctx, tx, held) })
		}
		switch {
		case len(held) > 0 && errors.Is(err, coord.ErrFenced): // since then
			claims = held
			continue
		case len(held) > 0 && err != nil:
			return err
		case len(lost) > 0:
			return &coord.FencedError{Claims: lost}
		}
		return nil
	}
}

// extend brings claims up to date.
func (l *live) extend(ctx context.Context, claims []coord.Claim) ([]coord.Claim, error) {
	return l.Extend(ctx, time.Duration(l.lease.Load()), claims...)
}

// present is the store's time: the lease ends there as far from now as the deadline
// that was set with it does here.
func present(c coord.Claim) time.Time {
	return c.Run.LeaseUntil.Add(-time.Until(c.Deadline)).Truncate(time.Microsecond)
}

func same(a, b coord.Claim) bool { return a.Run.ID == b.Run.ID && a.Token == b.Token }

// reported are the events of a report whose claim is up to date.
func reported(r coord.Report) []coord.NewEvent {
	run := r.Claim.Run
	w, at := workOf(run.Payload), present(r.Claim)
	var events []coord.NewEvent
	var part []Line
	size := 0
	add := func() {
		if len(part) > 0 {
			events = append(events, event(w, KindRunLog, NewLines{RunID: run.ID, Lines: part})...)
		}
		part, size = nil, 0
	}
	for i, text := range r.Lines {
		number := run.LogLines + i + 1
		if number > coord.MaxLogLines { // which is not kept
			break
		}
		if size += len(text); size > maxLinesBytes {
			add()
		}
		part = append(part, Line{Number: number, Attempt: run.Attempt, At: at, Text: text})
	}
	add()
	if r.Progress > 0 {
		run.Progress = r.Progress
		run.LogLines += len(r.Lines)
		events = append(events, runChanged(run)...)
	}
	return events
}

func runChanged(r coord.Run) []coord.NewEvent {
	w := workOf(r.Payload)
	return event(w, KindRunChanged, viewRun(r, w.Task))
}

// event is one of a task's runs, or none of a run that is of no task.
func event(w work, kind string, payload any) []coord.NewEvent {
	if w.Task == "" {
		return nil
	}
	b, err := json.Marshal(payload)
	if err != nil {
		panic(err) // the types above always can be encoded
	}
	return []coord.NewEvent{{Topic: w.runsTopic(), Kind: kind, Payload: b}}
}

// publish is [coord.Tx.Publish] of any number of events.
func publish(ctx context.Context, tx coord.Tx, events []coord.NewEvent) error {
	for some := range slices.Chunk(events, coord.MaxBatch) {
		if err := tx.Publish(ctx, some...); err != nil {
			return err
		}
	}
	return nil
}

// readable is a text as a store keeps it: cut, in UTF-8 and without NUL.
func readable(s string, most int) string {
	const strange = "\uFFFD"
	s = strings.ReplaceAll(strings.ToValidUTF8(s, strange), "\x00", strange)
	return cut(s, most)
}

// cut shortens a text in UTF-8 between two characters.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}
