package collector

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace/spanring"
)

// runWith runs a collector whose directory is watched by w.
func runWith(t *testing.T, o Options, w func() (*spanring.Watch, error)) *Collector {
	t.Helper()
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if w != nil {
		c.watchDir = w
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return c
}

// TestFileEvents: a ring is seen when it appears, long before the directory is looked
// at anyway.
func TestFileEvents(t *testing.T) {
	d := ringDir(t)
	first := newRing(t, d, spanring.Info{Service: "first"})
	writeStep(first, 1, 0)
	var n counter
	runWith(t, Options{Dir: d, Rescan: time.Hour, Processor: ProcessorOptions{Observers: []Observer{&n}}}, nil)
	eventually(t, "the ring that was there", func() bool { return n.of("first") == 1 })
	// It comes with a step: engines that have done nothing yet are not attached to, and
	// only looked at again with the directory.
	second := newRing(t, ringDir(t), spanring.Info{Service: "second"})
	writeStep(second, 1, 0)
	if err := os.Rename(second.Path(), filepath.Join(d.Path, filepath.Base(second.Path()))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ring that came", func() bool { return n.of("second") == 1 })
}

// TestDirectoryComesBack: a directory's end is told, its rings are read on, and so are
// those of one that is made anew.
func TestDirectoryComesBack(t *testing.T) {
	d := ringDir(t)
	first := newRing(t, d, spanring.Info{Service: "first"})
	writeStep(first, 1, 0)
	var n counter
	var log syncBuffer
	runWith(t, Options{Dir: d, Rescan: 5 * time.Millisecond, Processor: ProcessorOptions{Observers: []Observer{&n}}, Logger: slog.New(slog.NewTextHandler(&log, nil))}, nil)
	eventually(t, "the ring that was there", func() bool { return n.of("first") == 1 })
	if err := os.RemoveAll(d.Path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the directory's end is told", func() bool { return strings.Contains(log.String(), "cannot be listed") })
	writeStep(first, 2, 0)
	eventually(t, "a ring of the directory that is gone is read on", func() bool { return n.of("first") == 2 })
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	writeStep(newRing(t, d, spanring.Info{Service: "second"}), 1, 0)
	eventually(t, "a ring of the directory that came back", func() bool { return n.of("second") == 1 })
	eventually(t, "its return is told", func() bool { return strings.Contains(log.String(), "can be listed again") })
	if strings.Count(log.String(), "cannot be listed") != 1 || strings.Count(log.String(), "can be listed again") != 1 || strings.Contains(log.String(), "no file events") {
		t.Errorf("log %s", log.String())
	}
}

// TestDirectoryReplaced: rings of a directory that took the other's place are seen.
func TestDirectoryReplaced(t *testing.T) {
	d := ringDir(t)
	var n counter
	runWith(t, Options{Dir: d, Rescan: 10 * time.Millisecond, Processor: ProcessorOptions{Observers: []Observer{&n}}}, nil)
	early := newRing(t, d, spanring.Info{Service: "early"})
	writeStep(early, 1, 0)
	eventually(t, "the first directory's ring", func() bool { return n.of("early") == 1 })
	if err := os.Rename(d.Path, d.Path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	late := newRing(t, d, spanring.Info{Service: "late"})
	writeStep(late, 1, 0)
	eventually(t, "the second directory's ring", func() bool { return n.of("late") == 1 })
}

// TestComesBackUnsafe: a directory that everybody may write to is not read because one
// of that name once was safe.
func TestComesBackUnsafe(t *testing.T) {
	d := ringDir(t)
	var log syncBuffer
	runWith(t, Options{Dir: d, Rescan: 5 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))}, nil)
	if err := os.Rename(d.Path, d.Path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	w := newRing(t, d, spanring.Info{Service: "s"})
	if err := os.Chmod(d.Path, 0o777); err != nil {
		t.Fatal(err)
	}
	writeStep(w, 1, 0)
	eventually(t, "it is refused", func() bool { return strings.Contains(log.String(), "can be written by everybody") })
}

// TestNoFileEvents: where the kernel allows no more watches, rings are found by
// looking, which is told once.
func TestNoFileEvents(t *testing.T) {
	d := ringDir(t)
	var n counter
	var log syncBuffer
	runWith(t, Options{Dir: d, Rescan: 5 * time.Millisecond, Processor: ProcessorOptions{Observers: []Observer{&n}}, Logger: slog.New(slog.NewTextHandler(&log, nil))},
		func() (*spanring.Watch, error) { return nil, unix.EMFILE })
	for _, s := range []string{"a", "b"} {
		writeStep(newRing(t, d, spanring.Info{Service: s}), 1, 0)
		eventually(t, "ring "+s, func() bool { return n.of(s) == 1 })
	}
	if text := log.String(); strings.Count(text, "no file events") != 1 || !strings.Contains(text, "too many open files") {
		t.Errorf("log %s", text)
	}
}
