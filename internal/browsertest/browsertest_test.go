package browsertest

import (
	"os"
	"testing"

	"github.com/chromedp/chromedp"
)

// A browser shows a page, and when its test is over nothing of it is left where temporary files are.
func TestStart(t *testing.T) {
	dir, err := os.MkdirTemp("", "tandem-") //nolint:usetesting // it will be in the path of a socket, which must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("TMPDIR", dir)
	t.Run("page", func(t *testing.T) {
		title, err := chromedp.Run(Start(t), chromedp.Title())
		if err != nil || title != "" {
			t.Errorf("the title of the empty page is %q, %v", title, err)
		}
	})
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range left {
		t.Errorf("%s is left", file.Name())
	}
}
