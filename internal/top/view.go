package top

import (
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// What is held of each engine.
const (
	// window is the last minute, in seconds; a second's bin is used again after it.
	window = 60
	// nowSeconds is what "now" is: the last full seconds. One alone would jump.
	nowSeconds = 5
	// maxLanes and maxKernels bound the names; what comes after them is "other".
	maxLanes   = 32
	maxKernels = 1024
)

// other is the name of all lanes, or kernels, beyond those that are kept apart.
const other = "other"

// View is an [collector.Observer] of any number of engines. Its methods may be
// called from any goroutine.
type View struct {
	mu      sync.Mutex
	engines map[*collector.Engine]*engine
}

// New returns an empty view.
func New() *View { return &View{engines: make(map[*collector.Engine]*engine)} }

// engine is what is held of one engine.
type engine struct {
	lanes   map[string]int // place in bins' lanes
	names   []string       // of lanes, by place
	bins    [window]bin    // by second modulo their number
	kernels [2]kernels     // of the running half minute and the one before
}

// bin is one second, of which it holds what closed in it.
type bin struct {
	second int64
	steps  int
	lanes  []histogram // by place
	laneNS []uint64    // sums by place
}

// kernels are the times of kernels in half a minute.
type kernels struct {
	half   int64
	byName map[string]kernelTime
}

type kernelTime struct{ ns, count uint64 }

// ObserveStep takes a closed step in. Lanes of armed steps are left out, as they
// are in metrics: our own events between their kernels are in them.
func (v *View) ObserveStep(s *collector.Step) {
	v.mu.Lock()
	defer v.mu.Unlock()
	e := v.engines[s.Engine]
	if e == nil {
		e = &engine{lanes: make(map[string]int)}
		v.engines[s.Engine] = e
	}
	_, endNS := s.Bounds()
	b := e.bin(endNS / int64(time.Second))
	if b == nil {
		return // over a minute old
	}
	b.steps++
	var k *kernels
	for i := range s.Spans {
		sp := &s.Spans[i]
		switch {
		case sp.Kind == spanring.KindLane && !s.Armed:
			at := e.lane(sp.Text.Label)
			for len(b.lanes) <= at {
				b.lanes, b.laneNS = append(b.lanes, histogram{}), append(b.laneNS, 0)
			}
			b.lanes[at][bucket(sp.DurationNS())]++
			b.laneNS[at] += sp.DurationNS()
		case sp.Kind == spanring.KindKernel:
			if k == nil {
				k = e.half(endNS / int64(window/2*time.Second))
			}
			k.add(sp.Text.Label, sp.DurationNS())
		}
	}
}

// Forget lets go of an engine.
func (v *View) Forget(e *collector.Engine) {
	v.mu.Lock()
	delete(v.engines, e)
	v.mu.Unlock()
}

// bin is the bin of a second, emptied if an older one used it; nil when a later
// second has it by now.
func (e *engine) bin(second int64) *bin {
	b := &e.bins[second%window]
	switch {
	case b.second > second:
		return nil
	case b.second < second:
		b.second, b.steps = second, 0
		clear(b.lanes)
		clear(b.laneNS)
	}
	return b
}

func (e *engine) lane(name string) int {
	at, ok := e.lanes[name]
	if !ok {
		if len(e.names) >= maxLanes {
			name = other
			if at, ok = e.lanes[name]; ok {
				return at
			}
		}
		at = len(e.names)
		e.lanes[name] = at
		e.names = append(e.names, name)
	}
	return at
}

// half is the kernels of a half minute: one that is older than both that are held
// counts to the older.
func (e *engine) half(h int64) *kernels {
	now, before := &e.kernels[0], &e.kernels[1]
	switch {
	case now.byName == nil || h > now.half:
		*before = *now
		*now = kernels{half: h, byName: make(map[string]kernelTime)}
		return now
	case h == now.half || before.byName == nil:
		return now
	}
	return before
}

func (k *kernels) add(name string, ns uint64) {
	t, ok := k.byName[name]
	if !ok && len(k.byName) >= maxKernels {
		name = other
		t = k.byName[name]
	}
	t.ns += ns
	t.count++
	k.byName[name] = t
}

// lanesOf are the histograms of the seconds from and up to, both included, and
// their sums, by the lane's place.
func (e *engine) lanesOf(from, to int64) (hs []histogram, sums []uint64, steps, seconds int) {
	hs, sums = make([]histogram, len(e.names)), make([]uint64, len(e.names))
	for i := range e.bins {
		b := &e.bins[i]
		if b.second < from || b.second > to || b.second == 0 {
			continue
		}
		steps += b.steps
		for at := range b.lanes {
			hs[at].merge(&b.lanes[at])
			sums[at] += b.laneNS[at]
		}
	}
	return hs, sums, steps, int(to - from + 1)
}

// firstSecond is the earliest second that is held, 0 for none.
func (e *engine) firstSecond() (first int64) {
	for i := range e.bins {
		if s := e.bins[i].second; s != 0 && (first == 0 || s < first) {
			first = s
		}
	}
	return first
}
