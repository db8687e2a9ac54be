package coordtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// inTx runs fn in a transaction that must commit.
func (f *fixture) inTx(b coord.Backend, fn func(ctx context.Context, tx coord.Tx) error) {
	f.Helper()
	must(f, "InTx", b.InTx(f.ctx, fn))
}

var errOwn = errors.New("the function's own error")

var txTests = []test{
	{"a commit makes everything", func(f *fixture) {
		f.enqueueOne(f.one, coord.NewRun{Kind: "held"})
		claim := f.claimOne(f.one, "held")
		stream := f.subscribe(f.two, at("t", coord.Head))
		var queued []coord.Run
		var task coord.Task
		calls := 0
		f.inTx(f.one, func(ctx context.Context, tx coord.Tx) (err error) {
			calls++
			if task, err = tx.PutTask(ctx, coord.Task{Name: "n", Kind: "k"}); err != nil {
				return err
			}
			if queued, err = tx.Enqueue(ctx, coord.NewRun{Kind: "new", UniqueKey: "a"},
				coord.NewRun{Kind: "new", UniqueKey: "a"}); err != nil {
				return err
			}
			if err := tx.Finish(ctx, coord.Result{Claim: claim, Outcome: coord.Succeed}); err != nil {
				return err
			}
			if err := tx.Publish(ctx, event("t", "1"), event("u", "1")); err != nil {
				return err
			}
			return tx.Publish(ctx, event("t", "2"))
		})
		equal(f, "how often the function was called", calls, 1)
		sameTask(f, "after the commit", f.task("n"), task)
		equal(f, "Duplicate of the second run of a key", queued[1].Duplicate, true)
		equal(f, "the run that was queued", f.claimOne(f.two, "new").Run.ID, queued[0].ID)
		f.state(claim.Run.ID, coord.Succeeded)
		f.nextNumbered(stream, "t", 1, 2)
		equal(f, "the head of the other topic", f.head("u").Seq, int64(1))
	}},
	{"a rollback undoes everything", func(f *fixture) {
		kept := f.put(coord.Task{Name: "kept", Kind: "k", Schedule: "@every 1m"})
		f.enqueueOne(f.one, coord.NewRun{Kind: "held", UniqueKey: "held"})
		claim := f.claimOne(f.one, "held")
		f.publish(f.one, event("t", "1"))
		before := f.run(claim.Run.ID)
		stream := f.subscribe(f.two, at("t", coord.Head))
		undone := func(ctx context.Context, tx coord.Tx) error {
			edited := kept
			edited.Kind, edited.Schedule, edited.Paused = "edited", "@every 1h", true
			if _, err := tx.PutTask(ctx, edited); err != nil {
				return err
			}
			if _, err := tx.PutTask(ctx, coord.Task{Name: "n", Kind: "k", Schedule: "@every 1m"}); err != nil {
				return err
			}
			if _, err := tx.Enqueue(ctx, coord.NewRun{Kind: "new", UniqueKey: "a"}); err != nil {
				return err
			}
			if err := tx.Finish(ctx, coord.Result{Claim: claim, Outcome: coord.Succeed}); err != nil {
				return err
			}
			return tx.Publish(ctx, event("t", "undone"), event("new topic", "undone"))
		}
		f.rollsBack(undone)
		sameTask(f, "after the rollback", f.task("kept"), kept)
		_, err := f.two.Claimer().Task(f.ctx, "n")
		is(f, "Task that was created and rolled back", err, coord.ErrNotFound)
		sameRun(f, "after the rollback", f.run(claim.Run.ID), before)
		f.claimNone(f.two, "new", "the run was rolled back")
		equal(f, "Duplicate for a key that was rolled back",
			f.enqueueOne(f.two, coord.NewRun{Kind: "new", UniqueKey: "a"}).Duplicate, false)
		f.put(coord.Task{Name: "n", Kind: "k"}) // the name is free again
		equal(f, "the head of a topic that was rolled back", f.head("new topic"), coord.Start)
		f.publish(f.two, event("t", "2"))
		f.nextNumbered(stream, "t", 2, 2) // no hole, and nothing of what was undone
		f.store.Advance(time.Second)
		f.finish(f.two, coord.Result{Claim: claim, Outcome: coord.Succeed})
		f.store.Advance(59 * time.Second)
		f.claimOne(f.two, "k") // the task's own schedule is in force
	}},
	{"a commit changes tasks and runs that are there", func(f *fixture) {
		s := f.someWork()
		var triggered [3]coord.Run
		f.inTx(f.one, func(ctx context.Context, tx coord.Tx) (err error) {
			for i, o := range []coord.TriggerOptions{{}, {Key: "a", Payload: []byte("own")}, {Key: "a"}} {
				if triggered[i], err = tx.Trigger(ctx, "allow", o); err != nil {
					return err
				}
			}
			return s.change(ctx, tx)
		})
		_, err := f.two.Claimer().Task(f.ctx, "deleted")
		is(f, "Task that was deleted", err, coord.ErrNotFound)
		f.state(s.ofDeleted.ID, coord.Cancelled)
		equal(f, "Paused", f.task("paused").Paused, true)
		f.state(s.queued.ID, coord.Cancelled)
		running := f.state(s.running.Run.ID, coord.Running)
		equal(f, "CancelRequested", running.CancelRequested, true)
		equal(f, "Progress", running.Progress, 50)
		equal(f, "the log", f.texts(running.ID), []string{"half"})
		equal(f, "Payload of the first trigger", string(triggered[0].Payload), "the task's")
		equal(f, "Payload of the second", string(triggered[1].Payload), "own")
		equal(f, "ID for a key that the same transaction has used", triggered[2].ID, triggered[1].ID)
		equal(f, "Duplicate for it", triggered[2].Duplicate, true)
		f.claimExactly("what was triggered", f.two, want("allow", 10), triggered[0].ID, triggered[1].ID)
		again, err := f.two.Claimer().Trigger(f.ctx, "allow", coord.TriggerOptions{Key: "a"})
		must(f, "Trigger", err)
		equal(f, "ID for a key that a transaction has used", again.ID, triggered[1].ID)
		f.store.Advance(time.Minute)
		f.claimNone(f.two, "k", "one task is deleted and one paused")
	}},
	{"a rollback leaves tasks and runs that are there", func(f *fixture) {
		s := f.someWork()
		before := f.runs(coord.RunFilter{})
		f.rollsBack(func(ctx context.Context, tx coord.Tx) error {
			if _, err := tx.Trigger(ctx, "allow", coord.TriggerOptions{Key: "a"}); err != nil {
				return err
			}
			return s.change(ctx, tx)
		})
		after := f.runs(coord.RunFilter{})
		equal(f, "how many runs there are", len(after), len(before))
		for i := range after {
			sameRun(f, "after the rollback", after[i], before[i])
		}
		equal(f, "how many log lines there are", len(f.log(s.running.Run.ID, 0)), 0)
		equal(f, "Paused", f.task("paused").Paused, false)
		r, err := f.two.Claimer().Trigger(f.ctx, "allow", coord.TriggerOptions{Key: "a"})
		must(f, "Trigger", err)
		equal(f, "Duplicate for a key that was rolled back", r.Duplicate, false)
		f.claimExactly("of what was not cancelled", f.two, want("queued", 10), s.queued.ID)
		f.succeed(f.claimExactly("of what was not deleted", f.two, want("k", 10), s.ofDeleted.ID)...)
		f.finish(f.one, coord.Result{Claim: s.running, Outcome: coord.Succeed})
		f.store.Advance(time.Minute)
		f.claimCount("of tasks that are neither deleted nor paused", f.two, want("k", 10), 2)
	}},
	{"an error of the function comes back as it is", func(f *fixture) {
		own := fmt.Errorf("wrapped: %w", errOwn)
		if err := f.one.InTx(f.ctx, func(context.Context, coord.Tx) error { return own }); err != own { //nolint:errorlint // the very error
			f.Errorf("InTx returned %v (%T); want the very error of the function", err, err)
		}
	}},
	{"a panic in the function rolls back", func(f *fixture) {
		func() {
			defer func() {
				if p := recover(); p != "on purpose" {
					f.Errorf("the panic came out of InTx as %v; want it as it was", p)
				}
			}()
			_ = f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
				if _, err := tx.Enqueue(ctx, coord.NewRun{Kind: "k"}); err != nil {
					f.Errorf("Enqueue: %v", err)
				}
				panic("on purpose")
			})
		}()
		equal(f, "how many runs are stored", len(f.runs(coord.RunFilter{})), 0)
		f.inTx(f.one, func(ctx context.Context, tx coord.Tx) error { // nothing is left locked
			_, err := tx.Enqueue(ctx, coord.NewRun{Kind: "k"})
			return err
		})
		f.claimOne(f.two, "k")
	}},
	{"a fenced Finish rolls the handler back", func(f *fixture) {
		f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		stale := f.claimOne(f.one, "k")
		f.store.Advance(2 * lease)
		good := f.claimOne(f.two, "k")
		effect := func(c coord.Claim) error {
			return f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
				if err := tx.Publish(ctx, event("t", "1")); err != nil {
					return err
				}
				return tx.Finish(ctx, coord.Result{Claim: c, Outcome: coord.Succeed})
			})
		}
		fenced(f, "InTx with the Finish of a lost lease", effect(stale), stale)
		equal(f, "the head of the topic after it", f.head("t"), coord.Start)
		f.state(good.Run.ID, coord.Running)
		must(f, "InTx with the Finish of the lease that is held", effect(good))
		equal(f, "the number of the event", f.head("t").Seq, int64(1))
		f.state(good.Run.ID, coord.Succeeded)
	}},
	{"an error that the function swallows does not undo the rest", func(f *fixture) {
		f.put(coord.Task{Name: "n", Kind: "k"})
		f.trigger("n")
		f.enqueueOne(f.one, coord.NewRun{Kind: "ended"})
		ended := f.claimOne(f.one, "ended")
		f.succeed(ended)
		f.inTx(f.one, func(ctx context.Context, tx coord.Tx) error {
			if _, err := tx.PutTask(ctx, coord.Task{Name: "n", Kind: "k"}); !errors.Is(err, coord.ErrConflict) {
				f.Errorf("PutTask of a name that is taken: %v; want ErrConflict", err)
			}
			if _, err := tx.Enqueue(ctx, coord.NewRun{}); !errors.Is(err, coord.ErrInvalid) {
				f.Errorf("Enqueue of a run without kind: %v; want ErrInvalid", err)
			}
			if _, err := tx.Trigger(ctx, "n", coord.TriggerOptions{}); !errors.Is(err, coord.ErrConflict) {
				f.Errorf("Trigger while a run is in the way: %v; want ErrConflict", err)
			}
			for what, err := range map[string]error{
				"Trigger":    second(tx.Trigger(ctx, "none", coord.TriggerOptions{})),
				"DeleteTask": tx.DeleteTask(ctx, "none"),
				"PauseTask":  tx.PauseTask(ctx, "none", true),
				"Cancel":     tx.Cancel(ctx, 1<<40),
			} {
				if !errors.Is(err, coord.ErrNotFound) {
					f.Errorf("%s of what is not there: %v; want ErrNotFound", what, err)
				}
			}
			if err := tx.Cancel(ctx, ended.Run.ID); !errors.Is(err, coord.ErrConflict) {
				f.Errorf("Cancel of a run that has ended: %v; want ErrConflict", err)
			}
			if err := tx.Report(ctx, coord.Report{Claim: ended, Progress: 1}); !errors.Is(err, coord.ErrFenced) {
				f.Errorf("Report of a run that has ended: %v; want ErrFenced", err)
			}
			_, err := tx.Enqueue(ctx, coord.NewRun{Kind: "new"})
			return err
		})
		f.claimOne(f.two, "new")
	}},
	{"the backend may not be called inside", func(f *fixture) {
		f.inTx(f.one, func(ctx context.Context, _ coord.Tx) error {
			for name, err := range map[string]error{
				"Enqueue": second(f.one.Claimer().Enqueue(ctx, coord.NewRun{Kind: "k"})),
				"Claim":   second(f.one.Claimer().Claim(ctx, want("k", 1))),
				"Runs":    firstError(f.one.Claimer().Runs(ctx, coord.RunFilter{})),
				"Publish": second(f.one.Broadcaster().Publish(ctx, event("t", "x"))),
				"Allow":   second(f.one.Limiter().Allow(ctx, perSecond("k", 1, 1))),
				"Issue":   second(f.one.Tickets().Issue(ctx, pass("s"))),
				"Ping":    f.one.Ping(ctx),
				"InTx":    f.one.InTx(ctx, func(context.Context, coord.Tx) error { return nil }),
			} {
				is(f, name+" with the context of a transaction", err, coord.ErrInvalid)
			}
			return nil
		})
	}},
	{"a context that ends before the commit leaves all or nothing", func(f *fixture) {
		ctx, cancel := context.WithCancel(f.ctx)
		err := f.one.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
			if err := tx.Publish(ctx, event("t", "1")); err != nil {
				return err
			}
			_, err := tx.Enqueue(ctx, coord.NewRun{Kind: "k"})
			cancel()
			return err
		})
		// The function returned nil, so that it may be committed; but the caller must
		// be able to tell.
		runs, events := len(f.runs(coord.RunFilter{})), int(f.head("t").Seq)
		switch {
		case err == nil:
			equal(f, "how many runs and events a commit has stored", [2]int{runs, events}, [2]int{1, 1})
		case errors.Is(err, coord.ErrUnknownOutcome):
			equal(f, "how many events are stored beside the runs", events, runs)
		default:
			is(f, "InTx whose context was cancelled before the commit", err, context.Canceled)
			equal(f, "how many runs and events a rollback has left", [2]int{runs, events}, [2]int{0, 0})
		}
		err = f.one.InTx(ctx, func(context.Context, coord.Tx) error {
			f.Error("the function was called with a cancelled context")
			return nil
		})
		is(f, "InTx with a cancelled context", err, context.Canceled)
	}},
	{"a stored task fires from the transaction on", func(f *fixture) {
		var t coord.Task
		f.inTx(f.one, func(ctx context.Context, tx coord.Tx) (err error) {
			t, err = tx.PutTask(ctx, coord.Task{Name: "n", Kind: "k", Schedule: "@every 1m"})
			return err
		})
		f.store.Advance(time.Minute)
		equal(f, "ScheduledFor", f.claimOne(f.two, "k").Run.ScheduledFor, t.NextAt)
	}},
	{"transactions at once publish without a hole", func(f *fixture) {
		stream := f.subscribe(f.two, map[string]coord.Position{"a": coord.Head, "b": coord.Head})
		const callers, times = 8, 15
		f.together(callers, func(i int, b coord.Backend) {
			for k := range times {
				roll := (i+k)%3 == 0
				err := b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
					first, then := "a", "b"
					if i%2 == 0 {
						first, then = then, first
					}
					if err := tx.Publish(ctx, event(first, "x"), event(then, "x")); err != nil {
						return err
					}
					if _, err := tx.Enqueue(ctx, coord.NewRun{Kind: "k"}); err != nil {
						return err
					}
					if roll {
						return errOwn
					}
					return nil
				})
				if roll != errors.Is(err, errOwn) || !roll && err != nil {
					f.Errorf("InTx: %v", err)
				}
			}
		})
		if f.Failed() {
			return
		}
		const committed = callers*times - callers*times/3
		last := map[string]int64{}
		for _, e := range f.next(stream, 2*committed) {
			if last[e.Topic]++; e.Position.Seq != last[e.Topic] {
				f.Fatalf("topic %q: event %d came as number %d of the topic", e.Topic, e.Position.Seq, last[e.Topic])
			}
		}
		equal(f, "how many runs are stored", len(f.runs(coord.RunFilter{Limit: 1000})), committed)
	}},
	{"the caller's rows join", func(f *fixture) {
		if f.lacks(f.harness.Capabilities.Rows, "Rows") {
			f.inTx(f.one, func(_ context.Context, tx coord.Tx) error {
				equal(f, "what Unwrap returns without rows", tx.Unwrap(), nil)
				return nil
			})
			return
		}
		rows, ok := f.store.(RowStore)
		if !ok {
			f.Fatalf("the harness declares the capability Rows, but its %T is no coordtest.RowStore", f.store)
		}
		has := func(key string) bool {
			found, err := rows.HasRow(f.ctx, key)
			must(f, "HasRow", err)
			return found
		}
		insert := func(ctx context.Context, tx coord.Tx, key string) error {
			if err := rows.InsertRow(ctx, tx.Unwrap(), key); err != nil {
				return err
			}
			return tx.Publish(ctx, event("t", key))
		}
		f.inTx(f.one, func(ctx context.Context, tx coord.Tx) error { return insert(ctx, tx, "committed") })
		equal(f, "whether the committed row is there", has("committed"), true)
		f.rollsBack(func(ctx context.Context, tx coord.Tx) error { return insert(ctx, tx, "undone") })
		equal(f, "whether the row that was rolled back is there", has("undone"), false)
		equal(f, "the number of the last event", f.head("t").Seq, int64(1))
	}},
}

// someWork is tasks and runs for a transaction to change.
type someWork struct {
	ofDeleted, queued coord.Run
	running           coord.Claim
}

func (f *fixture) someWork() (s someWork) {
	f.Helper()
	for _, name := range []string{"deleted", "paused"} {
		t := minutely("", "")
		t.Name = name
		f.put(t)
	}
	f.put(coord.Task{Name: "allow", Kind: "allow", Overlap: coord.OverlapAllow, Payload: []byte("the task's")})
	s.ofDeleted = f.trigger("deleted")
	s.queued = f.enqueueOne(f.one, coord.NewRun{Kind: "queued"})
	f.enqueueOne(f.one, coord.NewRun{Kind: "running"})
	s.running = f.claimOne(f.one, "running")
	return s
}

func (s someWork) change(ctx context.Context, tx coord.Tx) error {
	if err := tx.Report(ctx, coord.Report{Claim: s.running, Progress: 50, Lines: []string{"half"}}); err != nil {
		return err
	}
	for _, id := range []coord.RunID{s.running.Run.ID, s.queued.ID} {
		if err := tx.Cancel(ctx, id); err != nil {
			return err
		}
	}
	if err := tx.PauseTask(ctx, "paused", true); err != nil {
		return err
	}
	return tx.DeleteTask(ctx, "deleted")
}

// rollsBack runs fn in a transaction that then fails.
func (f *fixture) rollsBack(fn func(ctx context.Context, tx coord.Tx) error) {
	f.Helper()
	err := f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
		if err := fn(ctx, tx); err != nil {
			return err
		}
		return errOwn
	})
	if err != errOwn { //nolint:errorlint // the very error
		f.Fatalf("InTx returned %v; want the error of its function", err)
	}
}
