package presence_test

import (
	"os"
	"testing"

	"github.com/tandemhq/tandem/internal/apptest"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.MainWithoutLeaks(m)) }

// onEach runs a test on every driver.
func onEach(t *testing.T, test func(*testing.T, *rig)) {
	t.Helper()
	apptest.OnEachStopped(t, func(t *testing.T, d *apptest.Database) { test(t, newRig(t, d)) })
}
