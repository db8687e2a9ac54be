package pg_test

import (
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

// More tasks than are fired at a time have a zone that this machine does not
// know. They keep no other from firing, and the error names one.
func TestTasksThatCannotBeComputed(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	exec(t, db, `INSERT INTO coord_tasks (name, kind, payload, schedule, zone, overlap, misfire, misfire_cap, max_attempts,
			backoff, max_backoff, timeout, priority, concurrency_key, concurrency_limit, at_most_once, paused, version, next_at,
			created_at, updated_at)
		SELECT 'bad' || i, 'k', '', '@hourly', 'No/Where', 'forbid', 'latest', 10, 3, 1, 1, 0, 2, '', 0, false, false, 1,
			now() - interval '1 hour', now(), now() FROM generate_series(1, 250) AS i`)
	if _, err := b.Claimer().PutTask(t.Context(), coord.Task{Name: "good", Kind: "k", Schedule: "@every 1s"}); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `UPDATE coord_tasks SET next_at = now() - interval '1 second' WHERE name = 'good'`)
	if claims := claim(t, b, 10); len(claims) != 1 {
		t.Errorf("%d claims, want that of the good task", len(claims))
	}
	_, err := b.Claimer().Claim(t.Context(), coord.ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 1, Lease: time.Minute})
	if err == nil {
		t.Error("nobody hears of the bad tasks")
	}
}
