package attach

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		built.Lock()
		if built.dir != "" {
			os.RemoveAll(built.dir) //nolint:errcheck // a temporary folder
		}
		os.Exit(code)
	}))
}
