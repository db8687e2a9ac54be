package webhook_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/app/webhook"
)

// FuzzParseSecret wants one text for one secret, and no error that repeats it.
func FuzzParseSecret(f *testing.F) {
	for _, s := range []string{
		exampleSecret, webhook.NewSecret(), "", "whsec_", "WHSEC_" + strings.Repeat("A", 32), "whsec_" + strings.Repeat("A", 33),
		"whsec_" + strings.Repeat("A", 30) + "\r\nAA", "whsec_" + strings.Repeat("_", 32), "whsec_" + strings.Repeat("A", 1000),
		"whsec_" + strings.Repeat("A", 42) + "B=", // with bits that say nothing
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		secret, err := webhook.ParseSecret(s)
		if err != nil {
			encoded := strings.TrimPrefix(s, "whsec_")
			if !errors.Is(err, webhook.ErrSecret) || secret != nil || len(encoded) > 8 && strings.Contains(err.Error(), encoded) {
				t.Errorf("got %d bytes, %v", len(secret), err)
			}
			return
		}
		if again := "whsec_" + base64.StdEncoding.EncodeToString(secret); again != s || len(secret) < 24 || len(secret) > 64 {
			t.Errorf("%q is read as %d bytes, which are written %q", s, len(secret), again)
		}
	})
}
