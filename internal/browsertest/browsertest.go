// Package browsertest starts a browser for tests.
package browsertest

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/tandemhq/tandem/internal/testenv"
)

// Start starts a browser of its own for the test, and returns the context of a first tab. It ends with the
// test, and leaves no file behind.
func Start(tb testing.TB) context.Context {
	tb.Helper()
	dir, err := os.MkdirTemp("", "tandem-browser-") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) }) // a process that is ending may still write there
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(testenv.Chromium(tb)),
		chromedp.Env("TMPDIR="+dir), // where it leaves what it locks its profile with
		chromedp.NoSandbox,          // root, as in many a CI, can't have one; only our own page is opened
		chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.WindowSize(1400, 900),
	)
	// The browser ends with the clean-up, in which it is asked and waited for.
	ctx, cancelAllocator := chromedp.NewExecAllocator(context.WithoutCancel(tb.Context()), options...)
	tb.Cleanup(cancelAllocator)
	ctx, cancel := chromedp.NewContext(ctx)
	tb.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil { // it may take longer than what follows
		tb.Fatalf("start the browser: %v", err)
	}
	return ctx
}
