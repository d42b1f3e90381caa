package agent

import (
	"bytes"
	"os"
	"testing"
)

// A path relative to the caller's folder, as the Makefile gives one.
func TestBuildToARelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("bin", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := BuildTo("bin/" + Name); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("bin/" + Name)
	if err != nil || !bytes.HasPrefix(b, []byte("\x7fELF")) {
		t.Errorf("no library: %v", err)
	}
	if ents, err := os.ReadDir("bin"); err != nil || len(ents) != 1 {
		t.Errorf("left behind: %v, %v", ents, err)
	}
}
