package recording

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// A segment's name is when it was begun and whose it is.
const segmentTime = "20060102T150405.000000000Z"

var segmentPattern = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}\.[0-9]{9}Z-[0-9a-f]{32}\` + Suffix + `$`)

// lockName is the file whose lock says that a store writes to the directory.
const lockName = ".lanetrace-keep.lock"

func segmentName(began time.Time, run spanring.RunID) string {
	return began.UTC().Format(segmentTime) + "-" + run.String() + Suffix
}

// segmentDir is the directory of a store: the segments in it that are closed, the
// oldest first. Files that are none of a store's are left alone.
type segmentDir struct {
	path   string
	lock   *os.File // nil: not open
	closed []segmentInfo
	bytes  int64 // of closed
}

type segmentInfo struct {
	name  string
	size  int64
	endAt time.Time // of the last write
}

// open makes the directory if need be, takes it for this store and looks at what
// is there. Once it succeeded it does nothing.
func (d *segmentDir) open() error {
	if d.lock != nil {
		return nil
	}
	if err := os.Mkdir(d.path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(d.path, lockName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o640)
	if err != nil {
		return fmt.Errorf("lock directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another process keeps recordings there")
		}
		return errors.Join(err, f.Close())
	}
	es, err := os.ReadDir(d.path)
	if err != nil {
		return errors.Join(fmt.Errorf("list directory: %w", err), f.Close())
	}
	d.lock, d.closed, d.bytes = f, nil, 0
	for _, e := range es {
		if segmentPattern.MatchString(e.Name()) {
			d.add(e.Name())
		}
	}
	slices.SortFunc(d.closed, func(a, b segmentInfo) int { return cmp.Or(a.endAt.Compare(b.endAt), cmp.Compare(a.name, b.name)) })
	return nil
}

// close lets another store have the directory.
func (d *segmentDir) close() {
	if d.lock != nil {
		_ = d.lock.Close() // holds nothing that was written
		d.lock = nil
	}
}

// create makes a segment's file.
func (d *segmentDir) create(name string) (io.WriteCloser, error) {
	if err := d.open(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(d.path, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return nil, fmt.Errorf("make recording: %w", err)
	}
	return f, nil
}

// add notes a segment that is closed.
func (d *segmentDir) add(name string) {
	st, err := os.Lstat(filepath.Join(d.path, name))
	if err != nil || !st.Mode().IsRegular() {
		return // removed by somebody, or never a segment
	}
	d.closed = append(d.closed, segmentInfo{name, st.Size(), st.ModTime()})
	d.bytes += st.Size()
}

// removeOlder removes the segments that ended before t.
func (d *segmentDir) removeOlder(t time.Time) error {
	for len(d.closed) > 0 && d.closed[0].endAt.Before(t) {
		if err := d.removeOldest(); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the oldest segments until they have n bytes fewer, or none are
// left.
func (d *segmentDir) remove(n int64) error {
	for most := d.bytes - n; d.bytes > most && len(d.closed) > 0; {
		if err := d.removeOldest(); err != nil {
			return err
		}
	}
	return nil
}

func (d *segmentDir) removeOldest() error {
	o := d.closed[0]
	if err := os.Remove(filepath.Join(d.path, o.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old recording: %w", err)
	}
	d.closed, d.bytes = d.closed[1:], d.bytes-o.size
	return nil
}
