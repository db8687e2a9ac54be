package leader_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/leader"
	"github.com/tandemhq/tandem/coord/memory"
)

// One replica at a time publishes a digest. Whatever becomes of it, no digest of a past term
// comes behind one of a later.
func ExampleRun() {
	ctx, stop := context.WithCancel(context.Background())
	backend := memory.Open(memory.Options{})
	defer func() { _ = backend.Close(context.Background()) }()

	hostname, _ := os.Hostname()
	o := leader.Options{Name: "digest", Candidate: hostname}
	err := leader.Run(ctx, backend.Elector(), o, func(ctx context.Context, term *leader.Term) error {
		next := time.NewTicker(10 * time.Millisecond)
		defer next.Stop()
		for n := 1; ; n++ {
			err := backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
				if err := tx.Fence(ctx, term.Term); err != nil {
					return err
				}
				return tx.Publish(ctx, coord.NewEvent{Topic: "room:all", Kind: "digest", Payload: fmt.Append(nil, n)})
			})
			if err != nil {
				return err // and campaign again
			}
			if n == 3 {
				stop() // the program is to end
			}
			select {
			case <-next.C:
			case <-ctx.Done():
				return nil
			}
		}
	})
	heads, _ := backend.Broadcaster().Heads(context.Background(), "room:all")
	leaders, _ := backend.Elector().Leaders(context.Background())
	fmt.Println(heads["room:all"].Seq, len(leaders), err)
	// Output: 3 0 <nil>
}
