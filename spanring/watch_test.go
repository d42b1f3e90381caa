package spanring

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// changes waits for w to tell; false is a watch that ended.
func changes(t *testing.T, w *Watch) bool {
	t.Helper()
	select {
	case _, ok := <-w.Changed():
		return ok
	case <-time.After(time.Minute):
		t.Fatal("nothing told within a minute")
		return false
	}
}

func TestWatch(t *testing.T) {
	d := privateDir(t)
	w, err := d.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ring := create(t, d, smallGeometry)
	if !changes(t, w) {
		t.Fatal("ended")
	}
	// Requests and other people's files are nobody's business here.
	for _, name := range []string{filepath.Base(ring.Path()) + ControlSuffix, "note.txt"} {
		if err := os.WriteFile(filepath.Join(d.Path, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(ring.Path()); err != nil {
		t.Fatal(err)
	}
	if !changes(t, w) {
		t.Fatal("ended")
	}
	select {
	case _, ok := <-w.Changed():
		t.Errorf("told again, %v", ok)
	default:
	}
	if !w.Current(d) {
		t.Error("not current")
	}
	if err := os.RemoveAll(d.Path); err != nil {
		t.Fatal(err)
	}
	if w.Current(d) {
		t.Error("current without a directory")
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	if _, err := d.Watch(); !errors.Is(err, ErrDirMissing) {
		t.Errorf("no directory: %v", err)
	}
}

// TestWatchEnds when the directory is removed or moved away, and when it is closed.
func TestWatchEnds(t *testing.T) {
	d := privateDir(t)
	w, err := d.Watch()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(d.Path); err != nil {
		t.Fatal(err)
	}
	for changes(t, w) {
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	if w, err = d.Watch(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(d.Path, d.Path+".old"); err != nil {
		t.Fatal(err)
	}
	for changes(t, w) {
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if w, err = (Dir{d.Path + ".old", -1}).Watch(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if changes(t, w) {
		t.Error("told after Close")
	}
}

func event(mask uint32, name string, size int) []byte {
	b := make([]byte, unix.SizeofInotifyEvent+size)
	binary.NativeEndian.PutUint32(b[4:], mask)
	binary.NativeEndian.PutUint32(b[12:], uint32(size))
	copy(b[unix.SizeofInotifyEvent:], name)
	return b
}

func TestParseEvents(t *testing.T) {
	for _, tc := range []struct {
		name        string
		b           []byte
		rings, gone bool
	}{
		{"none", nil, false, false},
		{"a ring", event(unix.IN_MOVED_TO, "a.ring", 16), true, false},
		{"its control file", event(unix.IN_MOVED_TO, "a.ring.control", 16), false, false},
		{"two", append(event(unix.IN_CREATE, "x", 16), event(unix.IN_DELETE, "b.ring", 16)...), true, false},
		{"overflow", event(unix.IN_Q_OVERFLOW, "", 0), true, false},
		{"gone", event(unix.IN_DELETE_SELF, "", 0), false, true},
		{"unmounted", event(unix.IN_UNMOUNT, "", 0), false, true},
		{"cut", event(unix.IN_CREATE, "x", 16)[:20], true, false},
		{"half a header", make([]byte, 7), false, false},
	} {
		if rings, gone := parseEvents(tc.b); rings != tc.rings || gone != tc.gone {
			t.Errorf("%s: %v, %v; want %v, %v", tc.name, rings, gone, tc.rings, tc.gone)
		}
	}
}
