package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// Options say what a report shows.
type Options struct {
	// Top is how many kernels are listed; the rest is one line. Default 10.
	Top int
	// Step is the number of the step to draw. Default 0: one of typical length,
	// with kernels if any has them.
	Step uint64
	// Lane draws, where Step is 0, a step that has a lane of that name. Default "":
	// any.
	Lane string
	// Recorded: the run comes from a recording, whose end need not be its own.
	Recorded bool
	// Width is how wide the report is, from 60. Default 80.
	Width int
}

func (o Options) withDefaults() Options {
	if o.Top == 0 {
		o.Top = 10
	}
	if o.Width == 0 {
		o.Width = 80
	}
	o.Width = max(60, o.Width)
	return o
}

// maxNames bounds the lanes, and the kernels, that are told apart.
const maxNames = 4096

// Run collects what a report of one run says. It is a [collector.Observer] and
// [collector.RequestObserver] of that run's steps and requests, and a
// [collector.Tap] of its entries.
type Run struct {
	o Options

	steps      [2]sketch // unarmed and armed, the whole step
	host       sketch    // unarmed
	incomplete [16]uint64
	standIns   map[string]uint64 // steps that no mark began, by what stood in
	bare       uint64            // complete steps of which nothing but failures is known
	untimed    uint64            // complete steps whose lanes were left out
	firstNS    int64
	lastNS     int64
	wallNS     int64 // offset of the last step
	seen       bool

	requests requestStat

	lanes   map[string]*laneStat
	kernels map[string]*kernelStat
	picks   [2]picker // unarmed and armed, of those that may be drawn
	length  [2]sketch // how long those are
	asked   *collector.Step

	memoryNS  int64                     // of the last entry about memory, or the newest allocation
	oldestNS  int64                     // of the oldest allocation
	fell      map[spanring.NameID]int64 // when a call site last freed something
	fellAt    map[string]int64          // the same by text
	survivors map[string][]survivor     // by call site

	swept      map[string][]survivor // by call site: what the engine's end swept
	sweptCount int
}

type laneStat struct {
	d [2]sketch // unarmed and armed
}

type kernelStat struct {
	d               sketch
	queued, starved uint64
}

// New makes the report of a run of which nothing has been seen.
func New(o Options) *Run {
	return &Run{o: o.withDefaults(), lanes: make(map[string]*laneStat), kernels: make(map[string]*kernelStat), standIns: make(map[string]uint64)}
}

// ObserveStep takes a closed step in.
func (r *Run) ObserveStep(s *collector.Step) {
	start, end := s.Bounds()
	if !r.seen || start < r.firstNS {
		r.firstNS = start
	}
	if !r.seen || end > r.lastNS {
		r.lastNS = end
	}
	r.seen, r.wallNS = true, s.WallOffsetNS
	if r.o.Step != 0 && s.Number == r.o.Step {
		r.asked = s.Clone()
	}
	if s.StandIn != "" {
		r.standIns[s.StandIn]++
	}
	armed := 0
	if s.Armed {
		armed = 1
	}
	for i := range s.Spans {
		r.span(&s.Spans[i], armed)
	}
	if s.Incomplete != collector.Complete {
		r.incomplete[min(int(s.Incomplete), len(r.incomplete)-1)]++
		return
	}
	if !s.HasEnd {
		r.bare++
		return
	}
	if s.Untimed { // how long it took on the GPU is not known
		r.untimed++
	} else {
		r.steps[armed].add(uint64(max(0, end-start)))
	}
	if armed == 0 {
		r.host.add(uint64(max(0, s.HostNS())))
	}
	if !s.Faulty() && len(s.Spans) > 0 && r.o.mayDraw(s) {
		r.length[armed].add(uint64(max(0, end-start)))
		r.picks[armed].offer(s)
	}
}

// mayDraw reports whether s has the lane that the drawn step is to have.
func (o *Options) mayDraw(s *collector.Step) bool {
	return o.Lane == "" || slices.ContainsFunc(s.Spans, func(sp collector.Span) bool {
		return sp.Kind == spanring.KindLane && sp.Text.String() == o.Lane
	})
}

func (r *Run) span(sp *collector.Span, armed int) {
	name := sp.Text.Title()
	if sp.Kind == spanring.KindLane {
		l, ok := r.lanes[name]
		if !ok {
			if len(r.lanes) >= maxNames {
				name = other
			}
			if l = r.lanes[name]; l == nil {
				l = new(laneStat)
				r.lanes[name] = l
			}
		}
		l.d[armed].add(sp.DurationNS())
		return
	}
	if sp.Kind == spanring.KindGraph {
		name = "graph " + name
	}
	k, ok := r.kernels[name]
	if !ok {
		if len(r.kernels) >= maxNames {
			name = other
		}
		if k = r.kernels[name]; k == nil {
			k = new(kernelStat)
			r.kernels[name] = k
		}
	}
	k.d.add(sp.DurationNS())
	switch sp.Gap {
	case spanring.GapQueued:
		k.queued++
	case spanring.GapStarved:
		k.starved++
	}
}

const other = "other"

// picker keeps some steps, spread evenly over all that were offered.
type picker struct {
	kept    []*collector.Step
	spans   int
	stride  uint64
	offered uint64
}

const (
	pickSteps = 16
	pickSpans = 64 << 10 // of all kept steps together
)

func (p *picker) offer(s *collector.Step) {
	p.stride = max(1, p.stride)
	p.offered++
	if (p.offered-1)%p.stride != 0 {
		return
	}
	for len(p.kept) > 0 && (len(p.kept) >= pickSteps || p.spans+len(s.Spans) > pickSpans) {
		// Every other one goes, and from now on half as many are looked at.
		half := p.kept[:0]
		p.spans = 0
		for i, k := range p.kept {
			if i%2 == 0 && (i > 0 || len(p.kept) > 1) {
				half = append(half, k)
				p.spans += len(k.Spans)
			}
		}
		clear(p.kept[len(half):])
		p.kept = half
		p.stride *= 2
		if (p.offered-1)%p.stride != 0 {
			return
		}
	}
	p.kept = append(p.kept, s.Clone())
	p.spans += len(s.Spans)
}

// typical is the kept step whose length is closest to the median.
func (p *picker) typical(d *sketch) *collector.Step {
	median := d.quantile(0.5)
	var best *collector.Step
	var off float64
	for _, s := range p.kept {
		a, b := s.Bounds()
		if o := math.Abs(float64(b-a) - median); best == nil || o < off {
			best, off = s, o
		}
	}
	return best
}

// Exemplary is the step that is drawn: the one asked for, else one of typical
// length, armed if there is one. It is nil when there is none.
func (r *Run) Exemplary() *collector.Step {
	if r.o.Step != 0 {
		return r.asked
	}
	for _, armed := range [...]int{1, 0} {
		if s := r.picks[armed].typical(&r.length[armed]); s != nil {
			return s
		}
	}
	return nil
}

// Text is the report. What is not in the steps, e says.
func (r *Run) Text(e *collector.Engine) string {
	var b strings.Builder
	r.header(&b, e)
	r.stepTable(&b)
	r.requestTable(&b)
	r.laneTable(&b)
	gpuTable(&b, e.GPUTime(), r.o.Width)
	r.kernelTable(&b, e)
	launchTable(&b, e, r.o.Width)
	r.memoryTable(&b, e)
	overheadText(&b, e.Overhead(), r.o.Width)
	accountText(&b, e.Account(), r.o.Width)
	clockText(&b, e)
	b.WriteByte('\n')
	switch s := r.Exemplary(); {
	case s != nil:
		b.WriteString(Timeline(s, TimelineOptions{Width: r.o.Width}))
	case r.o.Step != 0:
		b.WriteString("step " + strconv.FormatUint(r.o.Step, 10) + " is not among those that were read\n")
	case r.o.Lane != "":
		b.WriteString("no complete step with a lane " + r.o.Lane + " was read\n")
	default:
		b.WriteString("no complete step with spans to draw\n")
	}
	return b.String()
}

func (r *Run) header(b *strings.Builder, e *collector.Engine) {
	i := e.Info()
	line := func(k, v string) { fmt.Fprintf(b, "  %-8s%s\n", k, clip(v, r.o.Width-10)) }
	b.WriteString(clip(e.Label(), r.o.Width) + "\n")
	run := i.RunID.String()
	who := []string{}
	if x := collector.CleanText(i.Executable); x != "" {
		who = append(who, x)
	}
	state := e.State().String()
	if r.o.Recorded && e.State() == collector.EngineLive {
		state = "ran on"
	}
	who = append(who, fmt.Sprintf("pid %d", i.PID), state)
	line("run", run+"  "+strings.Join(who, ", "))
	if i.GPUName != "" || i.GPUUUID != "" {
		line("gpu", strings.TrimSpace(collector.CleanText(i.GPUName)+"  "+collector.CleanText(i.GPUUUID)))
	}
	if m := collector.CleanText(i.Model); m != "" {
		line("model", m)
	}
	level := collector.LevelText(i.Level)
	if i.KernelEvery > 0 {
		level += fmt.Sprintf(", 1 step in %s armed", Count(uint64(i.KernelEvery)))
	}
	if i.LaneEvery > 1 {
		level += fmt.Sprintf(", lanes of 1 in %s timed", Count(uint64(i.LaneEvery)))
	}
	if i.Producer != "" {
		level += ", by " + collector.CleanText(i.Producer)
	}
	line("level", level)
	if r.seen {
		from, to := time.Unix(0, r.firstNS+r.wallNS).UTC(), time.Unix(0, r.lastNS+r.wallNS).UTC()
		line("time", fmt.Sprintf("%s to %s UTC, %s", from.Format("2006-01-02 15:04:05.000"), to.Format("15:04:05.000"), Duration(float64(r.lastNS-r.firstNS))))
	}
}

// stats are the cells that every distribution has.
func stats(s *sketch) []string {
	if s.n == 0 {
		return []string{"-", "-", "-"}
	}
	return []string{Duration(s.quantile(0.5)), Duration(s.quantile(0.99)), Duration(float64(s.most))}
}

func (r *Run) stepTable(b *strings.Builder) {
	b.WriteByte('\n')
	seconds := float64(r.lastNS-r.firstNS) / 1e9
	perSecond := func(n uint64) string {
		if seconds <= 0 {
			return "-"
		}
		return rate(finite(float64(n) / seconds))
	}
	var rows [][]string
	add := func(name string, s *sketch) {
		rows = append(rows, append([]string{name, Count(s.n), perSecond(s.n)}, stats(s)...))
	}
	add("whole step", &r.steps[0])
	add("its part on the host", &r.host)
	if r.steps[1].n > 0 {
		add("whole step, armed", &r.steps[1])
	}
	table(b, "  ", r.o.Width, []string{"STEPS", "count", "per s", "p50", "p99", "max"}, rows)
	for i, n := range r.incomplete {
		if n > 0 {
			fmt.Fprintf(b, "  incomplete (%s): %s, in no figure above\n", collector.IncompleteReason(i), Count(n))
		}
	}
	for _, by := range slices.Sorted(maps.Keys(r.standIns)) {
		b.WriteString("  " + clip(standInText(by, r.standIns[by]), r.o.Width-2) + "\n")
	}
	if r.untimed > 0 {
		fmt.Fprintf(b, "  lanes left out to stay within their budget: %s, in their part on the host alone\n", Count(r.untimed))
	}
	if r.bare > 0 {
		fmt.Fprintf(b, "  without an end: %s, in no figure above\n", Count(r.bare))
	}
}

// standInText says that steps are none of the engine's.
func standInText(by string, n uint64) string {
	what := by
	switch by {
	case spanring.StepGraph.String():
		what = "each graph launch"
	case spanring.StepWindow.String():
		what = "windows of time"
	}
	return fmt.Sprintf("not marked by the engine, %s stood in: %s (docs/attach.md)", what, Count(n))
}

func (r *Run) laneTable(b *strings.Builder) {
	b.WriteByte('\n')
	set, title := 0, "LANES"
	if r.steps[0].n == 0 && r.steps[1].n > 0 {
		set, title = 1, "LANES (armed steps)"
	}
	whole := float64(r.steps[set].sum)
	names := sortedBy(r.lanes, func(l *laneStat) uint64 { return l.d[set].sum })
	var rows [][]string
	for _, n := range names {
		d := &r.lanes[n].d[set]
		if d.n == 0 {
			continue
		}
		rows = append(rows, append(append([]string{n, Count(d.n)}, stats(d)...), percent(float64(d.sum), whole)))
	}
	if len(rows) == 0 {
		b.WriteString(title + "\n  none\n")
		return
	}
	table(b, "  ", r.o.Width, []string{title, "count", "p50", "p99", "max", "of step"}, rows)
}

func (r *Run) kernelTable(b *strings.Builder, e *collector.Engine) {
	b.WriteByte('\n')
	if len(r.kernels) == 0 {
		b.WriteString("KERNELS\n  none: kernels are timed on armed steps, at level kernel\n")
		return
	}
	names := sortedBy(r.kernels, func(k *kernelStat) uint64 { return k.d.sum })
	var all, n, queued, starved uint64
	for _, k := range r.kernels {
		all += k.d.sum
		n += k.d.n
		queued += k.queued
		starved += k.starved
	}
	var rows [][]string
	var rest kernelStat
	top := r.o.Top
	if len(names) == top+1 {
		top++ // one left over takes a line in any case
	}
	for i, name := range names {
		k := r.kernels[name]
		if i >= top {
			rest.d.n += k.d.n
			rest.d.sum += k.d.sum
			rest.starved += k.starved
			continue
		}
		rows = append(rows, []string{
			name, Count(k.d.n), Duration(float64(k.d.sum)), Duration(k.d.quantile(0.5)), Duration(k.d.quantile(0.99)),
			percent(float64(k.d.sum), float64(all)), Count(k.starved),
		})
	}
	if more := len(names) - top; more > 0 {
		rows = append(rows, []string{
			fmt.Sprintf("%s others", Count(uint64(more))), Count(rest.d.n), Duration(float64(rest.d.sum)), "", "",
			percent(float64(rest.d.sum), float64(all)), Count(rest.starved),
		})
	}
	table(b, "  ", r.o.Width, []string{"KERNELS (armed steps)", "count", "total", "p50", "p99", "share", "starved"}, rows)
	fmt.Fprintf(b, "  %s timed: %s queued, %s starved (launch latency is inside)\n", Count(n), Count(queued), Count(starved))
	if cs := e.Contexts(); len(cs) > 0 && cs[0].Calibration == spanring.CalibrationNone {
		b.WriteString("  not calibrated: times are those of the event pairs\n")
	}
}

// launchTable is what the launch trace found, nothing where none was made.
func launchTable(b *strings.Builder, e *collector.Engine, w int) {
	regions := e.LaunchRegions()
	if len(regions) == 0 {
		return
	}
	b.WriteByte('\n')
	var rows [][]string
	for _, r := range regions {
		last := "-"
		if r.Last.Step != 0 {
			last = strconv.FormatUint(r.Last.Step, 10)
		}
		rows = append(rows, []string{r.Region, Count(r.Executions), Count(r.Differing), Count(r.DifferingOps), last})
	}
	table(b, "  ", w, []string{"LAUNCH TRACE", "executions", "differing", "operations", "last in step"}, rows)
	for _, r := range regions {
		if r.Differing > 0 {
			b.WriteString(clip("  "+r.Region+", last: "+diffText(&r.Last), w) + "\n")
		}
	}
}

// sortedBy are the keys of m, largest size first.
func sortedBy[T any](m map[string]*T, size func(*T) uint64) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(size(m[b]), size(m[a])), strings.Compare(a, b))
	})
	return names
}

// term is one number of an equation.
type term struct {
	sign string // what stands before it
	name string
	n    string
}

// accountText writes the loss account as the three equations, with what is behind
// their sums, and whether they balance.
func accountText(b *strings.Builder, a collector.Account, w int) {
	b.WriteByte('\n')
	bad := a.Unbalanced()
	verdict := "it balances"
	if len(bad) > 0 {
		verdict = "DOES NOT BALANCE: " + strings.Join(bad, ", ")
	}
	b.WriteString("LOSS ACCOUNT  " + verdict + " (engine and sidecar count spans, reader ring entries)\n")
	p, r, s := &a.Producer, &a.Reader, &a.Sidecar
	equation(b, w, "engine", []term{
		{"", "begun", Count(p.Begun)}, {"=", "landed", Count(p.Landed)}, {"+", "failed", Count(sum(p.Failed))},
		{"+", "dropped", Count(p.Dropped)}, {"+", "in flight", signed(p.InFlight)},
	})
	reasons(b, w, "failed", p.Failed)
	equation(b, w, "reader", []term{
		{"", "published", Count(r.Published)}, {"=", "received", Count(r.Received)}, {"+", "lost", Count(r.Lost)},
		{"+", "missed before attach", Count(r.MissedBeforeAttach)}, {"+", "pending", Count(r.Pending)},
	})
	reasons(b, w, "lost", r.LostBy)
	equation(b, w, "sidecar", []term{
		{"", "received", Count(s.Received)}, {"=", "exported", Count(s.Exported)}, {"+", "not selected", Count(sum(s.NotSelected))},
		{"+", "rejected", Count(s.Rejected)}, {"+", "dropped", Count(sum(s.Dropped))}, {"+", "pending", Count(s.Pending)},
	})
	reasons(b, w, "not selected", s.NotSelected)
	reasons(b, w, "dropped", s.Dropped)
}

func signed(n int64) string {
	if n < 0 {
		return "-" + Count(uint64(-n))
	}
	return Count(uint64(n))
}

func sum(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

const accountIndent = 11

// equation writes the names of the terms above their numbers.
func equation(b *strings.Builder, w int, label string, terms []term) {
	head, line := left("  "+label, accountIndent), spaces(accountIndent)
	for _, t := range terms {
		n := max(width(t.name), width(t.n))
		sign := t.sign
		if sign != "" {
			sign = " " + sign + " "
		}
		head += spaces(width(sign)) + right(t.name, n)
		line += sign + right(t.n, n)
	}
	b.WriteString(clip(strings.TrimRight(head, " "), max(w, width(head))) + "\n" + line + "\n")
}

// reasons writes the parts of a sum that are not 0.
func reasons(b *strings.Builder, w int, label string, m map[string]uint64) {
	var parts []string
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if m[k] > 0 {
			parts = append(parts, k+" "+Count(m[k]))
		}
	}
	if len(parts) > 0 {
		b.WriteString(clip(spaces(accountIndent)+label+": "+strings.Join(parts, ", "), w) + "\n")
	}
}

// clockText writes what is known of each context's clock and constant.
func clockText(b *strings.Builder, e *collector.Engine) {
	b.WriteString("\nCLOCK\n")
	cs := e.Contexts()
	if len(cs) == 0 {
		b.WriteString("  no GPU context\n")
		return
	}
	for i := range cs {
		c := &cs[i]
		line := fmt.Sprintf("  context %d", c.Index)
		switch c.Calibration {
		case spanring.CalibrationNone:
			line += "  constant none"
		case spanring.CalibrationMeasured:
			line += fmt.Sprintf("  constant %s measured (spread %s)", Duration(float64(c.ConstantNS)), Duration(float64(c.SpreadNS)))
		default:
			line += fmt.Sprintf("  constant %s assumed", Duration(float64(c.ConstantNS)))
		}
		if c.UpdatedMonoNS != 0 {
			line += fmt.Sprintf("  rate %+.2f ppm  ±%s", float64(c.RatePPB)/1e3, Duration(float64(c.UncertaintyNS)))
		} else {
			line += "  no anchor yet"
		}
		b.WriteString(line + "\n")
	}
	ctr := e.Counters()
	fmt.Fprintf(b, "  anchors %s taken, %s given up; %s harvests, %s, %s driver calls in them\n",
		Count(ctr[spanring.CtrAnchors]), Count(ctr[spanring.CtrAnchorsGivenUp]), Count(ctr[spanring.CtrHarvests]),
		Duration(float64(ctr[spanring.CtrHarvestNS])), Count(ctr[spanring.CtrHarvestCalls]))
}

var _ collector.Observer = (*Run)(nil)
