package sim

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// ManualClock is a host clock that stands still until a test moves it. Work on
// GPUs that use it completes as it moves. Blocking calls on such a GPU block until
// some other goroutine has moved it far enough; the driver's Anchor, which on a
// real GPU spins, moves it itself.
type ManualClock struct {
	ns   atomic.Int64
	mu   sync.Mutex
	gpus []*GPU
}

// NewManualClock makes a clock that reads startNS.
func NewManualClock(startNS int64) *ManualClock {
	c := &ManualClock{}
	c.ns.Store(startNS)
	return c
}

// NowNS is what the clock reads, in ns.
func (c *ManualClock) NowNS() int64 { return c.ns.Load() }

// Advance moves the clock by d, which may be 0, and returns when everything that
// is then due is complete, the bodies included. It must not be called from a
// kernel. A stream that is stalled stays so.
func (c *ManualClock) Advance(d time.Duration) {
	c.mu.Lock()
	c.ns.Add(int64(max(0, d)))
	gpus := slices.Clone(c.gpus)
	c.mu.Unlock()
	for _, g := range gpus {
		g.settle()
	}
}

func (c *ManualClock) attach(g *GPU) {
	c.mu.Lock()
	c.gpus = append(c.gpus, g)
	c.mu.Unlock()
}

func (c *ManualClock) detach(g *GPU) {
	c.mu.Lock()
	c.gpus = slices.DeleteFunc(c.gpus, func(o *GPU) bool { return o == g })
	c.mu.Unlock()
}

// now is the host's clock in ns.
func (g *GPU) now() int64 {
	if c := g.cfg.Clock; c != nil {
		return c.NowNS()
	}
	return spanring.MonoNS()
}

// stamp is what the GPU's clock reads at hostNS, in its steps of 32 ns.
func (g *GPU) stamp(hostNS int64) int64 {
	since := hostNS - g.bootNS
	// Whole seconds and the rest apart, so that hours do not overflow.
	drift := since/1e9*g.cfg.ClockDriftPPB + since%1e9*g.cfg.ClockDriftPPB/1e9
	return (hostNS + int64(g.cfg.ClockOffset) + drift) &^ 31
}

// coarseSleep is the longest wait that is slept in one piece. Go's timers are late
// by up to a millisecond on an idle machine, so the last stretch goes to the
// kernel's.
const coarseSleep = 2 * time.Millisecond

// sleep waits with the lock given up until the host's clock reads untilNS, the
// stream is woken, or a little earlier.
func (g *GPU) sleep(s *stream, untilNS int64) {
	if g.cfg.Clock != nil {
		g.changed.Wait()
		return
	}
	g.mu.Unlock()
	defer g.mu.Lock()
	d := time.Duration(untilNS - spanring.MonoNS())
	if d > coarseSleep {
		s.timer.Reset(d - coarseSleep/2)
		select {
		case <-s.timer.C:
		case <-s.wake:
			s.timer.Stop()
		}
		return
	}
	if d > 0 {
		ts := syscall.NsecToTimespec(int64(d))
		// An early return is harmless: the caller looks at the clock again.
		_ = syscall.Nanosleep(&ts, nil)
	}
}

// hostBusy keeps the calling goroutine busy for d, as a driver's call does.
func (g *GPU) hostBusy(d time.Duration) {
	if d <= 0 {
		return
	}
	if c := g.cfg.Clock; c != nil {
		c.ns.Add(int64(d))
		g.mu.Lock()
		g.changed.Broadcast()
		g.mu.Unlock()
		return
	}
	for end := spanring.MonoNS() + int64(d); spanring.MonoNS() < end; {
	}
}
