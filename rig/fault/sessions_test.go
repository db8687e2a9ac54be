package fault

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/tandemhq/tandem/internal/testenv"
)

// TestSessions ends the sessions of one kind and no others, and finds that what is held is released.
func TestSessions(t *testing.T) {
	cluster, err := testenv.StartCluster(t.Context(), testenv.Options{Settings: map[string]string{"max_connections": "20"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	address := cluster.URL("postgres")
	replica, err := sql.Open("postgres", address+"&application_name=tandem")
	if err != nil {
		t.Fatal(err)
	}
	defer replica.Close()
	if _, err := replica.ExecContext(t.Context(), `CREATE TABLE coord_members (name text); CREATE TABLE notes (text text)`); err != nil {
		t.Fatal(err)
	}
	asked := map[Kind]string{
		Listen: `LISTEN tandem`, Reader: `SELECT pg_current_snapshot()`, Probe: `SELECT pg_is_in_recovery()`,
		Limiter: `SELECT 'coord_allow()'`, Coordination: `SELECT FROM coord_members`, Work: `SELECT FROM notes`,
	}
	conns := map[Kind]*sql.Conn{}
	for kind, statement := range asked {
		if conns[kind], err = replica.Conn(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := conns[kind].ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	s, err := OpenSessions(address)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, kind := range Kinds {
		if n, err := s.Terminate(t.Context(), kind); n != 1 || err != nil {
			t.Errorf("%s: %d sessions ended, %v", kind, n, err)
		}
		for _, other := range Kinds[i+1:] {
			if _, err := conns[other].ExecContext(t.Context(), asked[other]); err != nil {
				t.Errorf("%s, when %s was ended: %v", other, kind, err)
			}
		}
		_ = conns[kind].Close()
	}

	if n, err := s.Occupy(t.Context(), 1000); n == 0 || n > 20 || err != nil {
		t.Errorf("%d sessions occupied, %v", n, err)
	}
	if err := replica.PingContext(t.Context()); err == nil {
		t.Error("a server of which all sessions are taken has one more")
	}
	s.Release()
	if err := s.Block(t.Context(), "notes"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	if _, err := replica.ExecContext(ctx, `SELECT FROM notes`); err == nil {
		t.Error("a blocked table was read")
	}
	s.Release()
	ctx, cancel = context.WithTimeout(t.Context(), long)
	defer cancel()
	for {
		_, err := replica.ExecContext(ctx, `SELECT FROM notes`)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("when it was released: %v", err)
		}
		<-time.After(short / 10) // sessions end a little later than their connections
	}
}
