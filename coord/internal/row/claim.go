package row

import (
	"cmp"
	"slices"

	"github.com/tandemhq/tandem/coord"
)

// SortClaims puts claims in the order in which they were due.
func SortClaims(claims []coord.Claim) {
	slices.SortFunc(claims, func(a, b coord.Claim) int {
		return cmp.Or(cmp.Compare(a.Run.Priority, b.Run.Priority), a.Run.DueAt.Compare(b.Run.DueAt), cmp.Compare(a.Run.ID, b.Run.ID))
	})
}
