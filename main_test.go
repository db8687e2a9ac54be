package main

import (
	"os"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/internal/testenv"
)

// TestMain keeps the settings of whoever runs the tests away from the programs that they start.
func TestMain(m *testing.M) {
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "TANDEM_") && !strings.HasPrefix(name, "TANDEM_TEST_") {
			_ = os.Unsetenv(name)
		}
	}
	code := testenv.Main(m)
	removeProgram()
	os.Exit(code)
}
