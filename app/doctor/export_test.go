package doctor

import (
	"context"
	"database/sql"
	"time"
)

// OldestTransactions is what is measured of transactions: it takes a minute until one is worth
// a word.
func OldestTransactions(ctx context.Context, db *sql.DB) (oldest time.Duration, who string, prepared time.Duration, gid string, err error) {
	t, err := lookAtTransactions(ctx, db)
	return t.oldest, t.who, t.prepared, t.gid, err
}
