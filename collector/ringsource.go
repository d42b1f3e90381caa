package collector

import (
	"sync/atomic"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// aliveEvery is how often a ring's lock is asked for while entries come, and aliveIdle
// while none do: a death is seen well within a second, and asking costs a system call.
const (
	aliveEvery = 250 * time.Millisecond
	aliveIdle  = 50 * time.Millisecond
)

// ringSource is a live ring on this host.
type ringSource struct {
	*spanring.Reader
	nextAliveNS int64
	askedNS     int64 // when the lock was asked for last
	idle        bool  // the last Poll found nothing
	alive       atomic.Bool
	wallNS      atomic.Int64 // the offset that WallOffsetNS told last
	past        bool         // wallNS is that of the ring's making, for good
}

// NewRingSource reads a ring of this host. The source owns r and closes it. A
// producer that has let go of the ring's lock, or closed the ring, is drained to
// its last entry and then done.
func NewRingSource(r *spanring.Reader) Source {
	s := &ringSource{Reader: r}
	s.alive.Store(true)
	// A ring of the past may be of another boot or machine, whose monotonic clock is
	// not this one.
	if alive, err := r.Alive(); err == nil && !alive {
		if i, err := r.Info(); err == nil && i.CreatedUnixNS > 0 {
			s.wallNS.Store(i.CreatedUnixNS - i.CreatedMonoNS)
			s.past = true
		}
	}
	return s
}

// Poll implements Source. The order is: ask whether the producer lives, then
// read, so that what it wrote last is read before it counts as done.
func (s *ringSource) Poll(dst []spanring.Entry) (n int, done bool, err error) {
	now := spanring.MonoNS()
	if s.idle {
		s.nextAliveNS = min(s.nextAliveNS, s.askedNS+int64(aliveIdle))
	}
	if s.alive.Load() && now >= s.nextAliveNS {
		s.askedNS = now
		s.nextAliveNS = now + int64(aliveEvery)
		alive, err := s.stillAlive()
		if err != nil {
			return 0, true, err
		}
		if !alive {
			s.MarkDead()
			s.alive.Store(false)
		}
	}
	dead := !s.alive.Load()
	n, err = s.Reader.Poll(dst, now)
	s.idle = n == 0
	if err != nil {
		return n, true, err
	}
	return n, dead && n == 0, nil
}

// stillAlive asks for the lock and for the mark of a clean end, which comes
// before the lock falls and is all that a ring without a file has.
func (s *ringSource) stillAlive() (bool, error) {
	alive, err := s.Reader.Alive()
	if err != nil || !alive {
		return false, err
	}
	i, err := s.Reader.Info()
	if err != nil {
		return false, err
	}
	return !i.Clean, nil
}

// Alive reports whether the producer still holds the ring.
func (s *ringSource) Alive() (bool, error) {
	if !s.alive.Load() {
		return false, nil
	}
	return s.stillAlive()
}

// NowMonoNS is CLOCK_MONOTONIC now.
func (s *ringSource) NowMonoNS() int64 { return spanring.MonoNS() }

const (
	// narrowNS bounds the time between the two readings of one clock that enclose
	// that of the other: a thread that lost its core in between says nothing.
	narrowNS   = 20_000
	narrowTrys = 8
	// sameOffsetNS is how far apart two narrow readings of the same offset may lie.
	sameOffsetNS = 100_000
)

// WallOffsetNS is the offset now: the wall clock may have been set since the ring
// was made. As long as it was not, it is one and the same, so that a step comes to
// the same times whoever places it: a span that is sent twice is one. Of a ring
// whose engine was gone when it was opened it is the offset when it was made.
func (s *ringSource) WallOffsetNS() int64 {
	last := s.wallNS.Load()
	if s.past {
		return last
	}
	var now int64
	for range narrowTrys {
		before := spanring.MonoNS()
		wall := time.Now().UnixNano()
		width := spanring.MonoNS() - before
		now = wall - before - width/2
		if last != 0 && max(now-last, last-now) <= sameOffsetNS {
			return last
		}
		if width > narrowNS {
			continue
		}
		if s.wallNS.CompareAndSwap(last, now) {
			return now
		}
		last = s.wallNS.Load()
	}
	if last != 0 {
		return last // the next call may be luckier
	}
	return now
}
