package pg

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"regexp"
)

// All that the driver does counts on READ COMMITTED: a statement that waited for a row
// goes on with the row as it is then. A database, a role or a connection string may have
// another default, under which it fails instead. A connection asks for ours when it is
// made; through a pooler it can't, and each transaction asks.

// isolation is the setting that decides it where a transaction does not.
const isolation = "default_transaction_isolation"

// committed is a connection through a pooler whose transactions are READ COMMITTED
// unless they are begun as something else, single statements included.
type committed struct {
	pqConn
	inTx bool
}

// looksAtRows finds a statement that looks at rows. Others get nothing put before them: some
// refuse to run as one of two.
var looksAtRows = regexp.MustCompile(`(?i)^\s*(SELECT|WITH|INSERT|UPDATE|DELETE|MERGE)\b`)

// alone returns the text of a statement that may be a transaction of its own. Two
// statements that are sent together are one transaction.
func (c *committed) alone(query string, args []driver.NamedValue) string {
	if c.inTx || len(args) > 0 || !looksAtRows.MatchString(query) {
		return query
	}
	return `SET TRANSACTION ISOLATION LEVEL READ COMMITTED; ` + query
}

func (c *committed) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.pqConn.QueryContext(ctx, c.alone(query, args), args)
}

func (c *committed) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.pqConn.ExecContext(ctx, c.alone(query, args), args)
}

func (c *committed) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if sql.IsolationLevel(opts.Isolation) == sql.LevelDefault {
		opts.Isolation = driver.IsolationLevel(sql.LevelReadCommitted)
	}
	tx, err := c.pqConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	c.inTx = true
	return &committedTx{tx, c}, nil
}

type committedTx struct {
	driver.Tx
	c *committed
}

func (t *committedTx) Commit() error {
	t.c.inTx = false
	return t.Tx.Commit()
}

func (t *committedTx) Rollback() error {
	t.c.inTx = false
	return t.Tx.Rollback()
}
