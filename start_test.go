package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// The database answers for hours, and then no more, in one of several ways. That is found out when
// it has said nothing for a minute, and not before.
func TestSilence(t *testing.T) {
	nothing := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, after := range map[string]func(context.Context) error{
		"no answer comes":    nothing,
		"nobody is there":    func(context.Context) error { return errors.New("refused") },
		"connecting is vain": func(context.Context) error { time.Sleep(5 * time.Second); return context.DeadlineExceeded },
	} {
		synctest.Test(t, func(t *testing.T) {
			began, last := time.Now(), time.Time{}
			answers := func(context.Context) error { time.Sleep(3 * time.Second); last = time.Now(); return nil }
			ask := func(ctx context.Context) error {
				switch since := time.Since(began); {
				case since > 3*time.Hour:
					return after(ctx)
				case since > time.Hour && since < time.Hour+50*time.Second:
					return errors.New("away for a while")
				}
				return answers(ctx)
			}
			if !silent(t.Context(), time.Minute, ask) {
				t.Errorf("%s: that was not found out", name)
			}
			if took := time.Since(last); took < time.Minute || took > time.Minute+5*time.Second {
				t.Errorf("%s: that was found out after %v", name, took)
			}
			if time.Since(began) < 3*time.Hour {
				t.Errorf("%s: that was found out too early", name)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if silent(ctx, time.Minute, answers) {
				t.Errorf("%s: the database is said to be silent when the start is over", name)
			}
			if silent(ctx, time.Minute, nothing) {
				t.Errorf("%s: the database is said to be silent, and nobody waits any more", name)
			}
		})
	}
}
