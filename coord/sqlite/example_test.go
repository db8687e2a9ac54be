package sqlite_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/migrations"
)

// A row of the caller's, a run and an event happen together or not at all.
func Example() {
	if err := placeOrder(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// claimed an invoice for order 7
}

func placeOrder(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := sqlite.OpenDB(filepath.Join(dir, "app.db"))
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := migrations.Up(ctx, db.Write.DB, migrations.SQLite, migrations.Coord); err != nil {
		return err
	}
	if _, err := db.Write.ExecContext(ctx, `CREATE TABLE orders (id INTEGER PRIMARY KEY)`); err != nil {
		return err
	}
	backend, err := sqlite.Open(ctx, sqlite.Options{DB: db})
	if err != nil {
		return err
	}
	defer backend.Close(ctx)

	order := []byte("order 7")
	err = backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
		if _, err := tx.Unwrap().(bun.Tx).ExecContext(ctx, `INSERT INTO orders VALUES (?)`, 7); err != nil {
			return err
		}
		if _, err := tx.Enqueue(ctx, coord.NewRun{Kind: "invoice", Payload: order}); err != nil {
			return err
		}
		return tx.Publish(ctx, coord.NewEvent{Topic: "orders", Kind: "order.placed", Payload: order})
	})
	if err != nil {
		return err
	}
	claims, err := backend.Claimer().Claim(ctx, coord.ClaimOptions{
		Worker: "example", Kinds: []string{"invoice"}, Limit: 1, Lease: time.Minute,
	})
	if err != nil {
		return err
	}
	for _, c := range claims {
		fmt.Printf("claimed an %s for %s\n", c.Run.Kind, c.Run.Payload)
	}
	return nil
}
