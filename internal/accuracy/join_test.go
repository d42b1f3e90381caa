package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// joined is a run with everything in it: a queued kernel behind a plug, a graph of
// two kernels, and a lane around a memset and a copy.
func joined() *result {
	span := func(kind spanring.Kind, ordinal uint32, name string, start int64, raw uint64, corr uint16) collector.Span {
		return collector.Span{
			Span: spanring.Span{Kind: kind, Ordinal: ordinal, StartMonoNS: start, RawNS: raw, CorrectionNS: corr, DurationUncertaintyNS: 200, Gap: spanring.GapQueued},
			Text: &collector.Name{Text: name},
		}
	}
	k := row{Part: "kernels", Shape: "1 block", Mode: "queued", Clock: "warm"}
	l := row{Part: "lanes", Shape: "things", Mode: "drained", Clock: "warm"}
	return &result{
		Name: "run", Witness: true,
		plan: []batch{
			{row: k, Step: 1, Plugged: true, Ops: []op{
				{Kind: opKernel, Name: spinName},
				{Kind: opKernel, Name: spinName, Ordinal: 1},
				{Kind: opGraph, Name: spinName, Nodes: 2, Ordinal: 2},
			}},
			{row: l, Lanes: []laneOf{{2, 1}}, Ops: []op{{Kind: opMemset, Bytes: 64, Lane: 1}, {Kind: opCopy, Bytes: 32, Lane: 1}}},
		},
		records: []record{
			{opKernel, 1, 2, 7, 1, 0, spinName}, // set-up
			{opKernel, 3, 4, 7, 2, 0, beginName},
			{opKernel, 100, 900, 7, 3, 0, spinName},
			{opKernel, 1000, 2000, 7, 4, 0, spinName},
			{opKernel, 3000, 3500, 7, 5, 0, spinName},
			{opKernel, 3600, 4000, 7, 5, 0, spinName},
			{opMemset, 9000, 9100, 7, 6, 64, ""},
			{opCopy, 9200, 9500, 7, 7, 32, ""},
		},
		spans: map[spanOf]collector.Span{
			{1, 1}: span(spanring.KindKernel, 1, spinName, 51_000, 4100, 3000),
			{1, 2}: span(spanring.KindGraph, 2, "graph", 53_000, 2000, 0),
			{2, 1}: span(spanring.KindLane, 1, "first", 59_000, 1000, 0),
		},
	}
}

func TestJoin(t *testing.T) {
	got, err := join(joined())
	if err != nil {
		t.Fatal(err)
	}
	type figures struct {
		Part                       string
		CUPTI, Raw, Corr, Err, Unc int64
		FromEnd                    int
		Plugged, Inside            bool
	}
	var have []figures
	for i := range got {
		s := &got[i]
		have = append(have, figures{s.Part, s.cuptiNS, s.rawNS, s.corrNS, s.errNS(), s.uncNS, s.fromEnd, s.plugged, s.inUncertainty()})
	}
	want := []figures{
		{"kernels", 1000, 4100, 1100, 100, 200, 1, true, true},
		{"kernels", 1000, 2000, 2000, 1000, 200, 0, true, false},
		{"lanes", 500, 1000, 1000, 500, 200, 0, false, false},
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Error(d)
	}
}

// TestJoinRefuses: whatever does not match is said, with what was joined before.
func TestJoinRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, err string
		change    func(r *result)
		joined    int
	}{
		{"no mark of the beginning", "no record of lt_acc_begin", func(r *result) { r.records[1].Name = "x" }, 0},
		{"two marks", "two records of lt_acc_begin", func(r *result) { r.records[0].Name = beginName }, 0},
		{"another kernel", `the record is of kernel "other"`, func(r *result) { r.records[3].Name = "other" }, 0},
		{"another kernel in a graph", `the record is of kernel "other"`, func(r *result) { r.records[5].Name = "other" }, 1},
		{"another size", "32 bytes, the record is of copy", func(r *result) { r.records[7].Bytes = 33 }, 2},
		{"a record missing", "operation 1", func(r *result) { r.records = r.records[:7] }, 2},
		{"one too many", "1 records more", func(r *result) { r.records = append(r.records, record{opCopy, 9600, 9700, 7, 8, 1, ""}) }, 3},
		{"correlation backwards", "correlation 3 behind 3", func(r *result) { r.records[3].Correlation = 3 }, 0},
		{"no span", "step 1 has no span 1", func(r *result) { delete(r.spans, spanOf{1, 1}) }, 0},
		{"a span of another kind", "step 1 has no span 2 of a graph", func(r *result) { r.spans[spanOf{1, 2}] = r.spans[spanOf{1, 1}] }, 1},
		{"a span of another kernel", `is "x"`, func(r *result) {
			s := r.spans[spanOf{1, 1}]
			s.Text = &collector.Name{Text: "x"}
			r.spans[spanOf{1, 1}] = s
		}, 0},
		{"elsewhere in time", "end more than 50 µs off", func(r *result) {
			s := r.spans[spanOf{1, 2}]
			s.StartMonoNS += 200_000
			r.spans[spanOf{1, 2}] = s
		}, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := joined()
			tc.change(r)
			got, err := join(r)
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%v, want %q", err, tc.err)
			}
			if len(got) != tc.joined {
				t.Errorf("%d samples, want %d", len(got), tc.joined)
			}
		})
	}
}

func TestJoinWithoutWitness(t *testing.T) {
	r := joined()
	r.Witness, r.records = false, nil
	got, err := join(r)
	if err != nil || len(got) != 3 || got[0].rawNS != 4100 || got[0].witness {
		t.Errorf("%d samples, %v", len(got), err)
	}
}

func TestPlacing(t *testing.T) {
	for _, tc := range []struct {
		name                    string
		p                       placing
		early, late, underWay   int64
		violated, contradictory bool
	}{
		{"inside", placing{"", 1000, 2000, 50, seen{900, 1100, 1850, 1900}}, 100, 150, 0, false, false},
		{"placed too late, within uncertainty", placing{"", 1000, 2000, 50, seen{900, 960, 1850, 1900}}, -40, 150, 0, false, false},
		{"placed too late", placing{"", 1000, 2000, 50, seen{900, 940, 1850, 1900}}, -60, 150, 0, true, false},
		{"placed too early, or both words late", placing{"", 1000, 2000, 50, seen{900, 1300, 2151, 2200}}, 300, -151, 101, true, false},
		{"the last word late, wherever the span is", placing{"", 1000, 2000, 50, seen{900, 1100, 2151, 2200}}, 100, -151, 101, false, true},
		{"the last word was there at the first look", placing{"", 1000, 2000, 50, seen{900, 1300, 0, 2100}}, 300, 2000, 0, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &tc.p
			if p.earlyNS() != tc.early || p.lateNS() != tc.late || p.underWayNS() != tc.underWay || p.violated() != tc.violated || p.contradictory() != tc.contradictory {
				t.Errorf("early %d, late %d, under way %d, violated %v, contradictory %v", p.earlyNS(), p.lateNS(), p.underWayNS(), p.violated(), p.contradictory())
			}
		})
	}
}

// TestPlacedTooEarly: a map of the clock that is off is found, to whichever side, and
// ends the program as wrong; a last word that was late for certain does not.
func TestPlacedTooEarly(t *testing.T) {
	const unc = 3000
	for _, tc := range []struct {
		name        string
		off, lastNS int64 // of the span, and of its last word's way
		want        []string
	}{
		{"placed rightly", 0, 500, nil},
		{"placed 8 µs too early", -8000, 500, []string{"steady: 10 of 10 beyond the published uncertainty"}},
		{"placed 8 µs too late", 8000, 500, []string{"steady: 10 of 10 beyond the published uncertainty"}},
		{"last words 8 µs late", 0, 8000, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var placed []placing
			for i := range int64(10) {
				at := i * 50_000_000
				start, end := at+tc.off, at+22_000+tc.off
				placed = append(placed, placing{phaseSteady, start, end, unc, seen{at + 900, at + 1000, at + 22_000 + tc.lastNS - 100, at + 22_000 + tc.lastNS}})
			}
			var out strings.Builder
			if d := cmp.Diff(tc.want, printPlacing(&out, placed)); d != "" {
				t.Errorf("%s\n%s", d, out.String())
			}
			if late := strings.HasSuffix(out.String(), "| 10 |\n"); late != (tc.lastNS > unc) {
				t.Errorf("late for certain:\n%s", out.String())
			}
		})
	}
}

func TestFixedPart(t *testing.T) {
	var all []record
	at := int64(0)
	add := func(stream uint32, took int64, name string) {
		all = append(all, record{opKernel, at, at + took, stream, uint32(len(all) + 1), 0, name})
		at += took + 10
	}
	for range 2 { // two tries, of which the first is too noisy
		add(3, 2_000_000, spinName)
		for i := range 128 {
			add(3, []int64{1023, 1523, 3023, 5523}[i%4], spinName)
		}
	}
	for i := range 20 {
		all[i].EndNS += 5000
	}
	add(7, 500, spinName) // the engine's own
	add(7, 2, beginName)
	add(3, 77, spinName)
	if ns, ok := fixedPart(all); !ok || ns < 522.9 || ns > 523.1 {
		t.Errorf("%v, %v; want 523", ns, ok)
	}
	if _, ok := fixedPart(all[1:]); ok {
		t.Error("of what is no whole calibration, something was said")
	}
	if _, ok := fixedPart(nil); ok {
		t.Error("of nothing, something was said")
	}
}
