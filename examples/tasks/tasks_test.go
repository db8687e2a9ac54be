package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/schedule"
)

func putTask(ctx context.Context, claimer coord.Claimer) (coord.Task, error) {
	//doc:begin
	task, err := claimer.PutTask(ctx, coord.Task{
		Name:     "nightly-report",
		Kind:     "report", // which handler runs it
		Payload:  []byte(`{"of": "sales"}`),
		Schedule: "30 2 * * *",
		Zone:     "Europe/Berlin",
	})
	//doc:end
	return task, err
}

func Example_task() {
	example(func(ctx context.Context, s *store) error {
		claimer := s.Claimer()
		task, err := putTask(ctx, claimer)
		if err != nil {
			return err
		}
		fmt.Println("version", task.Version, "is due at", task.NextAt.Format(time.RFC3339))
		task.Paused = true
		if _, err := claimer.PutTask(ctx, task); err != nil { // somebody else
			return err
		}

		//doc:begin
		task.Schedule = "0 3 * * *"
		task, err = claimer.PutTask(ctx, task)
		if errors.Is(err, coord.ErrConflict) {
			// It was changed since it was read, and is as the other one left it: read it again.
			task, err = claimer.Task(ctx, "nightly-report")
		}
		//doc:end
		fmt.Println("version", task.Version, "has the schedule", task.Schedule)
		return err
	})
	// Output:
	// version 1 is due at 2026-10-03T00:30:00Z
	// version 2 has the schedule 30 2 * * *
}

func Example_preview() {
	example(func(_ context.Context, s *store) error {
		now := s.clock()
		//doc:begin
		weekdays, err := schedule.Parse("0 9 * * mon-fri", "Europe/Berlin")
		if err != nil {
			return err // for the person who wrote it: what is wrong, and what to write instead
		}
		fmt.Println(weekdays.Describe())
		for _, at := range schedule.Preview(weekdays, now, 3) {
			fmt.Println(at.Format(time.RFC3339))
		}
		//doc:end
		return nil
	})
	// Output:
	// at 09:00 on Monday to Friday, Europe/Berlin
	// 2026-10-05T07:00:00Z
	// 2026-10-06T07:00:00Z
	// 2026-10-07T07:00:00Z
}

func Example_triggerWithKey() {
	example(func(ctx context.Context, s *store) error {
		claimer := s.Claimer()
		if _, err := claimer.PutTask(ctx, coord.Task{Name: "deploy-news", Kind: "news"}); err != nil {
			return err
		}
		for range 2 {
			//doc:begin
			run, err := claimer.Trigger(ctx, "deploy-news", coord.TriggerOptions{
				Key:     "deploy-1.4",                      // of what happened; empty: each call is a run
				Payload: []byte(`{"text":"1.4 is live."}`), // instead of the task's
			})
			//doc:end
			if err != nil {
				return err
			}
			fmt.Println("run", run.ID, "duplicate:", run.Duplicate)
		}
		_, err := claimer.Trigger(ctx, "deploy-news", coord.TriggerOptions{Key: "deploy-1.5"})
		fmt.Println("while the first waits:", errors.Is(err, coord.ErrConflict))
		return nil
	})
	// Output:
	// run 1 duplicate: false
	// run 1 duplicate: true
	// while the first waits: true
}

// Limits of keys hold whoever claims, and a place comes back by itself when its worker vanishes.
func Example_concurrency() {
	example(func(ctx context.Context, s *store) error {
		claimer := s.Claimer()
		//doc:begin
		letter := coord.NewRun{
			Kind:        "mail",
			Concurrency: coord.Concurrency{Key: "mail.example.com", Limit: 2},
		}
		_, err := claimer.Enqueue(ctx, letter, letter, letter, letter, coord.NewRun{Kind: "thumbnail"})
		//doc:end
		if err != nil {
			return err
		}
		for _, name := range []string{"one", "two"} {
			claims, err := s.claim(ctx, name, "mail", "thumbnail")
			if err != nil {
				return err
			}
			for _, c := range claims {
				fmt.Println("replica", name, "runs", c.Run.Kind, c.Run.ID)
			}
		}
		fmt.Println("replica one vanishes, and its leases end")
		s.wait(2 * time.Minute)
		claims, err := s.claim(ctx, "two", "mail")
		for _, c := range claims {
			fmt.Println("replica two runs", c.Run.Kind, c.Run.ID, "in attempt", c.Run.Attempt)
		}
		return err
	})
	// Output:
	// replica one runs mail 1
	// replica one runs mail 2
	// replica one runs thumbnail 5
	// replica one vanishes, and its leases end
	// replica two runs mail 1 in attempt 2
	// replica two runs mail 2 in attempt 2
}

func Example_pages() {
	example(func(ctx context.Context, s *store) error {
		claimer := s.Claimer()
		task, err := claimer.PutTask(ctx, coord.Task{Name: "t", Kind: "k", Overlap: coord.OverlapAllow})
		if err != nil {
			return err
		}
		for range 7 {
			if _, err := claimer.Trigger(ctx, task.Name, coord.TriggerOptions{}); err != nil {
				return err
			}
		}
		pages := func() error {
			//doc:begin
			filter := coord.RunFilter{TaskID: task.ID, State: coord.Queued, Limit: 3}
			for {
				page := 0
				for run, err := range claimer.Runs(ctx, filter) { // the newest first
					if err != nil {
						return err
					}
					fmt.Print(run.ID, " ")
					filter.Before = run.ID // the next page begins behind it
					page++
				}
				fmt.Println("end of a page")
				if page < filter.Limit {
					return nil
				}
			}
			//doc:end
		}
		return pages()
	})
	// Output:
	// 7 6 5 end of a page
	// 4 3 2 end of a page
	// 1 end of a page
}

func Example_prune() {
	example(func(ctx context.Context, s *store) error {
		claimer := s.Claimer()
		queued, err := claimer.Enqueue(ctx, coord.NewRun{Kind: "k"}, coord.NewRun{Kind: "k"})
		if err != nil {
			return err
		}
		if err := claimer.Cancel(ctx, queued[0].ID); err != nil {
			return err
		}
		s.wait(31 * 24 * time.Hour)
		prune := func() error {
			//doc:begin
			for {
				n, err := claimer.Prune(ctx, coord.RunRetention{Age: 30 * 24 * time.Hour, Keep: 1000})
				if err != nil || n == 0 {
					return err
				}
			}
			//doc:end
		}
		if err := prune(); err != nil {
			return err
		}
		for run, err := range claimer.Runs(ctx, coord.RunFilter{}) {
			fmt.Println("left is run", run.ID, run.State)
			if err != nil {
				return err
			}
		}
		return nil
	})
	// Output:
	// left is run 2 queued
}
