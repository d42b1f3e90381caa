package lanetrace_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoTestSleeps: a test that sleeps on the machine's clock is slow where it is long
// enough and fails where it is not. On a clock of testing/synctest it is neither.
func TestNoTestSleeps(t *testing.T) {
	const sleep = "time." + "Sleep("
	read := 0
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != "." || d.Name() == "testdata" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, "_test.go"):
			return nil
		}
		b, err := os.ReadFile(file)
		read++
		if text := string(b); strings.Contains(text, sleep) && !strings.Contains(text, `"testing/synctest"`) {
			t.Errorf("%s sleeps: poll a condition with a deadline, or use testing/synctest", file)
		}
		return err
	})
	if err != nil || read < 200 {
		t.Errorf("%d files were read, %v", read, err)
	}
}
