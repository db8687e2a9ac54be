package testenv

import "testing"

// TestCrash sees what was written survive both ways to end a durable server.
func TestCrash(t *testing.T) {
	c := start(t, Options{Durable: true})
	url := c.URL(maintenance)
	query(t, url, `CREATE TABLE notes (n int); SELECT 1`)
	for i, kind := range []bool{true, false} {
		query(t, url, `INSERT INTO notes VALUES (1) RETURNING n`)
		before := c.Pid()
		if err := c.Crash(kind); err != nil {
			t.Fatal(err)
		}
		if !c.Ended() {
			t.Error("the server has not ended")
		}
		if err := c.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if c.Ended() || c.Pid() == before || c.URL(maintenance) != url {
			t.Errorf("ended %v, process %d as before, at %s", c.Ended(), c.Pid(), c.URL(maintenance))
		}
		if got, want := query(t, url, `SELECT count(*)::text FROM notes`), string(rune('1'+i)); got != want {
			t.Errorf("kind %v: %s notes, want %s", kind, got, want)
		}
	}
}
