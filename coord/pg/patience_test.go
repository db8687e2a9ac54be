package pg

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/batch"
)

// instant is a server that answers everything at once, with nothing.
type instant struct{}

func (instant) Connect(context.Context) (driver.Conn, error) { return instant{}, nil }
func (instant) Driver() driver.Driver                        { return nil }
func (instant) Prepare(string) (driver.Stmt, error)          { return nil, driver.ErrSkip }
func (instant) Close() error                                 { return nil }
func (instant) Begin() (driver.Tx, error)                    { return instant{}, nil }
func (instant) Commit() error                                { return nil }
func (instant) Rollback() error                              { return nil }

func (instant) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return instant{}, nil }

func (instant) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(0), nil
}

func (instant) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return instant{}, nil
}

func (instant) Columns() []string         { return nil }
func (instant) Next([]driver.Value) error { return io.EOF }

// onePool is a work pool of one connection, in a time of its own.
type onePool struct {
	t *testing.T
	b *backend
}

func inOnePool(t *testing.T, test func(p onePool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(instant{})
		db.SetMaxOpenConns(1)
		b := &backend{db: bun.NewDB(db, pgdialect.New()).WithQueryHook(boundWaiting{db})}
		test(onePool{t, b})
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

// hold takes the connection for that long.
func (p onePool) hold(long time.Duration) (free func()) {
	p.t.Helper()
	conn, err := p.b.db.DB.Conn(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	timer := time.AfterFunc(long, func() { _ = conn.Close() })
	return func() {
		timer.Stop()
		_ = conn.Close()
	}
}

// takes calls fn, which is to end so late, and well or because it has waited for too long.
func (p onePool) takes(what string, long time.Duration, well bool, fn func() error) {
	p.t.Helper()
	began := time.Now()
	err := fn()
	if took := time.Since(began); took != long {
		p.t.Errorf("%s took %v, want %v", what, took, long)
	}
	if well != (err == nil) || !well && !errors.Is(err, coord.ErrUnavailable) {
		p.t.Errorf("%s: %v", what, err)
	}
}

// A request asks for several things, one after the other. It waits for connections for ten
// seconds in all, and whoever asks without a request's patience for as long each time.
func TestPatienceIsForAll(t *testing.T) {
	t.Parallel()
	inOnePool(t, func(p onePool) {
		exec := func(ctx context.Context) func() error {
			return func() error {
				_, err := p.b.db.ExecContext(ctx, `SELECT 1`)
				return storeError(ctx, err)
			}
		}
		inTx := func(ctx context.Context, long time.Duration) func() error {
			return func() error {
				return p.b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
					time.Sleep(long)
					_, err := tx.Unwrap().(bun.Tx).ExecContext(ctx, `SELECT 1`)
					return err
				})
			}
		}
		ctx := coord.WithPatience(p.t.Context(), 10*time.Second)
		p.takes("what need not wait", 0, true, exec(ctx))
		p.hold(3 * time.Second)
		p.takes("a statement", 3*time.Second, true, exec(ctx))
		p.hold(4 * time.Second)
		p.takes("a transaction", 4*time.Second+time.Second, true, inTx(ctx, time.Second))
		free := p.hold(time.Hour)
		p.takes("the statement that has waited enough", 3*time.Second, false, exec(ctx))
		p.takes("one more", 0, false, exec(ctx))
		p.takes("a transaction that finds no patience left", 0, false, inTx(ctx, 0))
		p.takes("another request", poolPatience, false, exec(coord.WithPatience(p.t.Context(), time.Minute)))
		p.takes("what is for no request", poolPatience, false, exec(p.t.Context()))
		free()
		p.takes("what need not wait any more", 0, true, exec(ctx))
	})
}

// What several callers ask for together: each waits by their own patience, and the shared
// statement by nobody's.
func TestPatienceWithSharedStatements(t *testing.T) {
	t.Parallel()
	inOnePool(t, func(p onePool) {
		statements := 0
		by := batch.New(10, 1, func(ctx context.Context, items []int) ([]int, error) {
			if statements++; statements == 1 {
				time.Sleep(time.Second) // the others come together
				return items, nil
			}
			_, err := p.b.db.ExecContext(ctx, `SELECT 1`)
			return items, storeError(ctx, err)
		})
		ask := func(most time.Duration) func() error {
			ctx := coord.WithPatience(p.t.Context(), most)
			return func() error {
				_, err := share(ctx, p.b, by, 1)
				return err
			}
		}
		p.hold(5 * time.Second)
		var asking sync.WaitGroup
		for _, a := range []struct {
			who             string
			patience, takes time.Duration
			well            bool
		}{
			{"the first", time.Minute, time.Second, true},
			{"who has little patience", 2 * time.Second, 2 * time.Second, false},
			{"who came later", time.Minute, 5 * time.Second, true},
		} {
			asking.Go(func() { p.takes(a.who, a.takes, a.well, ask(a.patience)) })
			synctest.Wait()
		}
		asking.Wait()
		if statements != 2 {
			t.Errorf("%d statements were sent, want 2", statements)
		}
	})
}
