package store_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/store"
)

const job = "some.job"

func takeJob(t *testing.T, st *store.Store, node string, every, hold time.Duration) (
	turn store.JobTurn, taken bool, wait time.Duration,
) {
	t.Helper()
	err := st.InTx(t.Context(), func(ctx context.Context, u store.Unit) (err error) {
		turn, taken, wait, err = u.TakeJob(ctx, job, node, every, hold)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return turn, taken, wait
}

func endJob(t *testing.T, st *store.Store, turn store.JobTurn, e store.JobEnd) store.JobRecord {
	t.Helper()
	err := st.InTx(t.Context(), func(ctx context.Context, u store.Unit) error { return u.EndJob(ctx, turn, e) })
	if err != nil {
		t.Fatal(err)
	}
	list, err := st.Jobs(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("got %+v, %v", list, err)
	}
	return list[0]
}

func TestJobTurns(t *testing.T) {
	onEach(t, func(t *testing.T, d database) {
		const every = time.Hour
		// Of all who ask at once one has the turn, the first and each later one.
		for round := range int64(2) {
			var mu sync.Mutex
			var had []store.JobTurn
			var asking sync.WaitGroup
			for range 8 {
				asking.Go(func() {
					turn, taken, wait := takeJob(t, d.store, "one", every, time.Minute)
					if !taken && (wait < 50*time.Second || wait > time.Minute) {
						t.Errorf("the turn is held for another %v, want a minute", wait)
					}
					mu.Lock()
					defer mu.Unlock()
					if taken {
						had = append(had, turn)
					}
				})
			}
			asking.Wait()
			if len(had) != 1 || had[0] != (store.JobTurn{Job: job, Number: round + 1}) {
				t.Fatalf("round %d: turns %v", round, had)
			}
			endJob(t, d.store, had[0], store.JobEnd{Ok: true})
		}

		// Who vanishes is waited for as long as they hold it; what they say then is not heard.
		lost, taken, _ := takeJob(t, d.store, "one", every, 0)
		next, again, _ := takeJob(t, d.store, "two", every, time.Minute)
		if !taken || !again {
			t.Fatalf("taken %v, %v", taken, again)
		}
		rec := endJob(t, d.store, lost, store.JobEnd{Error: "late"})
		if rec.Node != "two" || !rec.EndedAt.IsZero() || rec.Error != "" || rec.Turn != 4 || rec.OkAt.IsZero() {
			t.Errorf("got %+v", rec)
		}

		// An error stays to be seen, failures count up to a success.
		rec = endJob(t, d.store, next, store.JobEnd{Done: 1, Error: strings.Repeat("é", 400) + "\x00\xff"})
		if rec.EndedAt.IsZero() || rec.Done != 1 || rec.Failures != 1 || len(rec.Error) != 500 || rec.ErrorAt != rec.EndedAt {
			t.Errorf("got %+v", rec)
		}
		failed := rec
		turn, _, _ := takeJob(t, d.store, "three", every, time.Minute)
		rec = endJob(t, d.store, turn, store.JobEnd{Next: 10 * time.Minute}) // its replica stops
		if rec.Failures != 1 || rec.OkAt != failed.OkAt || !rec.EndedAt.After(failed.EndedAt.Time) {
			t.Errorf("got %+v", rec)
		}
		if _, taken, wait := takeJob(t, d.store, "four", every, time.Minute); taken || wait < 9*time.Minute {
			t.Errorf("taken %v, due in %v", taken, wait)
		}
		// A turn that is too far away is due: the clock was set back, or the job has another period.
		turn, taken, _ = takeJob(t, d.store, "four", 5*time.Minute, time.Minute)
		if !taken {
			t.Error("a turn that is further away than there are between two is not taken")
		}
		rec = endJob(t, d.store, turn, store.JobEnd{Ok: true, Done: 2, Next: every})
		if rec.Failures != 0 || rec.Error != failed.Error || rec.ErrorAt != failed.ErrorAt || rec.OkAt != rec.EndedAt || rec.Done != 2 {
			t.Errorf("got %+v", rec)
		}

		// A turn that is overdue has failed, once, whatever becomes of it, unless another one has begun.
		over, _, _ := takeJob(t, d.store, "three", time.Minute, 0)
		overdue := func(text string) {
			t.Helper()
			err := d.store.InTx(t.Context(), func(ctx context.Context, u store.Unit) error { return u.JobOverdue(ctx, over, text) })
			if err != nil {
				t.Error(err)
			}
		}
		overdue("goes on")
		if list, err := d.store.Jobs(t.Context()); err != nil || list[0].Failures != 1 || list[0].Error != "goes on" || !list[0].EndedAt.IsZero() {
			t.Errorf("got %+v, %v", list, err)
		}
		rec = endJob(t, d.store, over, store.JobEnd{Error: "no way"})
		if rec.Failures != 1 || rec.Error != "no way" || rec.EndedAt.IsZero() {
			t.Errorf("got %+v", rec)
		}
		turn, _, _ = takeJob(t, d.store, "four", every, 0)
		overdue("late")
		rec = endJob(t, d.store, turn, store.JobEnd{Error: "no way"})
		if rec.Turn != turn.Number || rec.Failures != 2 {
			t.Errorf("got %+v", rec)
		}
	})
}

func TestOldSecretsAreForgotten(t *testing.T) {
	onEach(t, func(t *testing.T, d database) {
		err := d.store.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
			for task, overlaps := range map[int64][]time.Duration{1: {0}, 2: {0, time.Hour}, 3: {0, time.Microsecond}} {
				for _, overlap := range overlaps {
					if _, err := u.SetWebhook(ctx, task, []byte("secret"), overlap); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{1, 0} {
			if n, err := d.store.ForgetOldSecrets(t.Context()); n != want || err != nil {
				t.Errorf("call %d: forgot %d, %v; want %d", i+1, n, err, want)
			}
		}
		for task, want := range map[int64]int{1: 1, 2: 2, 3: 1} {
			if secrets, _, err := d.store.Webhook(t.Context(), task); len(secrets) != want || err != nil {
				t.Errorf("task %d has %d secrets, %v; want %d", task, len(secrets), err, want)
			}
		}
	})
}
