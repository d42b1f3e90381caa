package recording

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// Kept is a directory of recordings, put together run by run: what a [Store]
// keeps, or any other recordings.
type Kept struct {
	dir  string
	runs []KeptRun
	// readings are the recordings that hold readings of devices, the oldest first.
	readings []keptPart
	damage   []error
}

// KeptRun is one run of one engine, in one or several recordings.
type KeptRun struct {
	Info spanring.Info // as of the last recording
	// StartUnixNS and EndUnixNS are when the first recording begins and the last one
	// ends, Unix time in ns.
	StartUnixNS, EndUnixNS int64

	parts []keptPart
}

// keptPart is one run of one recording.
type keptPart struct {
	path                   string
	run                    int
	startUnixNS, endUnixNS int64
}

// Straddle is how long before the time asked for recordings are still opened, and
// so how long a step may have been under way to be whole.
const Straddle = time.Minute

// OpenDir looks at every recording in dir. Those that cannot be read cost an entry
// of Damage; a directory without any is an error. It reads the headers of blocks
// only, and keeps no file open.
func OpenDir(dir string) (*Kept, error) {
	es, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open recordings: %w", err)
	}
	k := &Kept{dir: dir}
	runs := make(map[spanring.RunID]*KeptRun)
	found := false
	for _, e := range es {
		if !strings.HasSuffix(e.Name(), Suffix) || !e.Type().IsRegular() {
			continue
		}
		found = true
		if fi, err := e.Info(); err != nil || fi.Size() == 0 {
			continue // removed meanwhile, or being made
		}
		if err := k.look(filepath.Join(dir, e.Name()), runs); err != nil {
			k.damage = append(k.damage, err)
		}
	}
	if !found {
		return nil, fmt.Errorf("no recordings (*%s) in %s", Suffix, dir)
	}
	older := func(a, b keptPart) int {
		return cmp.Or(cmp.Compare(a.startUnixNS, b.startUnixNS), cmp.Compare(a.path, b.path))
	}
	slices.SortFunc(k.readings, older)
	for _, r := range runs {
		slices.SortFunc(r.parts, older)
		k.runs = append(k.runs, *r)
	}
	slices.SortFunc(k.runs, func(a, b KeptRun) int {
		return cmp.Or(cmp.Compare(a.StartUnixNS, b.StartUnixNS), cmp.Compare(a.Info.RunID.String(), b.Info.RunID.String()))
	})
	return k, nil
}

func (k *Kept) look(path string, runs map[spanring.RunID]*KeptRun) (err error) {
	f, err := Open(path)
	if err != nil {
		if errors.Is(err, ErrTruncated) || errors.Is(err, os.ErrNotExist) {
			return nil // not yet begun, or removed meanwhile
		}
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for i, ri := range f.Runs() {
		p := keptPart{path, i, ri.StartMonoNS + ri.WallOffsetNS, ri.EndMonoNS + ri.WallOffsetNS}
		r := runs[ri.Info.RunID]
		if r == nil {
			r = &KeptRun{Info: ri.Info, StartUnixNS: p.startUnixNS, EndUnixNS: p.endUnixNS}
			runs[ri.Info.RunID] = r
		}
		if p.endUnixNS >= r.EndUnixNS {
			r.Info, r.EndUnixNS = ri.Info, p.endUnixNS
		}
		r.StartUnixNS = min(r.StartUnixNS, p.startUnixNS)
		r.parts = append(r.parts, p)
	}
	if !f.HasReadings() {
		return nil
	}
	p, err := f.readingsPart()
	if err == nil {
		k.readings = append(k.readings, p)
	}
	return err
}

// Runs are the runs that were under way between two times, in Unix ns, in the
// order in which they began; of their recordings, those that hold the steps of
// that time. 0 is no bound.
func (k *Kept) Runs(sinceUnixNS, untilUnixNS int64) []KeptRun {
	var out []KeptRun
	for _, r := range k.runs {
		var parts []keptPart
		for _, p := range r.parts {
			if sinceUnixNS != 0 && p.endUnixNS < sinceUnixNS-int64(Straddle) || untilUnixNS != 0 && p.startUnixNS > untilUnixNS+int64(Straddle) {
				continue
			}
			parts = append(parts, p)
		}
		if len(parts) > 0 {
			r.parts = parts
			r.StartUnixNS = parts[0].startUnixNS
			out = append(out, r)
		}
	}
	return out
}

// Damage are the recordings of which nothing could be read, or none of the readings of
// devices, each an [Error].
func (k *Kept) Damage() error { return errors.Join(k.damage...) }

// Source begins to read the run from its first entry. The caller closes it.
func (r *KeptRun) Source() (*Series, error) {
	s := &Series{parts: r.parts}
	if err := s.next(); err != nil {
		return nil, err
	}
	return s, nil
}

// readingsPart is when the recording's readings begin and end, as far as its first and
// last block say.
func (f *File) readingsPart() (p keptPart, err error) {
	p.path = f.path
	for i, at := range []int64{f.readings[0], f.readings[len(f.readings)-1]} {
		gs, err := f.readingsIn(at)
		if err != nil && i == 0 {
			return p, err
		}
		for _, g := range gs {
			if p.endUnixNS = g.UnixNS; p.startUnixNS == 0 {
				p.startUnixNS = g.UnixNS
			}
		}
	}
	return p, nil
}

// readingsIn are the readings of one block.
func (f *File) readingsIn(at int64) (gs []Reading, err error) {
	r, err := newReadings(nil, false)
	if err != nil {
		return nil, err
	}
	defer r.p.close()
	if err := r.read(f, at); err != nil {
		return nil, err
	}
	return r.queue, nil
}

// Readings begins to read the readings of devices between two times, in Unix ns, and
// up to [Straddle] around them; 0 is no bound. It is nil where there are none. The
// caller closes it.
func (k *Kept) Readings(sinceUnixNS, untilUnixNS int64) (*Readings, error) {
	var parts []keptPart
	for _, p := range k.readings {
		if (sinceUnixNS == 0 || p.endUnixNS >= sinceUnixNS-int64(Straddle)) && (untilUnixNS == 0 || p.startUnixNS <= untilUnixNS+int64(Straddle)) {
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		return nil, nil
	}
	return newReadings(func() (*File, []int64, bool) {
		for len(parts) > 0 {
			f, err := Open(parts[0].path)
			parts = parts[1:]
			if err == nil {
				return f, f.readings, true
			} // else it was removed meanwhile
		}
		return nil, nil, false
	}, true)
}
