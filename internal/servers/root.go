package servers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Root is the folder of lanetrace's go.mod, found from where a test runs.
func Root(tb testing.TB) string {
	tb.Helper()
	d, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for ; ; d = filepath.Dir(d) {
		_, err := os.Stat(filepath.Join(d, "tools", "servers"))
		if err == nil {
			return d
		}
		if !errors.Is(err, os.ErrNotExist) || d == filepath.Dir(d) {
			tb.Fatal(fmt.Errorf("find tools/servers above the test's folder: %w", err))
		}
	}
}
