package top

import (
	"cmp"
	"slices"
	"time"

	"github.com/lanetrace/lanetrace/collector"
)

// Lane is what a lane of steps that are not armed did in some time.
type Lane struct {
	Name         string
	Count        uint64
	SumNS        uint64
	P50NS, P99NS float64 // to 3 %
}

// Kernel is what a kernel of armed steps did in the last half minute to minute.
type Kernel struct {
	Name  string
	Count uint64
	SumNS uint64 // corrected
}

// Tables are the numbers of one engine.
type Tables struct {
	// Steps closed and lanes ended in the last Seconds full seconds, at most a
	// minute. Lanes are in order of their sums, the longest first.
	Seconds int
	Steps   int
	Lanes   []Lane
	Kernels []Kernel // the longest in all first
}

// Second is one full second of one engine.
type Second struct {
	Second int64 // of CLOCK_MONOTONIC
	Steps  int
	Lanes  []Lane // in the order in which they were first seen
}

// Tables are the engine's numbers up to now. It allocates.
func (v *View) Tables(e *collector.Engine) (t Tables) {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := v.engines[e]
	if h == nil {
		return t
	}
	now := e.NowMonoNS() / int64(time.Second)
	from := max(now-window, h.firstSecond())
	if now > from {
		hs, sums, steps, seconds := h.lanesOf(from, now-1)
		t.Seconds, t.Steps = seconds, steps
		for at := range hs {
			t.Lanes = append(t.Lanes, h.row(at, &hs[at], sums[at]))
		}
		slices.SortStableFunc(t.Lanes, func(a, b Lane) int { return cmp.Compare(b.SumNS, a.SumNS) })
	}
	for _, k := range h.topKernels() {
		t.Kernels = append(t.Kernels, Kernel{k.name, k.count, k.ns})
	}
	return t
}

// SecondsAfter are the engine's full seconds after the given one, oldest first,
// those without a step included. It allocates.
func (v *View) SecondsAfter(e *collector.Engine, second int64) (out []Second) {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := v.engines[e]
	if h == nil {
		return nil
	}
	now := e.NowMonoNS() / int64(time.Second)
	for s := max(second+1, now-window+1, h.firstSecond()); s < now; s++ {
		one := Second{Second: s}
		if b := &h.bins[s%window]; b.second == s {
			one.Steps = b.steps
			for at := range b.lanes {
				one.Lanes = append(one.Lanes, h.row(at, &b.lanes[at], b.laneNS[at]))
			}
		}
		out = append(out, one)
	}
	return out
}

func (e *engine) row(at int, h *histogram, sumNS uint64) Lane {
	return Lane{Name: e.names[at], Count: h.count(), SumNS: sumNS, P50NS: h.quantile(0.5), P99NS: h.quantile(0.99)}
}
