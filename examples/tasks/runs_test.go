package tasks_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	_ "modernc.org/sqlite" // a database beside the store

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/coord/worker"
)

//doc:begin
type Order struct{ ID, Item string }

const ship worker.Kind[Order] = "ship" // runs of kind "ship" have an Order as their payload
//doc:end

func enqueueOrder(ctx context.Context, claimer coord.Claimer) ([]coord.Run, error) {
	//doc:begin
	run, err := ship.Run(Order{ID: "7", Item: "tea"})
	if err != nil {
		return nil, err
	}
	run.UniqueKey = "ship order 7" // however often this is called, there is one run
	run.Retry = coord.Retry{MaxAttempts: 5, Backoff: 10 * time.Second}
	run.Timeout = time.Minute
	queued, err := claimer.Enqueue(ctx, run)
	//doc:end
	return queued, err
}

func workOnOrders(ctx context.Context, claimer coord.Claimer, log *slog.Logger) error {
	//doc:begin
	w, err := worker.New(claimer, worker.Options{
		Name: "replica-1",
		Handlers: map[string]worker.Handler{
			string(ship): ship.Handler(func(ctx context.Context, r *worker.Run, o Order) error {
				fmt.Println("shipping", o.Item, "in attempt", r.Run.Attempt)
				return nil
			}),
		},
		Concurrency: 20,                               // handlers at a time in this process
		Limits:      map[string]int{string(ship): 50}, // and of this kind in all processes together
		Logger:      log,
	})
	if err != nil {
		return err
	}
	return w.Run(ctx) // until ctx is done; then it drains
	//doc:end
}

func Example_worker() {
	example(func(ctx context.Context, s *store) error {
		claimer := s.Claimer()
		for range 2 {
			if _, err := enqueueOrder(ctx, claimer); err != nil {
				return err
			}
		}
		return workOnOrders(s.until(ctx, 1), claimer, slog.New(slog.DiscardHandler))
	})
	// Output:
	// shipping tea in attempt 1
}

// work runs a handler until so many ends were written.
func (s *store) work(ctx context.Context, kind string, ends int, h worker.Handler) error {
	w, err := worker.New(s.Claimer(), worker.Options{Name: "w", Handlers: map[string]worker.Handler{kind: h}})
	if err != nil {
		return err
	}
	return w.Run(s.until(ctx, ends))
}

type answer struct {
	status int
	later  time.Duration
}

func Example_errors() {
	example(func(ctx context.Context, s *store) error {
		ask := func(_ context.Context, customer []byte) (a answer) {
			_ = json.Unmarshal(customer, &a.status)
			a.later = time.Hour
			return a
		}
		//doc:begin
		handler := func(ctx context.Context, r *worker.Run) error {
			switch a := ask(ctx, r.Run.Payload); {
			case a.status == 404:
				return worker.GiveUp(errors.New("no such customer")) // failed, for good
			case a.status == 429:
				return worker.Snooze(a.later) // again later; the attempt is not spent
			case a.status != 200:
				return fmt.Errorf("the server answered %d", a.status) // a failed attempt
			}
			return nil
		}
		//doc:end
		for _, status := range []string{"200", "404", "429", "500"} {
			if _, err := s.Claimer().Enqueue(ctx, coord.NewRun{Kind: "call", Payload: []byte(status)}); err != nil {
				return err
			}
		}
		if err := s.work(ctx, "call", 4, handler); err != nil {
			return err
		}
		for run, err := range s.Claimer().Runs(ctx, coord.RunFilter{}) {
			if err != nil {
				return err
			}
			fmt.Printf("%s: %s, attempts spent: %d, error: %q\n", run.Payload, run.State, run.Attempt, run.Error)
		}
		return nil
	})
	// Output:
	// 500: queued, attempts spent: 1, error: "the server answered 500"
	// 429: queued, attempts spent: 0, error: ""
	// 404: failed, attempts spent: 1, error: "no such customer"
	// 200: succeeded, attempts spent: 1, error: ""
}

func Example_cancel() {
	example(func(ctx context.Context, s *store) error {
		claimer := s.Claimer()
		queued, err := claimer.Enqueue(ctx, coord.NewRun{Kind: "crawl"})
		if err != nil {
			return err
		}
		id := queued[0].ID
		next := func(ctx context.Context) error {
			if err := claimer.Cancel(context.WithoutCancel(ctx), id); err != nil { // another replica does
				return err
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		//doc:begin
		handler := func(ctx context.Context, r *worker.Run) error {
			for range 1000 {
				if err := next(ctx); err != nil { // as anything that heeds its context
					return err
				}
			}
			return nil
		}
		//doc:end
		if err := s.work(ctx, "crawl", 1, handler); err != nil {
			return err
		}
		run, err := claimer.Run(ctx, id)
		fmt.Println(run.State)
		return err
	})
	// Output:
	// cancelled
}

func Example_progress() {
	example(func(ctx context.Context, s *store) error {
		claimer := s.Claimer()
		queued, err := claimer.Enqueue(ctx, coord.NewRun{Kind: "import"})
		if err != nil {
			return err
		}
		id := queued[0].ID
		rows := 2000
		//doc:begin
		handler := func(ctx context.Context, r *worker.Run) error {
			for done := 500; done <= rows; done += 500 {
				if err := r.Progress(ctx, 100*done/rows); err != nil {
					return err
				}
				if err := r.Log(ctx, "%d rows are read", done); err != nil {
					return err
				}
			}
			return nil
		}
		//doc:end
		if err := s.work(ctx, "import", 1, handler); err != nil {
			return err
		}
		run, err := claimer.Run(ctx, id)
		if err != nil {
			return err
		}
		fmt.Printf("%d lines, %d %%\n", run.LogLines, run.Progress)
		show := func(seen int) error {
			//doc:begin
			for line, err := range claimer.Log(ctx, id, seen) { // what comes behind the line that was seen last
				if err != nil {
					return err
				}
				fmt.Println(line.Number, line.Text)
				seen = line.Number
			}
			//doc:end
			fmt.Println("the next look begins behind", seen)
			return nil
		}
		return show(2)
	})
	// Output:
	// 4 lines, 100 %
	// 3 1500 rows are read
	// 4 2000 rows are read
	// the next look begins behind 4
}

// What a handler does in the transaction that ends its run happens once: the worker that was cut off
// is refused.
func Example_transaction() {
	example(func(ctx context.Context, s *store) error {
		backend := s.Backend
		//doc:begin
		handler := ship.Handler(func(ctx context.Context, r *worker.Run, o Order) error {
			return backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
				// Rows of your own go here, by tx.Unwrap().(bun.Tx) on the SQL drivers.
				shipped := coord.NewEvent{Topic: "orders", Kind: "order.shipped", Payload: []byte(o.ID)}
				if err := tx.Publish(ctx, shipped); err != nil {
					return err
				}
				return r.FinishIn(ctx, tx) // or, if the lease is lost, nothing of all this
			})
		})
		//doc:end
		if _, err := enqueueOrder(ctx, s.Claimer()); err != nil {
			return err
		}
		cutOff, err := s.claimOne(ctx, "one", string(ship))
		if err != nil {
			return err
		}
		s.wait(2 * time.Minute) // its lease ends
		holder, err := s.claimOne(ctx, "two", string(ship))
		if err != nil {
			return err
		}
		err = handler(ctx, &worker.Run{Claim: cutOff})
		fmt.Println("replica one, which was cut off:", errors.Is(err, coord.ErrFenced))
		err = handler(ctx, &worker.Run{Claim: holder})
		fmt.Println("replica two, in attempt", holder.Run.Attempt, "of the run:", err)
		events, err := backend.Broadcaster().Read(ctx, "orders", coord.Start, 10)
		fmt.Println("events:", len(events))
		return err
	})
	// Output:
	// replica one, which was cut off: true
	// replica two, in attempt 2 of the run: <nil>
	// events: 1
}

// An effect in another database happens once by a receipt there.
func Example_receipt() {
	example(func(ctx context.Context, s *store) error {
		bank, err := sql.Open("sqlite", ":memory:")
		if err != nil {
			return err
		}
		defer bank.Close()
		bank.SetMaxOpenConns(1) // another connection would have a database of its own
		_, err = bank.ExecContext(ctx, `CREATE TABLE receipts (run INTEGER PRIMARY KEY); CREATE TABLE payments (amount INTEGER)`)
		if err != nil {
			return err
		}

		//doc:begin
		handler := func(ctx context.Context, r *worker.Run) error {
			tx, err := bank.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			res, err := tx.ExecContext(ctx, `INSERT INTO receipts (run) VALUES (?) ON CONFLICT DO NOTHING`, r.Run.ID)
			if err != nil {
				return err
			}
			if n, err := res.RowsAffected(); err != nil || n == 0 {
				return err // an earlier attempt has paid, and did not live to say so
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO payments (amount) VALUES (42)`); err != nil {
				return err
			}
			return tx.Commit()
		}
		//doc:end
		if _, err := s.Claimer().Enqueue(ctx, coord.NewRun{Kind: "pay"}); err != nil {
			return err
		}
		for _, replica := range []string{"one", "two"} {
			claim, err := s.claimOne(ctx, replica, "pay")
			if err != nil {
				return err
			}
			if err := handler(ctx, &worker.Run{Claim: claim}); err != nil {
				return err
			}
			fmt.Println("attempt", claim.Run.Attempt, "has come to its end, and its replica to its own")
			s.wait(2 * time.Minute)
		}
		var payments int
		err = bank.QueryRowContext(ctx, `SELECT count(*) FROM payments`).Scan(&payments)
		fmt.Println("payments:", payments)
		return err
	})
	// Output:
	// attempt 1 has come to its end, and its replica to its own
	// attempt 2 has come to its end, and its replica to its own
	// payments: 1
}

func Example_test() {
	ctx := context.Background()
	handler := func(context.Context, *worker.Run) error { return errors.New("the printer is on fire") }
	test := func() error {
		//doc:begin
		now := time.Date(2026, time.October, 2, 8, 0, 0, 0, time.UTC)
		backend := memory.Open(memory.Options{Now: func() time.Time { return now }})
		defer backend.Close(ctx)
		_, err := backend.Claimer().PutTask(ctx, coord.Task{Name: "print", Kind: "print", Schedule: "@hourly"})
		if err != nil {
			return err
		}
		now = now.Add(time.Hour) // nothing waits for that
		claims, err := backend.Claimer().Claim(ctx, coord.ClaimOptions{
			Worker: "test", Kinds: []string{"print"}, Limit: 10, Lease: time.Minute,
		})
		if err != nil {
			return err
		}
		for _, c := range claims {
			err := handler(ctx, &worker.Run{Claim: c})
			fmt.Println(c.Run.ScheduledFor.Format(time.RFC3339), err)
		}
		//doc:end
		return nil
	}
	if err := test(); err != nil {
		fmt.Println("error:", err)
	}
	// Output:
	// 2026-10-02T09:00:00Z the printer is on fire
}
