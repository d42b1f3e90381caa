package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/internal/cubench/cupti"
	"github.com/lanetrace/lanetrace/internal/dl"
	"github.com/lanetrace/lanetrace/spanring"
)

// noStep is outside of all telemetry: lanes begun in it do nothing.
var noStep lanetrace.Step

// minRounds is how many rounds a measurement must have: with fewer the interval
// of a difference's median says little.
const minRounds = 25

// abReport is what telemetry costs a step: the same decode step again and again,
// under each condition in turn, in one process.
type abReport struct {
	Backend  string   `json:"backend"`
	GPU      string   `json:"gpu"`
	Model    string   `json:"model"`
	Graph    bool     `json:"graph"`
	Batch    int      `json:"batch"`
	Lanes    int      `json:"lanes_per_step"`
	Launches int      `json:"launches_per_step"`
	Rounds   int      `json:"rounds"`
	Modes    []abMode `json:"modes"`
	// Dropped and Failed are the spans that no level timed though it should have.
	Dropped uint64 `json:"dropped_spans"`
	Failed  uint64 `json:"failed_spans"`
}

// abMode is one mode's figures. All times are nanoseconds a step.
type abMode struct {
	Async bool `json:"async"`
	// Profiled: the conditions are without and with a profiler's activity records,
	// at level off. Kernels is then how many it recorded a profiled step.
	Profiled    bool           `json:"profiled"`
	Kernels     float64        `json:"profiler_kernels_per_step"`
	Steps       int            `json:"steps_per_round_and_level"`
	Stride      uint32         `json:"stride"`      // one step in so many was armed at level kernel
	LaneStride  uint32         `json:"lane_stride"` // lanes of one step in so many were timed at level lane
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

// abDifference is the difference of two conditions, taken within each round.
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

// abCondition is what steps are measured under.
type abCondition struct {
	name  string
	level lanetrace.Level
	armed bool // every step is, not one in so many
	prof  bool // a profiler's activity records are on
}

// abLevels are the levels; off once more, whose difference from off is what the method
// cannot tell from nothing; and level kernel with every step armed: of one armed step in
// so many, a round has none or one, which is no measurement of what it costs.
var abLevels = []abCondition{
	{name: "off", level: lanetrace.LevelOff},
	{name: "off again", level: lanetrace.LevelOff},
	{name: "basic", level: lanetrace.LevelBasic},
	{name: "lane", level: lanetrace.LevelLane},
	{name: "kernel", level: lanetrace.LevelKernel},
	{name: "armed", level: lanetrace.LevelKernel, armed: true},
}

// abProfiled is a profiler beside nothing at all.
var abProfiled = []abCondition{{name: "off", level: lanetrace.LevelOff}, {name: "profiler", level: lanetrace.LevelOff, prof: true}}

// abOptions say how much is measured.
type abOptions struct {
	rounds   int
	steps    int           // of a round, under each condition
	time     time.Duration // or, if it is not 0, as many as take so long at level off
	profiler string        // the library that switches a profiler's records, or ""
	stop     func() bool   // asked between rounds
}

// measure runs the rounds, in synchronous and then in asynchronous mode: the levels
// and, once nothing more is to come without it, the profiler.
func (e *engine) measure(o abOptions) (abReport, error) {
	s := &e.model.shape
	r := abReport{Model: s.name, Graph: e.graphs != nil, Batch: s.slots, Lanes: 1, Rounds: o.rounds}
	wasAsync := e.async
	defer func() { e.async = wasAsync }()
	for _, conditions := range [][]abCondition{abLevels, abProfiled} {
		if conditions[len(conditions)-1].prof && o.profiler == "" {
			continue
		}
		for _, async := range []bool{false, true} {
			e.async = async
			m, err := e.measureMode(conditions, &o)
			if err != nil {
				return r, err
			}
			r.Modes = append(r.Modes, m)
		}
	}
	r.Launches = e.plans[0].launches
	c := e.hub.Ring().Counter
	r.Dropped = c(spanring.CtrDropped)
	for why := spanring.FailNone + 1; int(why) < spanring.NumReasons; why++ {
		r.Failed += c(why.Counter())
	}
	return r, nil
}

func (e *engine) measureMode(conditions []abCondition, o *abOptions) (abMode, error) {
	m := abMode{Async: e.async, Steps: o.steps}
	if o.time > 0 {
		if err := e.hub.SetLevel(lanetrace.LevelOff); err != nil {
			return m, err
		}
		ns, err := e.fixedSteps(calibrationSteps)
		if err != nil {
			return m, err
		}
		m.Steps = int(min(maxRoundSteps, max(minRoundSteps, float64(o.time)/ns)))
	}
	took := make([][]float64, len(conditions))
	armed := make([]uint64, len(conditions))
	kernels := 0
	for round := -1; round < o.rounds; round++ { // the first warms up
		for i := range conditions {
			// Each round begins with another condition, and every other one goes
			// backwards, so that none always follows the same one.
			at := (i + max(0, round)) % len(conditions)
			if round&1 == 1 {
				at = len(conditions) - 1 - at
			}
			if o.stop() {
				return m, fmt.Errorf("interrupted in round %d of %d", round+1, o.rounds)
			}
			c := &conditions[at]
			before := e.hub.Ring().Counter(spanring.CtrStepsArmed)
			ns, recorded, err := e.measureCondition(c, m.Steps, o.profiler)
			if err != nil {
				return m, err
			}
			if round < 0 {
				continue
			}
			took[at] = append(took[at], ns)
			armed[at] += e.hub.Ring().Counter(spanring.CtrStepsArmed) - before
			kernels += recorded
			switch o := e.hub.Overhead(); {
			case c.level == lanetrace.LevelKernel && !c.armed:
				m.Stride = o.KernelStride
			case c.level == lanetrace.LevelLane:
				m.LaneStride = o.LaneStride
			}
		}
	}
	name := func(i int) string { return conditions[i].name }
	for i := range conditions {
		q := sorted(took[i])
		m.Levels = append(m.Levels, abLevel{
			Level: name(i), MedianNS: quantile(q, 0.5), LowerNS: quantile(q, 0.25), UpperNS: quantile(q, 0.75),
			Armed: armed[i], RoundsNS: took[i],
		})
	}
	pairs := [][2]int{{1, 0}, {2, 0}, {3, 2}, {4, 3}, {5, 3}, {3, 0}, {4, 0}}
	if conditions[1].prof {
		m.Profiled, m.Kernels = true, float64(kernels)/float64(o.rounds*(m.Steps+fixedWarm))
		pairs = pairs[:1]
	}
	for _, d := range pairs {
		m.Differences = append(m.Differences, difference(name(d[0]), name(d[1]), took[d[0]], took[d[1]]))
	}
	return m, nil
}

// measureCondition is what steps take under c, in nanoseconds each, and how many
// kernels the profiler recorded meanwhile.
func (e *engine) measureCondition(c *abCondition, steps int, profiler string) (ns float64, recorded int, err error) {
	if err := e.hub.SetLevel(c.level); err != nil {
		return 0, 0, err
	}
	if c.armed {
		e.hub.Arm(uint32(fixedWarm + steps))
	}
	if !c.prof {
		ns, err = e.fixedSteps(steps)
		return ns, 0, err
	}
	before, err := dl.Call(profiler, cupti.Kernels)
	if err != nil {
		return 0, 0, fmt.Errorf("profiler: %w", err)
	}
	if err := callProfiler(profiler, cupti.On); err != nil {
		return 0, 0, err
	}
	ns, err = e.fixedSteps(steps)
	if off := callProfiler(profiler, cupti.Off); err == nil {
		err = off
	}
	after, _ := dl.Call(profiler, cupti.Kernels)
	return ns, after - before, err
}

func callProfiler(library, function string) error {
	r, err := dl.Call(library, function)
	if err == nil && r != 0 {
		err = fmt.Errorf("%s answers %d", function, r)
	}
	if err != nil {
		return fmt.Errorf("profiler: %w", err)
	}
	return nil
}

// How many steps tell how long one takes, and the bounds of what a round of a given
// time has.
const (
	calibrationSteps = 50
	minRoundSteps    = 8
	maxRoundSteps    = 20_000
)

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
	how := "eager"
	if r.Graph {
		how = "a graph"
	}
	fmt.Fprintf(w, "%s (%s), model %s, %s: batch %d, %d launches and %d lane a step; %d rounds\n",
		r.GPU, r.Backend, r.Model, how, r.Batch, r.Launches, r.Lanes, r.Rounds)
	for _, m := range r.Modes {
		name := "synchronous"
		if m.Async {
			name = "asynchronous"
		}
		fmt.Fprintf(w, "\n%s step, µs, %d steps a round: median (quartiles)\n", name, m.Steps)
		for _, l := range m.Levels {
			fmt.Fprintf(w, "  %-14s %10.2f (%.2f to %.2f)", l.Level, l.MedianNS/1e3, l.LowerNS/1e3, l.UpperNS/1e3)
			if l.Armed > 0 {
				fmt.Fprintf(w, ", %d steps armed", l.Armed)
			}
			fmt.Fprintln(w)
		}
		if m.Profiled {
			fmt.Fprintf(w, "kernels recorded a profiled step: %.1f\n", m.Kernels)
		}
		fmt.Fprintln(w, "differences within a round, µs: median [95 % confidence] (quartiles)")
		for _, d := range m.Differences {
			fmt.Fprintf(w, "  %-14s %+10.2f [%+.2f to %+.2f] (%+.2f to %+.2f), %+.3f %%\n", d.Of+" - "+d.Over,
				d.MedianNS/1e3, d.LowNS/1e3, d.HighNS/1e3, d.LowerNS/1e3, d.UpperNS/1e3, 100*d.Share)
		}
	}
	if r.Dropped+r.Failed > 0 {
		fmt.Fprintf(w, "\nspans dropped: %d, failed: %d\n", r.Dropped, r.Failed)
	}
	return w.Flush()
}
