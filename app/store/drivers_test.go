package store_test

import (
	"os"
	"testing"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/apptest"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.MainWithoutLeaks(m)) }

// database is a store and the backend that it shares transactions with.
type database struct {
	store   *store.Store
	backend coord.Backend
}

// onEach runs a test on every driver.
func onEach(t *testing.T, test func(*testing.T, database)) {
	t.Helper()
	apptest.OnEach(t, func(t *testing.T, d *apptest.Database) { test(t, opened(t, d)) })
}

func opened(t *testing.T, d *apptest.Database) database {
	t.Helper()
	backend, st := d.Store(t)
	return database{st, backend}
}
