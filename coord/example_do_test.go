package coord_test

import (
	"context"
	"fmt"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
)

// A request that comes twice, since the answer to the first was lost, is carried out
// once; the same key on another request is refused.
func ExampleDo() {
	ctx := context.Background()
	b := memory.Open(memory.Options{})
	defer func() { _ = b.Close(ctx) }()
	pay := func(request string) {
		r := coord.ReceiptFor{Key: "account 7, payment 12", Fingerprint: []byte(request)}
		o, replayed, err := coord.Do(ctx, b.Receipts(), r, func(context.Context, coord.Receipt) ([]byte, error) {
			fmt.Println("paying", request)
			return []byte("paid"), nil
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s, replayed: %v\n", o.Body, replayed)
	}
	pay("10 to ann")
	pay("10 to ann")
	pay("99 to bob")
	// Output:
	// paying 10 to ann
	// paid, replayed: false
	// paid, replayed: true
	// coord: receipts.begin "account 7, payment 12": conflict
}

// An effect in the store and its outcome become one, whatever breaks off in between.
func ExampleDo_transaction() {
	ctx := context.Background()
	b := memory.Open(memory.Options{})
	defer func() { _ = b.Close(ctx) }()
	order := func(ctx context.Context, held coord.Receipt) ([]byte, error) {
		return nil, b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
			runs, err := tx.Enqueue(ctx, coord.NewRun{Kind: "ship"})
			if err != nil {
				return err
			}
			return tx.CompleteReceipt(ctx, held, coord.ReceiptOutcome{Body: fmt.Append(nil, "run ", runs[0].ID)})
		})
	}
	for range 2 {
		o, _, err := coord.Do(ctx, b.Receipts(), coord.ReceiptFor{Key: "order 7"}, order)
		fmt.Println(string(o.Body), err)
	}
	// Output:
	// run 1 <nil>
	// run 1 <nil>
}
