package wholefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "a"), filepath.Join(dir, "other")
	if err := errors.Join(os.WriteFile(other, []byte("theirs"), 0o600), os.Symlink(other, path+".tmp"), os.Symlink(other, path)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two, and longer"} {
		if err := Replace(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		st, err := os.Lstat(path)
		if err != nil || st.Mode() != 0o600 {
			t.Errorf("%v, %v: want a file of mode 0600", st, err)
		}
		b, err := os.ReadFile(path)
		theirs, oerr := os.ReadFile(other)
		if string(b) != text || string(theirs) != "theirs" || err != nil || oerr != nil {
			t.Errorf("%q and %q, %v, %v", b, theirs, err, oerr)
		}
	}
}

// TestReplaceFails: a folder cannot be replaced by a file, and nothing is left of the try.
func TestReplaceFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("one"), 0o600); err == nil {
		t.Error("no error")
	}
	es, err := os.ReadDir(dir)
	var names []string
	for _, e := range es {
		names = append(names, e.Name())
	}
	if d := cmp.Diff([]string{"a"}, names); d != "" || err != nil {
		t.Errorf("%v (-want +left):\n%s", err, d)
	}
	if err := Replace(filepath.Join(dir, "none", "a"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}
