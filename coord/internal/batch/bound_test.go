package batch

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// What waits behind a statement goes out in statements that hold no more than
// they may, in order; what is larger goes alone.
func TestBoundInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var sent [][]int
		b := New(3, 1, func(_ context.Context, items []int) ([]int, error) {
			<-gate
			sent = append(sent, items)
			return items, nil
		}).Bound(10, func(item int) int { return item })
		var callers sync.WaitGroup
		for _, item := range []int{1, 4, 6, 1, 11, 2, 2, 2, 2} {
			callers.Go(func() {
				if got, err := b.Do(t.Context(), item); err != nil || got != item {
					t.Errorf("%d: %d, %v", item, got, err)
				}
			})
			synctest.Wait()
		}
		close(gate)
		callers.Wait()
		want := [][]int{{1}, {4, 6}, {1}, {11}, {2, 2, 2}, {2}}
		if !slices.EqualFunc(sent, want, slices.Equal) {
			t.Errorf("sent %v, want %v", sent, want)
		}
	})
}
