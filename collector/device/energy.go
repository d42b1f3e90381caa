package device

import (
	"time"

	"github.com/lanetrace/lanetrace/collector"
)

const (
	// liveReadings is how many readings the live figures are over.
	liveReadings = 10
	// stepWindowNS is the shortest time that energy by step is estimated over.
	stepWindowNS = int64(time.Second)
	// maxMilliwatts is more than any device draws (an H200 700 W, a module of two dies
	// about 1,200 W): a counter that went further than that was no longer the same.
	maxMilliwatts = 5_000_000
)

// counterBits are the widths over which energy counters are known or likely to wrap.
var counterBits = [...]uint{32, 64}

// energy adds up the differences of one device's energy counter, and the work that
// was done meanwhile. Its zero value has read nothing.
type energy struct {
	have     bool
	lastMJ   uint64 // the counter itself
	lastNS   int64
	lastWork collector.Work

	sumMJ   uint64
	sumWork collector.Work
	breaks  [collector.NumEnergyBreaks]uint64
	window  []energyPoint // since the last break, oldest first
}

// energyPoint is where the sums stood at one reading.
type energyPoint struct {
	ns   int64
	mJ   uint64
	work collector.Work
}

// add takes one reading of the counter at ns, on any monotonic clock, and what
// engines have done by then. A reading that failed is left out: the next difference
// spans it.
func (e *energy) add(ns int64, mJ uint64, work collector.Work) {
	if !e.have {
		e.have = true
		e.restart(ns, mJ, work)
		return
	}
	diff, ok := e.difference(ns-e.lastNS, mJ)
	if !ok {
		e.restart(ns, mJ, work)
		return
	}
	e.sumMJ += diff
	e.sumWork.Steps += work.Steps - e.lastWork.Steps
	e.sumWork.DecodeTokens += work.DecodeTokens - e.lastWork.DecodeTokens
	e.sumWork.PrefillTokens += work.PrefillTokens - e.lastWork.PrefillTokens
	e.lastMJ, e.lastNS, e.lastWork = mJ, ns, work
	e.point(ns)
}

// restart begins anew at a counter that has nothing to do with the last one.
func (e *energy) restart(ns int64, mJ uint64, work collector.Work) {
	e.lastMJ, e.lastNS, e.lastWork = mJ, ns, work
	e.window = e.window[:0]
	e.point(ns)
}

func (e *energy) point(ns int64) {
	e.window = append(e.window, energyPoint{ns, e.sumMJ, e.sumWork})
	old := 0
	for len(e.window)-old > liveReadings && ns-e.window[old+1].ns >= stepWindowNS {
		old++
	}
	e.window = append(e.window[:0], e.window[old:]...)
}

// difference is how much was used since the last reading, unless the counter was
// reset, wrapped, or cannot have come so far.
func (e *energy) difference(ns int64, mJ uint64) (uint64, bool) {
	most := uint64(maxMilliwatts) / 1000 * (uint64(max(0, ns))/1e6 + 1000) // a second of slack: counters are updated late
	if mJ >= e.lastMJ {
		if mJ-e.lastMJ <= most {
			return mJ - e.lastMJ, true
		}
		e.breaks[collector.EnergyReset]++
		return 0, false
	}
	for _, bits := range counterBits {
		// Of the modulus less the last reading, also where the modulus is 2^64.
		if left := uint64(1)<<bits - e.lastMJ; (bits == 64 || e.lastMJ>>bits == 0) && left <= most && mJ <= most-left {
			e.breaks[collector.EnergyWrap]++
			return 0, false
		}
	}
	e.breaks[collector.EnergyReset]++
	return 0, false
}

// stats are the figures as of the last reading.
func (e *energy) stats() (s collector.DeviceEnergy) {
	s.Breaks = e.breaks
	if !e.have {
		return s
	}
	s.Joules = collector.Some(float64(e.sumMJ) / 1e3)
	s.PerGenerated = perUnit(e.sumMJ, e.sumWork.DecodeTokens)
	s.PerToken = perUnit(e.sumMJ, e.sumWork.DecodeTokens+e.sumWork.PrefillTokens)
	n := len(e.window)
	last := e.window[n-1]
	if n >= liveReadings {
		first := e.window[n-liveReadings]
		gen := last.work.DecodeTokens - first.work.DecodeTokens
		s.LivePerGenerated = perUnit(last.mJ-first.mJ, gen)
		s.LivePerToken = perUnit(last.mJ-first.mJ, gen+last.work.PrefillTokens-first.work.PrefillTokens)
	}
	for i := n - 2; i >= 0; i-- {
		if first := e.window[i]; last.ns-first.ns >= stepWindowNS {
			s.PerStepEstimate = perUnit(last.mJ-first.mJ, last.work.Steps-first.work.Steps)
			break
		}
	}
	return s
}

// perUnit is in joules, and absent where there is nothing to divide or to divide by.
func perUnit(mJ, n uint64) (o collector.Opt[float64]) {
	if mJ == 0 || n == 0 {
		return o
	}
	return collector.Some(float64(mJ) / 1e3 / float64(n))
}
