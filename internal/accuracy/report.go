package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/lanetrace/lanetrace/spanring"
)

const (
	// aimNS is how near a queued kernel's corrected time is to be to CUPTI's, from
	// shortestNS up.
	aimNS      = 200
	shortestNS = 1_000
	// gapNS is how much too long a span must be to say that a gap of the host's was
	// inside after all. What arrives on a stream while a pair runs makes it up to
	// 0.7 µs longer or shorter than it is taken for.
	gapNS = 1_200
)

// report gathers what the engines left.
type report struct {
	results []*result
	rows    map[row]*group
	order   []row
	placed  []placing
	wrong   []string // what makes the program fail
	spans   int      // checked for structure
	inside  int
	found   []violation
	more    int
}

// group are the samples of one row.
type group struct {
	samples []sample
	control []sample // without CUPTI
}

func (r *report) group(k row) *group {
	if r.rows == nil {
		r.rows = make(map[row]*group)
	}
	g := r.rows[k]
	if g == nil {
		g = new(group)
		r.rows[k] = g
		r.order = append(r.order, k)
	}
	return g
}

// add takes in what one engine left.
func (r *report) add(res *result) {
	r.results = append(r.results, res)
	samples, err := join(res)
	if err != nil {
		r.wrong = append(r.wrong, err.Error())
	}
	for i := range samples {
		s := &samples[i]
		g := r.group(s.row)
		if s.witness {
			g.samples = append(g.samples, *s)
		} else {
			g.control = append(g.control, *s)
		}
	}
	r.placed = append(r.placed, placings(res.plan, res.spans)...)
	r.spans += res.structure.spans
	r.inside += res.structure.children
	r.found = append(r.found, res.structure.found...)
	r.more += res.structure.more
	r.wrong = append(r.wrong, res.wrong...)
}

func (s *sample) raw() int64   { return s.rawNS }
func (s *sample) cupti() int64 { return s.cuptiNS }

func pick(samples []sample, f func(*sample) int64) []int64 {
	out := make([]int64, len(samples))
	for i := range samples {
		out[i] = f(&samples[i])
	}
	return out
}

func filter(samples []sample, f func(*sample) bool) []sample {
	var out []sample
	for i := range samples {
		if f(&samples[i]) {
			out = append(out, samples[i])
		}
	}
	return out
}

func share(samples []sample, f func(*sample) bool) float64 {
	if len(samples) == 0 {
		return 0
	}
	return float64(len(filter(samples, f))) / float64(len(samples))
}

// withoutLast leaves out the last dozen pairs of each queue, behind which nothing
// more came, unless there are no others.
func withoutLast(samples []sample) []sample {
	if in := filter(samples, func(s *sample) bool { return s.fromEnd >= 12 }); len(in) > 0 {
		return in
	}
	return samples
}

func queued(s *sample) bool { return s.gap == spanring.GapQueued }
func (s *sample) inUncertainty() bool {
	e := s.errNS()
	return max(e, -e) <= s.uncNS
}

// of are the rows of a part, in the order in which they were measured.
func (r *report) of(part string) []row {
	var out []row
	for _, k := range r.order {
		if k.Part == part {
			out = append(out, k)
		}
	}
	return out
}

// witnessed are those rows of parts that CUPTI has seen.
func (r *report) witnessed(parts ...string) []row {
	var out []row
	for _, p := range parts {
		for _, k := range r.of(p) {
			if len(r.rows[k].samples) > 0 {
				out = append(out, k)
			}
		}
	}
	return out
}

// all are the samples of a part.
func (r *report) all(parts ...string) []sample {
	var out []sample
	for _, k := range r.order {
		if slices.Contains(parts, k.Part) {
			out = append(out, r.rows[k].samples...)
		}
	}
	return out
}

// print writes the tables.
func (r *report) print(w io.Writer) {
	r.printProcesses(w)
	r.printKernels(w)
	r.printAlone(w)
	r.printTaken(w)
	r.printLines(w)
	r.printAims(w)
	r.printFollow(w)
	r.printRaw(w)
	for _, bad := range printPlacing(w, r.placed) {
		r.wrong = append(r.wrong, "placement, "+bad)
	}
	r.printStructure(w)
	if len(r.wrong) > 0 {
		fmt.Fprintf(w, "\n## Wrong\n\n")
		for _, s := range r.wrong[:min(len(r.wrong), 50)] {
			fmt.Fprintln(w, "- "+s)
		}
		if n := len(r.wrong); n > 50 {
			fmt.Fprintf(w, "- and %d more\n", n-50)
		}
	}
}

// printProcesses shows each process's constant beside what CUPTI says it was.
func (r *report) printProcesses(w io.Writer) {
	fmt.Fprint(w, "\n## Processes\n\nThe constant that each process measured for itself, and its queued pairs of 5 µs kernels on three streams, without the last dozen of each queue: medians in µs. The fixed part is where CUPTI's times of the calibration's own kernels meet zero cycles.\n\n",
		"| process | CUPTI | calibration | constant | spread | raw pairs | pair - CUPTI | constant off by | fixed part |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	all := r.all("constant")
	for _, k := range r.of("constant") {
		all = append(all, r.rows[k].control...)
	}
	for _, res := range r.results {
		mine := filter(all, func(s *sample) bool { return s.run == res.Name && queued(s) && s.plugged && s.fromEnd >= 12 })
		raw, excess, off, with, fixed := "", "", "", "no", ""
		if f, ok := fixedPart(res.records); ok {
			fixed = fmt.Sprintf("%.3f", f/1e3)
		}
		for stream := range 3 {
			of := filter(mine, func(s *sample) bool { return s.stream == stream })
			if len(of) > 0 {
				raw += us(median(pick(of, (*sample).raw))) + " "
				excess += us(median(pick(of, (*sample).excessNS))) + " "
			}
		}
		if !res.Witness {
			excess = ""
		} else {
			with = "yes"
			if len(mine) > 0 {
				off = signed(float64(res.ConstantNS) - median(pick(mine, (*sample).excessNS)))
			}
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s| %s| %s | %s |\n", res.Name, with, res.Calibration, us(float64(res.ConstantNS)), us(float64(res.SpreadNS)), raw, excess, off, fixed)
	}
}

func (r *report) printKernels(w io.Writer) {
	rows := r.witnessed("kernels")
	if len(rows) == 0 {
		return
	}
	fmt.Fprint(w, "\n## Kernels\n\nµs. Error is the published (corrected) time less CUPTI's. Without is how much longer the raw pair is in a process without CUPTI, medians.\n\n",
		"| grid | stream | clock | n | CUPTI p50 | raw p50 | error p1 | p10 | p50 | p90 | p99 | largest | within 0.2 | inside uncertainty | told queued | without |\n",
		"| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.Clock, b.Clock)*-1, cmp.Compare(mode(a), mode(b))) })
	for _, k := range rows {
		g := r.rows[k]
		e := distOf(pick(g.samples, (*sample).errNS), aimNS)
		raw := median(pick(g.samples, (*sample).raw))
		without := ""
		if len(g.control) > 0 {
			without = signed(median(pick(g.control, (*sample).raw)) - raw)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %d | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", k.Shape, k.Mode, k.Clock, e.N,
			us(median(pick(g.samples, (*sample).cupti))), us(raw), signed(e.P1), signed(e.P10), signed(e.P50), signed(e.P90),
			signed(e.P99), us(e.MaxAbs), percent(e.Inner), percent(share(g.samples, (*sample).inUncertainty)), percent(share(g.samples, queued)), without)
	}
}

// printLines shows where the straight lines through the lengths from 1 to 10 µs meet
// zero cycles: for CUPTI's times it is the fixed part of a kernel, which its own
// duration holds and the calibration's line does not.
func (r *report) printLines(w io.Writer) {
	began := false
	for _, sh := range shapes {
		var x, cupti, raw, alone []float64
		for _, k := range r.of("kernels") {
			g := r.rows[k]
			if k.Shape != sh.name || k.Mode != "queued" || k.Clock != "warm" || k.TargetNS < 1_000 || k.TargetNS > 10_000 || len(g.samples) == 0 {
				continue
			}
			inner, control := withoutLast(g.samples), withoutLast(g.control)
			x = append(x, float64(cyclesFor(k.TargetNS)/sh.waves))
			cupti, raw = append(cupti, median(pick(inner, (*sample).cupti))), append(raw, median(pick(inner, (*sample).raw)))
			alone = append(alone, median(pick(control, (*sample).raw)))
		}
		if len(x) < 2 {
			continue
		}
		if !began {
			fmt.Fprint(w, "\n## Lines\n\nIntercept in µs and slope in ns a cycle of the medians of queued kernels of 1 to 10 µs.\n\n| grid | CUPTI | pair | pair without CUPTI |\n| --- | --- | --- | --- |\n")
			began = true
		}
		one := func(y []float64) string {
			a, b := line(x, y)
			return fmt.Sprintf("%.3f + %.4f", a/1e3, b)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", sh.name, one(cupti), one(raw), one(alone))
	}
}

// taken tells what was taken off a span: all of the constant, what a shallow pair
// holds, or something between.
func (s *sample) taken() string {
	switch d := s.wholeNS - s.takenNS; {
	case d <= 0:
		return "deep"
	case d > 540: // about 720
		return "shallow"
	default:
		return "unsure"
	}
}

// printTaken shows the errors of queued kernels by what was known of the queue.
func (r *report) printTaken(w io.Writer) {
	all := filter(r.all("kernels", "follow", "constant"), func(s *sample) bool { return s.cuptiNS >= shortestNS })
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\n## What was known of the queue\n\nµs, error of kernels of 1 µs and more: deep is nine kernels or more behind the pair, shallow fewer and none that came while it ran, unsure that some came or that it was not known.\n\n",
		"| stream | told | behind | n | p1 | p10 | p50 | p90 | p99 | within 0.2 | uncertainty p50 | inside it |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, m := range []string{"queued", "edge", "drained"} {
		for _, g := range []spanring.Gap{spanring.GapQueued, spanring.GapStarved} {
			for _, d := range []string{"deep", "unsure", "shallow"} {
				of := filter(all, func(s *sample) bool { return s.Mode == m && s.gap == g && s.taken() == d })
				if len(of) == 0 {
					continue
				}
				e := distOf(pick(of, (*sample).errNS), aimNS)
				fmt.Fprintf(w, "| %s | %s | %s | %d | %s | %s | %s | %s | %s | %s | %s | %s |\n", m, g, d, e.N, signed(e.P1), signed(e.P10), signed(e.P50), signed(e.P90),
					signed(e.P99), percent(e.Inner), us(median(pick(of, func(s *sample) int64 { return s.uncNS }))), percent(share(of, (*sample).inUncertainty)))
			}
		}
	}
}

// printAlone shows the kernels of the process without CUPTI, against the medians of
// CUPTI's times of the same launches in the other: only narrow grids, whose times
// CUPTI does not change.
func (r *report) printAlone(w io.Writer) {
	began := false
	for _, k := range r.of("kernels") {
		g := r.rows[k]
		if k.Shape != shapes[0].name || len(g.control) == 0 || len(g.samples) == 0 {
			continue
		}
		if !began {
			fmt.Fprint(w, "\n## Kernels without CUPTI\n\nµs. One block; error is the published time less the median of CUPTI's in the process that had it.\n\n",
				"| stream | clock | n | CUPTI p50 | raw p50 | error p1 | p10 | p50 | p90 | p99 | largest | within 0.2 | uncertainty p50 | inside it | told queued |\n",
				"| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
			began = true
		}
		m := int64(median(pick(g.samples, (*sample).cupti)))
		of := slices.Clone(g.control)
		for i := range of {
			of[i].cuptiNS = m
		}
		e := distOf(pick(of, (*sample).errNS), aimNS)
		fmt.Fprintf(w, "| %s | %s | %d | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", k.Mode, k.Clock, e.N, us(float64(m)), us(median(pick(of, (*sample).raw))),
			signed(e.P1), signed(e.P10), signed(e.P50), signed(e.P90), signed(e.P99), us(e.MaxAbs), percent(e.Inner),
			us(median(pick(of, func(s *sample) int64 { return s.uncNS }))), percent(share(of, (*sample).inUncertainty)), percent(share(of, queued)))
	}
}

func mode(k row) int { return slices.Index([]string{"queued", "edge", "drained"}, k.Mode) }

// printAims says what was aimed at, over all kernels, and whether it was met.
func (r *report) printAims(w io.Writer) {
	all := r.all("kernels", "follow", "constant")
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\n## Aims\n\n| of | n | figure | aim |\n| --- | --- | --- | --- |\n")
	line := func(what string, of []sample, figure, aim string) {
		fmt.Fprintf(w, "| %s | %d | %s | %s |\n", what, len(of), figure, aim)
	}
	long := filter(all, func(s *sample) bool { return s.cuptiNS >= shortestNS })
	behind := filter(long, func(s *sample) bool { return s.Mode == "queued" && s.plugged })
	e := distOf(pick(behind, (*sample).errNS), aimNS)
	line("kernels from 1 µs up behind a plug: error within 0.2 µs", behind, percent(e.Inner), "all")
	line("... p50, p99 and largest error", behind, fmt.Sprintf("%s, %s, %s µs", signed(e.P50), signed(e.P99), us(e.MaxAbs)), "")
	inner := filter(behind, func(s *sample) bool { return s.fromEnd >= 12 })
	line("... without the last dozen of each queue: within 0.2 µs", inner, percent(distOf(pick(inner, (*sample).errNS), aimNS).Inner), "")
	line("... error inside the uncertainty carried", behind, percent(share(behind, (*sample).inUncertainty)), "")
	starved := filter(all, func(s *sample) bool { return s.gap == spanring.GapStarved })
	line("starved: error inside the uncertainty carried", starved, percent(share(starved, (*sample).inUncertainty)), "99 %")
	line("behind a plug, told starved", behind, percent(share(behind, func(s *sample) bool { return !queued(s) })), "")
	q := filter(all, queued)
	line("told queued: error inside the uncertainty carried", q, percent(share(q, (*sample).inUncertainty)), "")
	line(fmt.Sprintf("told queued though a gap was inside: more than %s µs too long", us(gapNS)), q, percent(share(q, func(s *sample) bool { return s.errNS() > gapNS })), "")
	line("told starved though none was: within 0.2 µs", starved, percent(share(starved, func(s *sample) bool { return s.errNS() <= aimNS })), "")
}

func (r *report) printFollow(w io.Writer) {
	rows := r.witnessed("follow")
	if len(rows) == 0 {
		return
	}
	fmt.Fprint(w, "\n## What follows a pair\n\nµs, pair - CUPTI of 5 µs kernels behind a plug.\n\n| behind each pair | n | p10 | p50 | p90 | CUPTI p50 | without CUPTI: raw p50 |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	one := func(what string, of, control []sample) {
		if len(of) == 0 {
			return
		}
		d := distOf(pick(of, (*sample).excessNS), 0)
		raw := ""
		if len(control) > 0 {
			raw = us(median(pick(control, (*sample).raw)))
		}
		fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %s | %s |\n", what, d.N, us(d.P10), us(d.P50), us(d.P90), us(median(pick(of, (*sample).cupti))), raw)
	}
	for _, k := range rows {
		g := r.rows[k]
		one(k.Follow, filter(withoutLast(g.samples), func(s *sample) bool { return s.plugged }), withoutLast(g.control))
	}
	kernels := filter(r.all("kernels", "constant"), func(s *sample) bool { return s.plugged && s.Clock == "warm" && s.TargetNS <= 100_000 })
	for _, p := range []struct {
		what   string
		lo, hi int
	}{{"the end of the queue", 0, 0}, {"1 pair, then the end", 1, 1}, {"2 to 5 pairs", 2, 5}, {"6 to 11 pairs", 6, 11}, {"12 to 23 pairs", 12, 23}, {"24 to 49 pairs", 24, 49}, {"50 pairs and more", 50, 1 << 30}} {
		one(p.what+" (all lengths)", filter(kernels, func(s *sample) bool { return s.fromEnd >= p.lo && s.fromEnd <= p.hi }), nil)
	}
}

// printRaw shows what is not corrected: graphs and lanes.
func (r *report) printRaw(w io.Writer) {
	rows := r.witnessed("graphs", "lanes")
	if len(rows) == 0 {
		return
	}
	fmt.Fprint(w, "\n## Graphs and lanes\n\nµs. They are published as measured: excess is the pair less the time from the first start to the last end by CUPTI.\n\n",
		"| around | stream | n | CUPTI p50 | excess p1 | p10 | p50 | p90 | p99 | largest | without |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, k := range rows {
		g := r.rows[k]
		d := distOf(pick(g.samples, (*sample).excessNS), 0)
		without := ""
		if len(g.control) > 0 {
			without = signed(median(pick(g.control, (*sample).raw)) - median(pick(g.samples, (*sample).raw)))
		}
		what := k.Shape
		if k.Part == "graphs" {
			what = "graph of " + k.Shape
		}
		fmt.Fprintf(w, "| %s | %s | %d | %s | %s | %s | %s | %s | %s | %s | %s |\n", what, k.Mode, d.N,
			us(median(pick(g.samples, (*sample).cupti))), us(d.P1), us(d.P10), us(d.P50), us(d.P90), us(d.P99), us(d.Max), without)
	}
}

// printPlacing shows how launches were placed on the host's clock and returns what
// was beyond the published uncertainty.
func printPlacing(w io.Writer, placed []placing) (wrong []string) {
	if len(placed) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n## Placement on the host's clock\n\nµs. The error lies between its two bounds, which for a sharp launch are at most %s apart.\n\n"+
		"| phase | n | uncertainty p50 | p99 | largest | of them sharp | error at least, p1 | p50 | error at most, p50 | p99 | violations | by at most | last word late |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n", us(sharpNS))
	for _, phase := range []string{phaseSteady, phaseIdle, phaseBusy} {
		var unc, lower, upper []int64
		bad, late, most := 0, 0, int64(0)
		for i := range placed {
			p := &placed[i]
			if p.phase != phase {
				continue
			}
			unc = append(unc, p.unc)
			if p.LastBefore != 0 && p.earlyNS()+p.lateNS() <= sharpNS {
				lower, upper = append(lower, -p.earlyNS()), append(upper, p.lateNS())
			}
			switch {
			case p.violated():
				bad++
				most = max(most, p.beyondNS())
			case p.underWayNS() > 0:
				late++
			}
		}
		if len(unc) == 0 {
			continue
		}
		u, lo, hi := distOf(unc, 0), distOf(lower, 0), distOf(upper, 0)
		fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %d | %s | %s | %s | %s | %d | %s | %d |\n", phase, u.N, us(u.P50), us(u.P99), us(u.Max), lo.N,
			signed(lo.P1), signed(lo.P50), signed(hi.P50), signed(hi.P99), bad, us(float64(most)), late)
		if bad > 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %d of %d beyond the published uncertainty", phase, bad, u.N))
		}
	}
	return wrong
}

func (r *report) printStructure(w io.Writer) {
	fmt.Fprintf(w, "\n## Structure\n\n%d spans, %d of them inside a lane. Children outside their parents, spans of a stream out of order: %d.\n", r.spans, r.inside, len(r.found)+r.more)
	for _, v := range r.found[:min(len(r.found), 20)] {
		fmt.Fprintln(w, "- "+v.String())
	}
	if n := len(r.found) + r.more; n > 0 {
		r.wrong = append(r.wrong, fmt.Sprintf("%d spans are where they cannot be", n))
	}
}

// writeJSON writes every value that the tables are made of.
func (r *report) writeJSON(path string) error {
	type outRow struct {
		row
		Run         []int   `json:"process"`
		CUPTI       []int64 `json:"cupti_ns"`
		Raw         []int64 `json:"raw_ns"`
		Corrected   []int64 `json:"corrected_ns"`
		Uncertainty []int64 `json:"uncertainty_ns"`
		Queued      []int   `json:"queued"`
		FromEnd     []int   `json:"pairs_behind"`
		Stream      []int   `json:"stream"`
		Start       []int64 `json:"start_mono_ns"`
		Lead        []int64 `json:"lead_ns"`
		CUPTIStart  []int64 `json:"cupti_start_ns"`
		Control     []int64 `json:"raw_without_cupti_ns"`
		ControlCorr []int64 `json:"corrected_without_cupti_ns"`
		ControlUnc  []int64 `json:"uncertainty_without_cupti_ns"`
		ControlRun  []int   `json:"process_without_cupti"`
	}
	var doc struct {
		Processes []*result  `json:"processes"`
		Rows      []outRow   `json:"rows"`
		Placement [][7]int64 `json:"placement"` // phase, start, end, uncertainty, first seen, last not yet seen, last seen
		Wrong     []string   `json:"wrong"`
	}
	doc.Processes, doc.Wrong = r.results, r.wrong
	number := make(map[string]int)
	for i, res := range r.results {
		number[res.Name] = i
	}
	for _, k := range r.order {
		g := r.rows[k]
		o := outRow{row: k, Control: pick(g.control, (*sample).raw)}
		o.ControlCorr = pick(g.control, func(s *sample) int64 { return s.corrNS })
		o.ControlUnc = pick(g.control, func(s *sample) int64 { return s.uncNS })
		for i := range g.control {
			o.ControlRun = append(o.ControlRun, number[g.control[i].run])
		}
		for i := range g.samples {
			s := &g.samples[i]
			q := 0
			if queued(s) {
				q = 1
			}
			o.Run, o.CUPTI, o.Raw = append(o.Run, number[s.run]), append(o.CUPTI, s.cuptiNS), append(o.Raw, s.rawNS)
			o.Corrected, o.Uncertainty = append(o.Corrected, s.corrNS), append(o.Uncertainty, s.uncNS)
			o.Queued, o.FromEnd, o.Stream = append(o.Queued, q), append(o.FromEnd, s.fromEnd), append(o.Stream, s.stream)
			o.Start, o.Lead, o.CUPTIStart = append(o.Start, s.startNS), append(o.Lead, s.leadNS), append(o.CUPTIStart, s.cuptiStartNS)
		}
		doc.Rows = append(doc.Rows, o)
	}
	for i := range r.placed {
		p := &r.placed[i]
		doc.Placement = append(doc.Placement, [7]int64{
			int64(slices.Index([]string{phaseSteady, phaseIdle, phaseBusy}, p.phase)), p.startNS, p.endNS, p.unc, p.FirstAt, p.LastBefore, p.LastAt,
		})
	}
	b, err := json.Marshal(&doc)
	if err != nil {
		return fmt.Errorf("write the distributions: %w", err)
	}
	return os.WriteFile(path, b, 0o644)
}
