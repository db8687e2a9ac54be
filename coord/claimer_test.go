package coord

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRetryPause(t *testing.T) {
	for _, test := range []struct {
		retry   Retry
		attempt int
		want    time.Duration // before it is shortened
	}{
		{Retry{Backoff: time.Second, MaxBackoff: time.Hour}, 1, time.Second},
		{Retry{Backoff: time.Second, MaxBackoff: time.Hour}, 2, 2 * time.Second},
		{Retry{Backoff: time.Second, MaxBackoff: time.Hour}, 12, 2048 * time.Second},
		{Retry{Backoff: time.Second, MaxBackoff: time.Hour}, 13, time.Hour},
		{Retry{Backoff: time.Second, MaxBackoff: time.Hour}, 100, time.Hour},
		{Retry{Backoff: time.Second, MaxBackoff: 4 * time.Second}, 3, 4 * time.Second},
		{Retry{Backoff: 3, MaxBackoff: 7}, 2, 6},
		{Retry{Backoff: time.Second, MaxBackoff: time.Second}, 1, time.Second},
		{Retry{Backoff: maxSpan, MaxBackoff: maxSpan}, 2, maxSpan},
		{Retry{Backoff: time.Millisecond, MaxBackoff: maxSpan}, 63, maxSpan},
		{Retry{Backoff: time.Millisecond, MaxBackoff: maxSpan}, 64, maxSpan},
	} {
		least, most := test.want, time.Duration(0)
		for range 2000 {
			d := test.retry.Pause(test.attempt)
			least, most = min(least, d), max(most, d)
		}
		if most > test.want || least < test.want-test.want/5 {
			t.Errorf("%+v after attempt %d: between %v and %v, want at most %v less a fifth",
				test.retry, test.attempt, least, most, test.want)
		}
		if test.want >= time.Millisecond && most-least < test.want/10 {
			t.Errorf("%+v after attempt %d: between %v and %v, which is hardly random", test.retry, test.attempt, least, most)
		}
	}
}

func TestRetryPauseIsAlwaysWithinBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Retry{Backoff: time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(maxSpan)).Draw(t, "backoff"))}
		r.MaxBackoff = time.Duration(rapid.Int64Range(int64(r.Backoff), int64(maxSpan)).Draw(t, "max"))
		attempt := rapid.IntRange(1, 100).Draw(t, "attempt")
		want := r.Backoff
		for range attempt - 1 {
			if want > r.MaxBackoff/2 {
				want = r.MaxBackoff
				break
			}
			want *= 2
		}
		if d := r.Pause(attempt); d > want || d < want-want/5 {
			t.Fatalf("%+v after attempt %d: %v, want %v less a fifth at most", r, attempt, d, want)
		}
	})
}

func TestSettle(t *testing.T) {
	run := Run{Attempt: 2, Retry: Retry{MaxAttempts: 3, Backoff: 10 * time.Second, MaxBackoff: time.Hour}}
	last, once := run, run
	last.Attempt = 3
	once.Attempt, once.Retry.MaxAttempts = 1, 1
	for _, test := range []struct {
		name   string
		run    Run
		result Result
		want   Settlement
	}{
		{"success", run, Result{Outcome: Succeed}, Settlement{State: Succeeded}},
		{"success of the last attempt", last, Result{Outcome: Succeed}, Settlement{State: Succeeded}},
		{"failure", run, Result{Outcome: Fail, Error: "e"}, Settlement{State: Queued, Error: "e", Delay: 20 * time.Second}},
		{"failure of the last attempt", last, Result{Outcome: Fail, Error: "e"}, Settlement{State: Failed, Error: "e"}},
		{"failure of the only attempt", once, Result{Outcome: Fail, Error: "e"}, Settlement{State: Failed, Error: "e"}},
		{"giving up", run, Result{Outcome: GiveUp, Error: "e"}, Settlement{State: Failed, Error: "e"}},
		{"snooze", run, Result{Outcome: Snooze, Delay: time.Hour}, Settlement{State: Queued, Delay: time.Hour, Refund: true}},
		{"snooze of the last attempt", last, Result{Outcome: Snooze}, Settlement{State: Queued, Refund: true}},
		{"release", run, Result{Outcome: Release}, Settlement{State: Queued, Refund: true}},
		{"release of the last attempt", last, Result{Outcome: Release}, Settlement{State: Queued, Refund: true}},
		{"release with a delay, which counts for snooze only", run, Result{Outcome: Release, Delay: time.Hour}, Settlement{State: Queued, Refund: true}},
		{"cancellation", run, Result{Outcome: CancelRun, Error: "e"}, Settlement{State: Cancelled, Error: "e"}},
	} {
		test.result.Claim.Run = test.run
		got := test.result.Settle()
		if test.result.Outcome == Fail && got.State == Queued {
			if got.Delay > test.want.Delay || got.Delay < test.want.Delay*4/5 {
				t.Errorf("%s: the delay is %v, want %v less a fifth at most", test.name, got.Delay, test.want.Delay)
			}
			got.Delay = test.want.Delay
		}
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

func TestStateEnded(t *testing.T) {
	for state, want := range map[State]bool{Queued: false, Running: false, Succeeded: true, Failed: true, Cancelled: true, "": false} {
		if state.Ended() != want {
			t.Errorf("%q.Ended() is %v", state, !want)
		}
	}
}
