package spanring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Watch tells when rings appear in a directory or go, by the kernel's file events. It
// tells that something changed and not what: look with List, after Watch has
// returned.
type Watch struct {
	f       *os.File
	dir     os.FileInfo
	changed chan struct{}
	done    chan struct{}
	close   sync.Once
	err     error // of closing
}

// What is asked of the kernel: names that appear or go, and the directory itself.
const watchMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_MOVED_FROM |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW

// Watch begins to watch the directory. It fails with ErrDirMissing, or where the kernel
// allows no more watches to this user; then only looking again and again helps. It
// starts a goroutine, which Close ends.
func (d Dir) Watch() (*Watch, error) {
	path := d.clean()
	if _, err := d.stat("start an engine or create it"); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch ring directory %s: %w", d.Path, err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, path, watchMask); err != nil {
		return nil, errors.Join(fmt.Errorf("watch ring directory %s: %w", d.Path, err), f.Close())
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch ring directory %s: %w", d.Path, bare(err)), f.Close())
	}
	w := &Watch{f: f, dir: fi, changed: make(chan struct{}, 1), done: make(chan struct{})}
	go w.read()
	return w, nil
}

// Changed receives after something changed, once for many changes; it is closed when
// the directory is gone, or after Close. An engine that has a ring in it holds on to a
// directory that was removed: ask Current, too.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Current reports whether the directory's path still leads to what is watched. It does
// not when the directory was removed, or another file system mounted there, of which
// the kernel may tell nothing.
func (w *Watch) Current(d Dir) bool {
	fi, err := os.Lstat(d.clean())
	return err == nil && os.SameFile(fi, w.dir)
}

// Close ends the watch. Closing twice does nothing.
func (w *Watch) Close() error {
	w.close.Do(func() {
		w.err = w.f.Close() // ends read
		<-w.done
	})
	return w.err
}

func (w *Watch) read() {
	defer close(w.done)
	defer close(w.changed)
	b := make([]byte, 16<<10)
	for {
		n, err := w.f.Read(b)
		if err != nil {
			return // closed
		}
		rings, gone := parseEvents(b[:n])
		if rings {
			select {
			case w.changed <- struct{}{}:
			default: // not taken yet
			}
		}
		if gone {
			return
		}
	}
}

// parseEvents looks through what the kernel wrote: whether it names rings, or may have
// left some out, and whether the directory is gone.
func parseEvents(b []byte) (rings, gone bool) {
	for len(b) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size < 0 || size > len(b) {
			return true, gone
		}
		name, _, _ := bytes.Cut(b[:size], []byte{0})
		b = b[size:]
		gone = gone || mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0
		rings = rings || mask&unix.IN_Q_OVERFLOW != 0 || strings.HasSuffix(string(name), Suffix)
	}
	return rings, gone
}
