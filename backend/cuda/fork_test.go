//go:build cgo

package cuda

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend/cuda/internal/raw"
	"github.com/lanetrace/lanetrace/spanring"
)

func wantChild(t *testing.T, what string, fd int, want bool) {
	t.Helper()
	has, err := raw.ChildHas(fd)
	if err != nil || has != want {
		t.Errorf("%s: a forked child has it: %v (%v), want %v", what, has, err, want)
	}
}

func TestForkGuard(t *testing.T) {
	// In memory: on a disk one may have the inode of another test's, which was guarded.
	open := func(name string) *os.File {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), name)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	a, b := open("a"), open("b")
	fd := int(a.Fd())
	wantChild(t, "before the guard", fd, true)
	for range 2 {
		if err := forkGuard(fd); err != nil {
			t.Fatal(err)
		}
	}
	wantChild(t, "guarded", fd, false)
	wantChild(t, "not guarded", int(b.Fd()), true)
	wantChild(t, "guarded, a second child", fd, false)
	if _, err := a.WriteString("still open"); err != nil {
		t.Errorf("the parent's descriptor: %v", err)
	}
	// The number goes to another file: that one is the child's to keep.
	if err := unix.Dup3(int(b.Fd()), fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	wantChild(t, "another file under a guarded number", fd, true)
	if err := forkGuard(fd); err != nil {
		t.Fatal(err)
	}
	wantChild(t, "and guarded in its turn", fd, false)
	// Files that are gone leave room for others.
	for range 100 {
		f := open("c")
		if err := forkGuard(int(f.Fd())); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	if err := forkGuard(-1); err == nil {
		t.Error("a descriptor that is none: no error")
	}
}

// TestForkedChildDropsTheRing: the ring's lock falls with the engine, whatever
// children it has forked.
func TestForkedChildDropsTheRing(t *testing.T) {
	lib := anyDriver(t)
	hub, err := lanetrace.Open(lanetrace.Config{Dir: ringDir(t), NoCalibration: true, Pairs: 16, Logger: testLogger(t)})
	if err != nil || hub.Disabled() != nil {
		t.Fatal(err, hub.Disabled())
	}
	g := openTest(t, Config{Library: lib, Hub: hub})
	fd := hub.Ring().FD()
	wantChild(t, "the ring", fd, false)
	r, err := spanring.Open(hub.Ring().Path(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // read only
	if alive, err := r.Alive(); !alive || err != nil {
		t.Errorf("the engine is not alive after a fork: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := hub.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func ringDir(t *testing.T) string {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestForkGuardFull: more rings than a process will ever have cost a warning.
func TestForkGuardFull(t *testing.T) {
	lib := standIn(t)
	for range 16 {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		_ = forkGuard(int(f.Fd())) // earlier tests' files are gone by now
	}
	hub, err := lanetrace.Open(lanetrace.Config{Dir: ringDir(t), Level: "basic", Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	g, err := Open(Config{Library: lib, Hub: hub, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "a forked child would keep the ring's lock") {
		t.Errorf("log: %s", log.String())
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := hub.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
