package player

import "github.com/lanetrace/lanetrace/spanring"

// counters carries the recorded producer's counters into the ring, less what they
// were when the recording began.
//
// The counters of the loss account follow the entries as they are written, so
// that the account balances at every moment and agrees with what a reader
// receives; the states of the recording add what is in flight, and the last one
// what no entry showed. All other counters come from the states.
type counters struct {
	started bool
	base    spanring.Counters // when the recording began
	have    spanring.Counters // in the ring
	// credit is how many spans were counted begun because they were in flight: the
	// next so many that land or fail are not counted begun again.
	credit uint64
}

// ofAccount reports whether a counter follows the entries.
func ofAccount(c spanring.Counter) bool {
	switch c {
	case spanring.CtrBegun, spanring.CtrLanded, spanring.CtrDropped, spanring.CtrStepsBegun, spanring.CtrStepsEnded,
		spanring.CtrStepsArmed, spanring.CtrRequests, spanring.CtrQueued, spanring.CtrStarved:
		return true
	}
	return c >= spanring.FailRecord.Counter() && c < spanring.FailRecord.Counter()+spanring.Counter(spanring.NumReasons)-1
}

func (c *counters) add(ring *spanring.Writer, k spanring.Counter, n uint64) {
	ring.Add(k, n)
	c.have[k] += n
}

// begun counts a span that lands or fails now as begun, unless it was before.
func (c *counters) begun(ring *spanring.Writer) {
	if c.credit > 0 {
		c.credit--
		return
	}
	c.add(ring, spanring.CtrBegun, 1)
}

// entry counts one entry.
func (c *counters) entry(ring *spanring.Writer, w *spanring.Words) {
	switch k := w.Kind(); {
	case k == spanring.KindStepBegin:
		c.add(ring, spanring.CtrBegun, 1)
		c.add(ring, spanring.CtrStepsBegun, 1)
		if s, err := w.StepBegin(); err == nil && s.Armed {
			c.add(ring, spanring.CtrStepsArmed, 1)
		}
	case k == spanring.KindStepEnd:
		if s, err := w.StepEnd(); err == nil && s.Dropped > 0 {
			c.add(ring, spanring.CtrBegun, uint64(s.Dropped))
			c.add(ring, spanring.CtrDropped, uint64(s.Dropped))
		}
		// Its begin was counted: here, or as in flight when the recording began.
		c.add(ring, spanring.CtrLanded, 1)
		c.add(ring, spanring.CtrStepsEnded, 1)
	case k == spanring.KindRequestEnd:
		c.add(ring, spanring.CtrBegun, 1)
		c.add(ring, spanring.CtrLanded, 1)
		c.add(ring, spanring.CtrRequests, 1)
	case k.IsSpan():
		c.begun(ring)
		c.add(ring, spanring.CtrLanded, 1)
		if k == spanring.KindLane {
			return
		}
		switch s, _ := w.Span(); s.Gap {
		case spanring.GapQueued:
			c.add(ring, spanring.CtrQueued, 1)
		case spanring.GapStarved:
			c.add(ring, spanring.CtrStarved, 1)
		}
	case k == spanring.KindSpanFailed:
		if f, err := w.SpanFailed(); err == nil {
			c.begun(ring)
			c.add(ring, f.Reason.Counter(), 1)
		}
	}
}

// state takes the recorded counters of one moment in.
func (c *counters) state(ring *spanring.Writer, s *spanring.Counters, end bool) {
	if !c.started {
		c.started = true
		c.base = *s
		// Nothing but what is in flight is taken over from before.
		open := min(s[spanring.CtrStepsBegun]-min(s[spanring.CtrStepsEnded], s[spanring.CtrStepsBegun]), inFlight(s))
		c.base[spanring.CtrBegun] -= min(inFlight(s), c.base[spanring.CtrBegun])
		c.base[spanring.CtrStepsBegun] -= min(open, c.base[spanring.CtrStepsBegun])
		c.add(ring, spanring.CtrBegun, inFlight(s))
		c.add(ring, spanring.CtrStepsBegun, open)
		c.credit = inFlight(s) - open
		return
	}
	if !end {
		if now, then := inFlight(&c.have), inFlight(s); then > now {
			c.add(ring, spanring.CtrBegun, then-now)
			c.credit += then - now
		}
	}
	for k := range spanring.NumCounters {
		// Those of memory come with the table of allocations.
		if !k.IsMemory() && (end || !ofAccount(k)) && s[k] > c.base[k] {
			if v := s[k] - c.base[k]; v > c.have[k] {
				c.add(ring, k, v-c.have[k])
			}
		}
	}
}

func inFlight(c *spanring.Counters) uint64 { return uint64(max(0, c.InFlight())) }
