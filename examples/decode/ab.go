package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/spanring"
)

// noStep is outside of all telemetry: lanes begun in it do nothing.
var noStep lanetrace.Step

// minRounds is how many rounds a measurement must have: with fewer the interval
// of a difference's median says little.
const minRounds = 25

// abReport is what telemetry costs a step: the same decode step again and again,
// at each level in turn, in one process.
type abReport struct {
	Backend  string   `json:"backend"`
	GPU      string   `json:"gpu"`
	Model    string   `json:"model"`
	Batch    int      `json:"batch"`
	Lanes    int      `json:"lanes_per_step"`
	Launches int      `json:"launches_per_step"`
	Rounds   int      `json:"rounds"`
	Steps    int      `json:"steps_per_round_and_level"`
	Modes    []abMode `json:"modes"`
}

// abMode is one mode's figures. All times are nanoseconds a step.
type abMode struct {
	Async       bool           `json:"async"`
	Levels      []abLevel      `json:"levels"`
	Differences []abDifference `json:"differences"`
}

type abLevel struct {
	Level    string    `json:"level"`
	MedianNS float64   `json:"median_ns"`
	LowerNS  float64   `json:"p25_ns"`
	UpperNS  float64   `json:"p75_ns"`
	Armed    uint64    `json:"armed_steps"`
	RoundsNS []float64 `json:"rounds_ns"`
}

// abDifference is the difference of two levels, taken within each round.
type abDifference struct {
	Of       string  `json:"of"`
	Over     string  `json:"over"`
	MedianNS float64 `json:"median_ns"`
	LowerNS  float64 `json:"p25_ns"`
	UpperNS  float64 `json:"p75_ns"`
	// Low and High bound the median with 95 % confidence, by order statistics.
	LowNS  float64 `json:"ci95_low_ns"`
	HighNS float64 `json:"ci95_high_ns"`
	// Share is the median difference's share of Over's median.
	Share float64 `json:"share"`
}

var abLevels = []lanetrace.Level{lanetrace.LevelOff, lanetrace.LevelBasic, lanetrace.LevelLane, lanetrace.LevelKernel}

// measure runs the rounds, in synchronous and then in asynchronous mode. stop is
// asked between rounds.
func (e *engine) measure(rounds, steps int, stop func() bool) (abReport, error) {
	s := &e.model.shape
	r := abReport{Model: s.name, Batch: s.slots, Lanes: 1, Rounds: rounds, Steps: steps}
	wasAsync := e.async
	for _, async := range []bool{false, true} {
		e.async = async
		m, err := e.measureMode(rounds, steps, stop)
		if err != nil {
			return r, err
		}
		r.Modes = append(r.Modes, m)
	}
	r.Launches = e.plans[0].launches
	e.async = wasAsync
	return r, nil
}

func (e *engine) measureMode(rounds, steps int, stop func() bool) (abMode, error) {
	m := abMode{Async: e.async}
	took := make([][]float64, len(abLevels))
	armed := make([]uint64, len(abLevels))
	for round := -1; round < rounds; round++ { // the first warms up
		for i := range abLevels {
			// Each round begins with another level, and every other one goes
			// backwards, so that no level always follows the same one.
			at := (i + max(0, round)) % len(abLevels)
			if round&1 == 1 {
				at = len(abLevels) - 1 - at
			}
			if stop() {
				return m, fmt.Errorf("interrupted in round %d of %d", round+1, rounds)
			}
			if err := e.hub.SetLevel(abLevels[at]); err != nil {
				return m, err
			}
			before := e.hub.Ring().Counter(spanring.CtrStepsArmed)
			ns, err := e.fixedSteps(steps)
			if err != nil {
				return m, err
			}
			if round >= 0 {
				took[at] = append(took[at], ns)
				armed[at] += e.hub.Ring().Counter(spanring.CtrStepsArmed) - before
			}
		}
	}
	for i, l := range abLevels {
		q := sorted(took[i])
		m.Levels = append(m.Levels, abLevel{
			Level: l.String(), MedianNS: quantile(q, 0.5), LowerNS: quantile(q, 0.25), UpperNS: quantile(q, 0.75),
			Armed: armed[i], RoundsNS: took[i],
		})
	}
	for _, d := range [][2]int{{1, 0}, {2, 1}, {3, 2}, {2, 0}, {3, 0}} {
		m.Differences = append(m.Differences, difference(abLevels[d[0]].String(), abLevels[d[1]].String(), took[d[0]], took[d[1]]))
	}
	return m, nil
}

// fixedWarm steps go before each measurement at a level.
const fixedWarm = 8

// fixedSteps runs decode steps of a full batch whose sequences stay where they
// are, half-way through the context, and returns the nanoseconds that each took
// from the first's begin until the GPU was done with the last. It does not
// allocate once it has run.
func (e *engine) fixedSteps(steps int) (float64, error) {
	e.fixedPlans()
	if err := e.fixedRun(fixedWarm); err != nil {
		return 0, err
	}
	begin := time.Now()
	err := e.fixedRun(steps)
	return float64(time.Since(begin)) / float64(steps), err
}

// fixedPlans makes both plans decode a full batch half-way through the context.
func (e *engine) fixedPlans() {
	s := &e.model.shape
	for i := range e.plans {
		p := &e.plans[i]
		p.reset()
		for slot := range s.slots {
			p.decode = append(p.decode, nil)
			p.decSlot = append(p.decSlot, int32(slot))
			p.decPos = append(p.decPos, int32(s.ctx/2))
		}
	}
}

func (e *engine) fixedRun(steps int) error {
	var pending *plan
	for i := range steps {
		p := &e.plans[i&1]
		p.launches = 0
		step := e.hub.StepBegin()
		step.SetAttrs(e.attrs(p))
		err := e.enqueue(step, p)
		if err == nil && !e.async {
			err = e.read(p)
		}
		step.End()
		if err == nil && e.async {
			if pending != nil {
				err = e.read(pending)
			}
			pending = p
		}
		if err != nil {
			return err
		}
	}
	if pending != nil {
		return e.read(pending)
	}
	return nil
}

// difference is of - over, round by round.
func difference(of, over string, a, b []float64) abDifference {
	d := make([]float64, len(a))
	for i := range d {
		d[i] = a[i] - b[i]
	}
	d = sorted(d)
	lo, hi := medianInterval(len(d))
	return abDifference{
		Of: of, Over: over, MedianNS: quantile(d, 0.5), LowerNS: quantile(d, 0.25), UpperNS: quantile(d, 0.75),
		LowNS: d[lo], HighNS: d[hi], Share: quantile(d, 0.5) / quantile(sorted(b), 0.5),
	}
}

func sorted(v []float64) []float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v
}

// quantile interpolates between the sorted values.
func quantile(v []float64, q float64) float64 {
	at := q * float64(len(v)-1)
	i := int(at)
	if i+1 >= len(v) {
		return v[len(v)-1]
	}
	return v[i] + (at-float64(i))*(v[i+1]-v[i])
}

// medianInterval returns which of n sorted values bound the median of what they
// were drawn from with at least 95 % confidence. Each value lies below that median
// with probability one half, whatever the distribution.
func medianInterval(n int) (lo, hi int) {
	p, below := 1.0, 0.0
	for range n {
		p /= 2
	}
	// p is the probability that exactly lo values lie below.
	for lo = 0; lo < n/2; lo++ {
		if below += p; below > 0.025 {
			break
		}
		p = p * float64(n-lo) / float64(lo+1)
	}
	lo = max(0, lo-1)
	return lo, n - 1 - lo
}

func (r *abReport) close(*lanetrace.Hub) {}

func (r *abReport) print(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "%s (%s), model %s: batch %d, %d launches and %d lane a step; %d rounds of %d steps at each level\n",
		r.GPU, r.Backend, r.Model, r.Batch, r.Launches, r.Lanes, r.Rounds, r.Steps)
	for _, m := range r.Modes {
		name := "synchronous"
		if m.Async {
			name = "asynchronous"
		}
		fmt.Fprintf(w, "\n%s step, µs: median (quartiles)\n", name)
		for _, l := range m.Levels {
			fmt.Fprintf(w, "  %-14s %10.2f (%.2f to %.2f)", l.Level, l.MedianNS/1e3, l.LowerNS/1e3, l.UpperNS/1e3)
			if l.Armed > 0 {
				fmt.Fprintf(w, ", %d steps armed", l.Armed)
			}
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, "differences within a round, µs: median [95 % confidence] (quartiles)")
		for _, d := range m.Differences {
			fmt.Fprintf(w, "  %-14s %+10.2f [%+.2f to %+.2f] (%+.2f to %+.2f), %+.3f %%\n", d.Of+" - "+d.Over,
				d.MedianNS/1e3, d.LowNS/1e3, d.HighNS/1e3, d.LowerNS/1e3, d.UpperNS/1e3, 100*d.Share)
		}
	}
	return w.Flush()
}
