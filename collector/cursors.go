package collector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/lanetrace/lanetrace/internal/wholefile"
	"github.com/lanetrace/lanetrace/spanring"
)

// Cursors keeps the cursors of runs in a directory, one file a run, so that a
// collector that is restarted reads on. A file is replaced as a whole by a rename,
// at most twice a second, and removed when its ring is gone. Its methods may be called
// from any goroutine.
type Cursors struct {
	dir string
	log *slog.Logger

	mu    sync.Mutex
	moved map[spanring.RunID]cursorFile // not written yet

	fails bool // of the writing goroutine
}

// cursorFile is a cursor as it is stored.
type cursorFile struct {
	Version int         `json:"version"`
	RunID   string      `json:"run_id"`
	Ring    string      `json:"ring"` // path of its ring: the cursor goes with it
	From    uint64      `json:"from"`
	Next    uint64      `json:"next"`
	Holes   []uint64    `json:"holes,omitempty"`
	Closed  []StepRange `json:"closed"`
	Ended   bool        `json:"ended,omitempty"`
}

const (
	cursorVersion = 1
	cursorSuffix  = ".cursor"
	// maxCursorBytes is more than closedMemory ranges take.
	maxCursorBytes = 512 << 10
	// cursorWrite is how often cursors that moved are written, and cursorPrune how
	// often those of rings that are gone are removed.
	cursorWrite = 500 * time.Millisecond
	cursorPrune = time.Minute
	// maxCursors is how many files are looked through at once.
	maxCursors = 8192
)

// cursorName is what cursors are called. Only files of that name, whole or begun, are
// ever removed.
var cursorName = regexp.MustCompile(`^([0-9a-f]{32})\` + cursorSuffix + `(\.tmp)?$`)

// NewCursors makes the directory, with mode 0700, if it is missing. log takes what
// cannot be read or written; nil discards it.
func NewCursors(dir string, log *slog.Logger) (*Cursors, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of cursors: %w", err)
	}
	return &Cursors{dir: dir, log: log, moved: make(map[spanring.RunID]cursorFile)}, nil
}

// MarshalJSON writes a range as [first, last].
func (r StepRange) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "[%d,%d]", r.First, r.Last), nil
}

// UnmarshalJSON reverses MarshalJSON.
func (r *StepRange) UnmarshalJSON(b []byte) error {
	var v []uint64
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	if len(v) != 2 {
		return fmt.Errorf("%w: a range of %d numbers", errCursor, len(v))
	}
	r.First, r.Last = v[0], v[1]
	return nil
}

// put notes where a run's reader stands; it is written soon.
func (k *Cursors) put(id spanring.RunID, ring string, c Cursor) {
	k.mu.Lock()
	k.moved[id] = cursorFile{cursorVersion, id.String(), ring, c.From, c.Next, c.Holes, c.Closed, c.Ended}
	k.mu.Unlock()
}

// get is the cursor of a run of which so much is published, nil for none. One that
// cannot be is told and ignored.
func (k *Cursors) get(id spanring.RunID, published uint64) *Cursor {
	path := k.path(id)
	f, err := readCursor(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	c := &Cursor{f.From, f.Next, f.Holes, f.Closed, f.Ended}
	if err == nil && f.RunID != id.String() {
		err = fmt.Errorf("%w: of run %q", errCursor, f.RunID)
	}
	if err == nil {
		err = c.check(published)
	}
	if err != nil {
		k.log.Warn("stored cursor ignored: the ring is read from its oldest entry", "file", path, "reason", err.Error())
		return nil
	}
	return c
}

func (k *Cursors) path(id spanring.RunID) string {
	return filepath.Join(k.dir, id.String()+cursorSuffix)
}

// readCursor reads a file that may be anything.
func readCursor(path string) (c cursorFile, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return c, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return c, errors.Join(fmt.Errorf("%w: no regular file", errCursor), err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxCursorBytes+1))
	if err != nil {
		return c, err
	}
	if len(b) > maxCursorBytes {
		return c, fmt.Errorf("%w: over %d bytes", errCursor, maxCursorBytes)
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("%w: %w", errCursor, err)
	}
	if c.Version != cursorVersion {
		return c, fmt.Errorf("%w: version %d", errCursor, c.Version)
	}
	return c, nil
}

// run writes the cursors that move until ctx ends.
func (k *Cursors) run(ctx context.Context) {
	t := time.NewTicker(cursorWrite)
	defer t.Stop()
	k.prune()
	for next := time.Now().Add(cursorPrune); ; {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			k.write()
			if now.After(next) {
				k.prune()
				next = now.Add(cursorPrune)
			}
		}
	}
}

// write writes the cursors that moved. What fails is told once, until it works again,
// and tried again the next time: a run that has ended moves no more.
func (k *Cursors) write() {
	k.mu.Lock()
	moved := k.moved
	k.moved = make(map[spanring.RunID]cursorFile, len(moved))
	k.mu.Unlock()
	if len(moved) == 0 {
		return
	}
	var failed error
	for id, c := range moved {
		if err := writeCursor(k.path(id), c); err != nil {
			failed = err
			k.again(id, c)
		}
	}
	if (failed != nil) != k.fails {
		k.fails = failed != nil
		if failed != nil {
			k.log.Warn("cursors not stored: a restart sends steps again", "reason", failed.Error())
		}
	}
}

// again has a cursor written the next time, unless it has moved since or its ring is gone.
func (k *Cursors) again(id spanring.RunID, c cursorFile) {
	if _, err := os.Lstat(c.Ring); errors.Is(err, fs.ErrNotExist) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, moved := k.moved[id]; !moved {
		k.moved[id] = c
	}
}

func writeCursor(path string, c cursorFile) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return wholefile.Replace(path, b, 0o600)
}

// prune removes the cursors whose rings are gone, and files that are no cursors.
func (k *Cursors) prune() {
	d, err := os.Open(k.dir)
	if err != nil {
		return // told when one is written
	}
	defer d.Close()
	names, err := d.Readdirnames(maxCursors)
	if err != nil {
		return
	}
	for _, name := range names {
		m := cursorName.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		path := filepath.Join(k.dir, name)
		if m[2] != "" {
			// Somebody else may be writing it.
			if st, err := os.Lstat(path); err != nil || time.Since(st.ModTime()) < cursorPrune {
				continue
			}
		} else if c, err := readCursor(path); err == nil && filepath.IsAbs(c.Ring) {
			if _, err := os.Lstat(c.Ring); !errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			k.log.Warn("cursor not removed", "file", path, "reason", err.Error())
		}
	}
}
