package check

import (
	"os"
	"testing"

	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
