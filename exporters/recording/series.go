package recording

import (
	"errors"
	"math"
	"sync"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// Series plays one run that lies in several recordings as if it lay in one: steps
// that straddle them are whole. An entry that a second recording repeats, because
// a collector began anew on the same ring, is delivered once. It is a
// [collector.Source]; Poll and Close belong to one goroutine, as do NextMonoNS and
// PollUntil, and the other methods may be called at the same time. One recording
// is open at a time.
//
// A recording that just ends, as after a crash or while it is written, is no
// error: the next one goes on.
type Series struct {
	parts []keptPart // those that are still to come
	seen  sequences
	err   error // the first damage; told at the end

	mu  sync.Mutex
	f   *File
	cur *Source
}

// next opens the next recording. One that is gone meanwhile, or cannot be read, is
// passed over; it fails when none is left.
func (s *Series) next() error {
	for len(s.parts) > 0 {
		p := s.parts[0]
		s.parts = s.parts[1:]
		f, err := Open(p.path)
		if err == nil {
			var src *Source
			if src, err = f.Source(p.run); err == nil {
				err = s.change(f, src)
				s.note(err)
				return nil
			}
			err = errors.Join(err, f.Close())
		}
		s.note(err)
	}
	if s.err != nil {
		return s.err
	}
	return errNoMore
}

var errNoMore = errors.New("no recording of the run can be read")

// note keeps the first error that is more than an end that is missing.
func (s *Series) note(err error) {
	if s.err == nil && err != nil && !errors.Is(err, ErrTruncated) {
		s.err = err
	}
}

func (s *Series) change(f *File, src *Source) error {
	s.mu.Lock()
	oldFile, old := s.f, s.cur
	s.f, s.cur = f, src
	s.mu.Unlock()
	if old == nil {
		return nil
	}
	if src != nil {
		// Time does not go back where recordings overlap.
		src.mu.Lock()
		src.nowNS = max(src.nowNS, old.NowMonoNS())
		src.mu.Unlock()
	}
	return errors.Join(old.Close(), oldFile.Close())
}

func (s *Series) source() *Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

// more makes cur the recording that has the next entry, and reports whether there
// is one.
func (s *Series) more() bool {
	for {
		if _, ok := s.cur.NextMonoNS(); ok {
			return true
		}
		s.note(s.cur.err)
		if len(s.parts) == 0 || s.next() != nil {
			return false
		}
	}
}

// NextMonoNS is when the next entry was received, on the run's clock. ok is false
// when Poll will return none.
func (s *Series) NextMonoNS() (ns int64, ok bool) {
	if !s.more() {
		return 0, false
	}
	ns, ok = s.cur.NextMonoNS()
	return max(ns, s.cur.NowMonoNS()), ok
}

// Poll implements [collector.Source].
func (s *Series) Poll(dst []spanring.Entry) (n int, done bool, err error) {
	return s.PollUntil(dst, math.MaxInt64)
}

// PollUntil is Poll of the entries received up to a time of the run, which then is
// the source's time. Damage is returned at the end, after everything that could be
// read.
func (s *Series) PollUntil(dst []spanring.Entry, monoNS int64) (n int, done bool, err error) {
	for {
		if !s.more() {
			// Take in the state at the end.
			_, _, err := s.cur.PollUntil(nil, monoNS)
			s.note(err)
			return 0, true, s.err
		}
		got, _, err := s.cur.PollUntil(dst, monoNS)
		s.note(err)
		for i := range got {
			if s.seen.add(dst[i].Seq) {
				dst[n] = dst[i]
				n++
			}
		}
		// All of it may have been there before.
		if n > 0 || got == 0 {
			return n, false, nil
		}
	}
}

// The rest is the current recording's.

// Info implements [collector.Source].
func (s *Series) Info() (spanring.Info, error) { return s.source().Info() }

// NowMonoNS implements [collector.Source].
func (s *Series) NowMonoNS() int64 { return s.source().NowMonoNS() }

// WallOffsetNS implements [collector.Source].
func (s *Series) WallOffsetNS() int64 { return s.source().WallOffsetNS() }

// Name implements [collector.Source].
func (s *Series) Name(id spanring.NameID) (spanring.Name, bool) { return s.source().Name(id) }

// Counters implements [collector.Source].
func (s *Series) Counters() (spanring.Counters, error) { return s.source().Counters() }

// Contexts implements [collector.Source].
func (s *Series) Contexts() ([]spanring.ContextState, error) { return s.source().Contexts() }

// Account implements [collector.Source].
func (s *Series) Account() spanring.Account { return s.source().Account() }

// Busy implements [collector.Source].
func (s *Series) Busy() ([]spanring.SlotEntry, error) { return s.source().Busy() }

// Alive implements [collector.Source]: a producer that outlived its recordings
// stays alive.
func (s *Series) Alive() (bool, error) { return s.source().Alive() }

// Allocs implements [collector.AllocSource].
func (s *Series) Allocs(dst []spanring.Alloc) ([]spanring.Alloc, spanring.AllocScan, error) {
	return s.source().Allocs(dst)
}

// Close implements [collector.Source].
func (s *Series) Close() error {
	s.parts = nil
	if s.f == nil {
		return nil
	}
	f := s.f
	s.f = nil
	return errors.Join(s.cur.Close(), f.Close())
}

var (
	_ collector.Source      = (*Series)(nil)
	_ collector.AllocSource = (*Series)(nil)
)

// window is how many sequence numbers back a repeated entry is recognised. A ring
// that is read anew holds fewer entries, and a hole that is filled late is nearer.
const window = 1 << 20

// sequences remembers the latest sequence numbers that were delivered.
type sequences struct {
	bits []uint64
	last uint64
}

// add notes a sequence number and reports whether it is new. One that lies further
// back than the window is not.
func (s *sequences) add(n uint64) bool {
	if s.bits == nil {
		s.bits = make([]uint64, window/64)
		s.last = n
	}
	if n > s.last {
		if n-s.last >= window {
			clear(s.bits)
		} else {
			for i := s.last + 1; i < n; i++ {
				s.bits[i%window/64] &^= 1 << (i % 64)
			}
		}
		s.last = n
		s.bits[n%window/64] |= 1 << (n % 64)
		return true
	}
	if s.last-n >= window {
		return false
	}
	w, b := &s.bits[n%window/64], uint64(1)<<(n%64)
	fresh := *w&b == 0
	*w |= b
	return fresh
}
