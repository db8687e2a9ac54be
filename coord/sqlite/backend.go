// Package sqlite is the SQLite driver of package coord, for the processes of one
// machine on one file. It needs the schema of package migrations and a local
// disk: not one behind a network.
//
// There is one writer at a time. Every change is a transaction that takes the
// file's writer lock as it begins, and a process that has to wait for it waits
// until its caller's context ends. Changes that wait at the same time share one, and
// with it the wait for the disk; those of InTx do not. Reading waits for nobody.
// The clock is that of the process, read once the lock is held; processes on one
// machine share theirs.
//
// A file that is deleted or replaced is missed at the next change, which fails
// with [coord.ErrUnavailable]; one that is restored in place, as the sqlite3
// shell does, resets the streams whose history it took back.
//
// On some errors SQLite rolls a transaction back by itself. When a statement of
// the caller's own fails inside InTx, their function is to return: from then on
// the Tx refuses everything, but further statements of the caller's own would be
// committed one by one.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/await"
	"github.com/tandemhq/tandem/coord/internal/batch"
	"github.com/tandemhq/tandem/coord/internal/feed"
	"github.com/tandemhq/tandem/coord/internal/hint"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// Options configure [Open].
type Options struct {
	Path string // of the file, see OpenDB
	// DB is the caller's own, instead of Path, and stays the caller's. The backend
	// keeps one connection of DB.Read for itself.
	DB  *DB
	Now func() time.Time // the clock that decides; default time.Now
	// Poll is how often to look for what other processes have written; default
	// 25 ms. It is done a quarter as often when the file was quiet for 10 s.
	Poll time.Duration
	coord.Options
}

// Open opens the file and returns its backend. Errors: [coord.ErrUnavailable],
// or what is wrong with the options.
func Open(ctx context.Context, o Options) (coord.Backend, error) {
	b, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	if err := b.ready(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: %w", err), b.Close(ctx))
	}
	b.start(ctx)
	return coord.Wrap(b, o.Options), nil
}

func open(o Options) (b *backend, err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Poll == 0 {
		o.Poll = 25 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	b = &backend{o: o, db: o.DB, stop: func() {}, closed: make(chan struct{})}
	if b.db == nil {
		if b.db, err = OpenDB(o.Path); err != nil {
			return nil, err
		}
		b.own = append(b.own, b.db)
	}
	b.feed = feed.New(broadcaster{b})
	b.publishes = batch.New(publishBatch, publishFlights, b.publishShared).Bound(publishBytes, row.Size).
		Refuse(row.WaitingPublishes, row.WaitingBytes)
	b.reader = newReader(b)
	b.waits = await.New(quietPolls*o.Poll, b.lookAtCalls)
	b.writer = &writer{b: b}
	return b, nil
}

type backend struct {
	o   Options
	db  *DB
	own []*DB

	prepared       statements
	writer         *writer
	plenty         atomic.Bool // the last claim got all that it asked for
	feed           *feed.Hub
	hints          hint.Hub
	cancels        hint.Hub
	changes        hint.Hub // the directory may have changed
	receiptChanges hint.Hub
	leaderChanges  hint.Hub
	keyChanges     hint.Hub
	publishes      *batch.Batcher[[]row.NewEvent, []coord.Position]
	reader         *reader
	waits          *await.Hub // for calls to end

	stop    context.CancelFunc
	loops   sync.WaitGroup
	closing sync.Once
	closed  chan struct{} // when the last goroutine has ended
}

// ready reports whether the file can be used: it can be written to, and has the
// schema.
func (b *backend) ready(ctx context.Context) error {
	if err := b.Ping(ctx); err != nil {
		return err
	}
	var tables []int
	err := b.db.Read.NewRaw(`SELECT count(*) FROM sqlite_master WHERE type = 'table'
		AND name IN ('coord_runs', 'coord_topics', 'coord_limits', 'coord_tickets', 'coord_calls', 'coord_receipts', 'coord_leaders', 'coord_rings')`).Scan(ctx, &tables)
	if err == nil && tables[0] < 8 {
		return errors.New("the file lacks the schema, see migrations.Up")
	}
	if err == nil {
		err = prepare(ctx, b.db.Write.DB, b.prepared.writes())
	}
	if err == nil {
		err = prepare(ctx, b.db.Read.DB, b.prepared.reads())
	}
	return storeError(ctx, err)
}

// start runs the loops of the backend until Close.
func (b *backend) start(ctx context.Context) {
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	if seen, err := b.reader.last(ctx); err == nil { // else the loop will say so
		b.reader.opened = &seen
	}
	b.loops.Go(func() { b.reader.run(ctx) })
	b.loops.Go(func() { b.listen(ctx) })
	b.loops.Go(func() { b.waits.Run(ctx) })
}

func (b *backend) Claimer() coord.Claimer         { return claimer{b} }
func (b *backend) Tickets() coord.Tickets         { return tickets{b} }
func (b *backend) Limiter() coord.Limiter         { return limiter{b} }
func (b *backend) Broadcaster() coord.Broadcaster { return broadcaster{b} }
func (b *backend) Directory() coord.Directory     { return directory{b} }
func (b *backend) Calls() coord.Calls             { return calls{b} }
func (b *backend) Receipts() coord.Receipts       { return receipts{b} }
func (b *backend) Elector() coord.Elector         { return elector{b} }
func (b *backend) Keyring() coord.Keyring         { return keyring{b} }

// Ping takes the writer lock and gives it back.
func (b *backend) Ping(ctx context.Context) error {
	tx, err := b.begin(ctx, func() (bun.Tx, error) { return b.db.Write.BeginTx(ctx, nil) })
	if err != nil {
		return storeError(ctx, err)
	}
	return storeError(ctx, tx.Rollback())
}

func (b *backend) Close(ctx context.Context) error {
	b.closing.Do(func() {
		b.feed.Close()
		b.waits.Close()
		b.stop()
		go func() {
			defer close(b.closed)
			b.loops.Wait()
			_ = b.prepared.close()
			for _, db := range b.own {
				_ = db.Close()
			}
		}()
	})
	select {
	case <-b.closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// now reads the clock to the microsecond, as times are stored.
func (b *backend) now() row.Time { return row.Time{Time: b.o.Now().Truncate(time.Microsecond).UTC()} }

func (b *backend) log() *slog.Logger { return b.o.Logger }
