package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/migrations"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(asProcess(role, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// TestConformance runs the suite of all drivers against SQLite.
func TestConformance(t *testing.T) {
	coordtest.Run(t, coordtest.Harness{
		New:          newStore,
		Capabilities: coordtest.Capabilities{SeveralHandles: true, Rows: true, ClockBack: true, Hints: true},
	})
}

// store is a file whose clock stands still.
type store struct {
	t    *testing.T
	path string
	db   *sqlite.DB
	now  atomic.Int64 // µs
}

// newFile makes a file with the schema.
func newFile(t testing.TB) (path string, db *sqlite.DB) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "tandem.db")
	db, err := sqlite.OpenDB(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := migrations.Up(t.Context(), db.Write.DB, migrations.SQLite, migrations.Coord); err != nil {
		t.Fatal(err)
	}
	return path, db
}

func newStore(t *testing.T) coordtest.Store {
	t.Helper()
	path, db := newFile(t)
	if _, err := db.Write.ExecContext(t.Context(), `CREATE TABLE test_rows (key TEXT PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	s := &store{t: t, path: path, db: db}
	s.now.Store(time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC).UnixMicro())
	return s
}

func (s *store) Open(t *testing.T) coord.Backend {
	t.Helper()
	b, err := sqlite.Open(t.Context(), sqlite.Options{
		Path: s.path, Now: s.Now, Poll: 5 * time.Millisecond, Options: coord.Options{Limiter: coordtest.LimiterOptions},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (s *store) Now() time.Time { return time.UnixMicro(s.now.Load()).UTC() }

func (s *store) Advance(d time.Duration) { s.now.Add(d.Microseconds()) }

func (s *store) InsertRow(ctx context.Context, tx any, key string) error {
	_, err := tx.(bun.Tx).ExecContext(ctx, `INSERT INTO test_rows VALUES (?)`, key)
	return err
}

func (s *store) HasRow(ctx context.Context, key string) (found bool, err error) {
	err = s.db.Read.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM test_rows WHERE key = ?)`, key).Scan(&found)
	return found, err
}

// TestTheLogStaysSmall makes sure that statements are read to their end: one that
// is not keeps the write-ahead log from ever being taken back into the file.
func TestTheLogStaysSmall(t *testing.T) {
	path, db := newFile(t)
	b, err := sqlite.Open(t.Context(), sqlite.Options{DB: db})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(t.Context()))
	stream, err := b.Broadcaster().Subscribe(t.Context(), map[string]coord.Position{"t": coord.Head})
	if err != nil {
		t.Fatal(err)
	}
	const publishers, each = 10, 500
	payload := make([]byte, 2000)
	var callers sync.WaitGroup
	for range publishers {
		callers.Go(func() {
			for range each {
				if _, err := b.Broadcaster().Publish(t.Context(), coord.NewEvent{Topic: "t", Kind: "k", Payload: payload}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for n := 0; n < publishers*each && !t.Failed(); {
		events, err := stream.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n += len(events)
	}
	callers.Wait()
	for range 200 {
		if _, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k", Payload: payload}); err != nil {
			t.Fatal(err)
		}
		_, err := b.Claimer().Claim(t.Context(), coord.ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 1, Lease: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	const most = 8 << 20 // twice what SQLite begins to take back
	if info.Size() > most {
		t.Errorf("the log has %d bytes after %d publishes; want at most %d", info.Size(), publishers*each, most)
	}
	t.Logf("the log has %d bytes", info.Size())
}

// TestTheLogShrinks once a reader that kept it from being taken back is gone.
func TestTheLogShrinks(t *testing.T) {
	path, db := newFile(t)
	b, err := sqlite.Open(t.Context(), sqlite.Options{DB: db})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(t.Context()))
	publish := func(payload []byte) {
		t.Helper()
		if _, err := b.Broadcaster().Publish(t.Context(), coord.NewEvent{Topic: "t", Kind: "k", Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	size := func() int64 {
		t.Helper()
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	reader, err := db.Read.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := reader.QueryRowContext(t.Context(), `SELECT count(*) FROM coord_events`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	const most = 16 << 20
	for size() <= most {
		publish(make([]byte, coord.MaxPayload))
	}
	if err := reader.Rollback(); err != nil {
		t.Fatal(err)
	}
	// One takes the log back and the next begins it anew, unless somebody reads just
	// then, as the backend itself does.
	for range 100 {
		if publish(nil); size() <= most {
			break
		}
	}
	if size() > most {
		t.Errorf("the log has %d bytes; want at most %d", size(), most)
	}
}

// TestTasksThatCannotFire keep no other from firing, however many they are.
func TestTasksThatCannotFire(t *testing.T) {
	s := newStore(t).(*store)
	b := s.Open(t)
	defer b.Close(context.WithoutCancel(t.Context()))
	for i := range 201 {
		if _, err := b.Claimer().PutTask(t.Context(), coord.Task{Name: fmt.Sprint(i), Kind: "k", Schedule: "@every 1m"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.db.Write.ExecContext(t.Context(), `UPDATE coord_tasks SET zone = 'Mars/Olympus' WHERE name <> '200'`); err != nil {
		t.Fatal(err)
	}
	s.Advance(time.Minute)
	o := coord.ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 10, Lease: time.Hour}
	if claims, err := b.Claimer().Claim(t.Context(), o); err != nil || len(claims) != 1 {
		t.Fatalf("Claim took %v (%v); want the run of the last task", claims, err)
	}
}

// TestAGoodTicketOutlivesExpiredOnes: what is replaced is a ticket that could
// not be used anyway, if there is one.
func TestAGoodTicketOutlivesExpiredOnes(t *testing.T) {
	s := newStore(t).(*store)
	b := s.Open(t)
	defer b.Close(context.WithoutCancel(t.Context()))
	issue := func(ttl time.Duration) coord.Ticket {
		t.Helper()
		ticket, err := b.Tickets().Issue(t.Context(), coord.TicketFor{Purpose: "p", User: "u", Session: "s", TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	tickets := []coord.Ticket{issue(time.Hour)}
	for range coord.MaxTickets - 1 {
		tickets = append(tickets, issue(time.Second))
	}
	s.Advance(time.Minute)
	tickets = append(tickets, issue(time.Second))
	redeem := func(ticket coord.Ticket) error {
		_, err := b.Tickets().Redeem(t.Context(), ticket.Secret, coord.TicketUse{Purpose: "p"})
		return err
	}
	if err := redeem(tickets[0]); err != nil {
		t.Errorf("Redeem of one of two good tickets: %v", err)
	}
	s.Advance(-time.Minute) // which makes none good again beyond the bound
	good := 1
	for _, ticket := range tickets {
		if redeem(ticket) == nil {
			good++
		}
	}
	if good > coord.MaxTickets {
		t.Errorf("%d tickets of a session were good at a time", good)
	}
}

// TestAFileThatIsRestored underneath the readers is noticed by the streams,
// although ids and numbers are used again.
func TestAFileThatIsRestored(t *testing.T) {
	_, db := newFile(t)
	b, err := sqlite.Open(t.Context(), sqlite.Options{DB: db})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	publish := func(n int) {
		t.Helper()
		for range n {
			if _, err := b.Broadcaster().Publish(ctx, coord.NewEvent{Topic: "t", Kind: "k"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, after := range map[string]int{"fewer": 1, "more": 10} {
		publish(10)
		stream, err := b.Broadcaster().Subscribe(ctx, map[string]coord.Position{"t": coord.Head})
		if err != nil {
			t.Fatal(err)
		}
		publish(1)
		if _, err := stream.Next(ctx); err != nil {
			t.Fatal(err)
		}
		// As a restore does, in one transaction.
		err = db.Write.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			_, err := tx.ExecContext(ctx, `
				DELETE FROM coord_events WHERE id > (SELECT max(id) - 5 FROM coord_events);
				UPDATE sqlite_sequence SET seq = (SELECT max(id) FROM coord_events) WHERE name = 'coord_events';
				UPDATE coord_topics SET (seq, tag) = (SELECT seq, tag FROM coord_events ORDER BY id DESC LIMIT 1)`)
			if err != nil {
				return err
			}
			for range after {
				if _, err := tx.ExecContext(ctx, `
					UPDATE coord_topics SET seq = seq + 1, tag = 4711 + seq;
					INSERT INTO coord_events (topic, seq, tag, prev, kind, payload, at)
						SELECT topic, seq, tag, (SELECT tag FROM coord_events ORDER BY id DESC LIMIT 1), 'k', x'', 0 FROM coord_topics`); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		events, err := stream.Next(ctx)
		if reset, ok := errors.AsType[*coord.ResetError](err); !ok || reset.Reason != coord.ResetDiverged {
			t.Errorf("%s events than before: Next returned %v (%v); want a reset: diverged", name, events, err)
		}
		stream.Close()
	}
}

// TestATaskThatCannotFire keeps no other from firing, and is not silent.
func TestATaskThatCannotFire(t *testing.T) {
	s := newStore(t).(*store)
	b := s.Open(t)
	defer b.Close(context.WithoutCancel(t.Context()))
	for _, name := range []string{"a", "b"} {
		if _, err := b.Claimer().PutTask(t.Context(), coord.Task{Name: name, Kind: "k", Schedule: "@every 1m"}); err != nil {
			t.Fatal(err)
		}
	}
	// As when this machine lacks the zone that another one knew.
	if _, err := s.db.Write.ExecContext(t.Context(), `UPDATE coord_tasks SET zone = 'Mars/Olympus' WHERE name = 'a'`); err != nil {
		t.Fatal(err)
	}
	s.Advance(time.Minute)
	o := coord.ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 10, Lease: time.Hour}
	if claims, err := b.Claimer().Claim(t.Context(), o); err != nil || len(claims) != 1 {
		t.Fatalf("Claim took %v (%v); want the run of the other task", claims, err)
	}
	if claims, err := b.Claimer().Claim(t.Context(), o); err == nil || !strings.Contains(err.Error(), `task "a"`) {
		t.Errorf("Claim took %v (%v); want an error that names the task", claims, err)
	}
}

// While somebody else holds the writer lock a denial is decided all the same: it
// takes no lock and writes nothing.
func TestDenialTakesNoLockAndWritesNothing(t *testing.T) {
	s := newStore(t).(*store)
	b := s.Open(t)
	defer b.Close(context.Background())
	limit := coord.Limit{Key: "full", Rate: 1, Per: time.Hour}
	if d, err := b.Limiter().Allow(t.Context(), limit); err != nil || !d.Allowed {
		t.Fatalf("the first decision is %+v, %v", d, err)
	}
	holder, err := s.db.Write.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback()
	if d, err := b.Limiter().Allow(t.Context(), limit); err != nil || d.Allowed {
		t.Errorf("Allow while the lock is held: %+v, %v", d, err)
	}
	ds, err := b.Limiter().AllowAll(t.Context(), limit, coord.Limit{Key: "empty", Rate: 1, Per: time.Hour})
	if err != nil || ds[0].Allowed || ds[1].Allowed {
		t.Errorf("AllowAll while the lock is held: %+v, %v", ds, err)
	}
}
