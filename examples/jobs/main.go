// Command jobs places three orders and ships them: the rows of the orders and the runs that ship
// them are made together, and each order is shipped in the transaction that ends its run. Its
// argument names the database: a file (jobs.db by default), postgres://… or memory:
package main

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"os/signal"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/worker"
)

type order struct{ ID, Item string }

// ship is the kind of the runs that ship an order.
const ship worker.Kind[order] = "ship"

func main() {
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt)
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	if err := run(ctx, append(os.Args, "jobs.db")[1], log); err != nil && ctx.Err() == nil {
		log.Error("stopped", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, database string, log *slog.Logger) error {
	backend, err := open(ctx, database)
	if err != nil {
		return err
	}
	defer backend.Close(context.WithoutCancel(ctx))

	var runs []coord.Run
	err = backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
		var queue []coord.NewRun
		for _, item := range []string{"tea", "coffee", "cocoa"} {
			o := order{rand.Text(), item}
			if err := exec(ctx, tx, `INSERT INTO orders VALUES (?, ?, 0)`, o.ID, o.Item); err != nil {
				return err
			}
			run, err := ship.Run(o)
			if err != nil {
				return err
			}
			queue = append(queue, run)
		}
		runs, err = tx.Enqueue(ctx, queue...)
		return err
	})
	if err != nil {
		return err
	}
	log.Info("placed", "orders", len(runs))

	handle := func(ctx context.Context, r *worker.Run, o order) error {
		err := backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
			if err := exec(ctx, tx, `UPDATE orders SET shipped = shipped + 1 WHERE id = ?`, o.ID); err != nil {
				return err
			}
			return r.FinishIn(ctx, tx) // or roll back: the lease is lost
		})
		if err == nil {
			log.Info("shipped", "order", o.ID, "item", o.Item, "run", r.Run.ID)
		}
		return err
	}
	w, err := worker.New(backend.Claimer(), worker.Options{
		Name: "jobs", Logger: log, Handlers: map[string]worker.Handler{string(ship): ship.Handler(handle)},
	})
	if err != nil {
		return err
	}
	return w.Run(until(ctx, backend.Claimer(), runs))
}
