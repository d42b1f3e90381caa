package collector

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// A test's spans: begin and end in ns, on a stream.

func laneOn(ordinal uint32, stream uint16, a, b, lead int64) Span {
	return Span{Span: spanring.Span{Kind: spanring.KindLane, Ordinal: ordinal, Stream: stream, StartMonoNS: a, RawNS: uint64(b - a), LeadNS: lead}}
}

func kernelOn(ordinal uint32, stream uint16, a, b int64, g spanring.Gap) Span {
	// The pair is longer than the kernel.
	return Span{Span: spanring.Span{
		Kind: spanring.KindKernel, Ordinal: ordinal, Parent: 1, Stream: stream, StartMonoNS: a, RawNS: uint64(b-a) + 3, CorrectionNS: 3, Gap: g,
	}}
}

func graphOn(ordinal uint32, a, b int64, g spanring.Gap, nodes uint32) Span {
	sp := kernelOn(ordinal, 0, a, b, g)
	sp.Kind, sp.Text = spanring.KindGraph, &Name{GraphNodes: nodes}
	return sp
}

func onDevice(c uint8, sp Span) Span {
	sp.Context = c
	return sp
}

func TestDerived(t *testing.T) {
	const q, s = spanring.GapQueued, spanring.GapStarved
	for _, tt := range []struct {
		name string
		step Step
		want Derived
	}{
		{name: "nothing landed"},
		{
			// 0    10   20   30   40
			//      |-a--|    |-b--|
			name: "two lanes and a gap",
			step: Step{Spans: []Span{laneOn(1, 0, 10, 20, 5), laneOn(2, 0, 30, 40, 5)}},
			want: Derived{ExtentNS: 30, LaneNS: 20, OutsideNS: 10, QueueNS: 5, HasQueue: true},
		},
		{
			// stream 0 |----a----|          |--c--|
			// stream 1       |------b----|
			//          10   15   20     25  30   35
			name: "another stream works while one idles",
			step: Step{Spans: []Span{laneOn(1, 0, 10, 20, -1), laneOn(2, 1, 15, 25, 7), laneOn(3, 0, 30, 35, 9)}},
			want: Derived{ExtentNS: 25, LaneNS: 20, OutsideNS: 5, QueueNS: -1, HasQueue: true},
		},
		{
			// A lane in a lane counts once; the inner one came first on the clock by its
			// uncertainty.
			name: "nested, and not in order of start",
			step: Step{Spans: []Span{laneOn(1, 0, 12, 40, 3), laneOn(2, 0, 11, 20, 8)}},
			want: Derived{ExtentNS: 29, LaneNS: 29, QueueNS: 8, HasQueue: true},
		},
		{
			//          10                    40
			// lane     |---------------------|
			// kernels    12-15  20-26   24-30     50-54
			name: "launch gaps are not busy",
			step: Step{Armed: true, Spans: []Span{
				laneOn(1, 0, 10, 40, 5), kernelOn(2, 0, 12, 15, s), kernelOn(3, 0, 20, 26, q), kernelOn(4, 1, 24, 30, q), kernelOn(5, 0, 50, 54, q),
			}},
			want: Derived{
				ExtentNS: 44, LaneNS: 30, OutsideNS: 14, HasBusy: true, BusyNS: 17, LaneIdleNS: 17, BusyOutsideNS: 4,
				QueueNS: 5, HasQueue: true, Kernels: 4, Starved: 1, Bound: BoundGPU,
			},
		},
		{
			name: "two devices are added up",
			step: Step{Spans: []Span{
				laneOn(1, 0, 10, 20, 5), onDevice(3, laneOn(2, 0, 15, 40, 5)), onDevice(3, laneOn(3, 0, 45, 50, 5)),
			}},
			want: Derived{ExtentNS: 10 + 35, LaneNS: 10 + 30, OutsideNS: 5, QueueNS: 5, HasQueue: true},
		},
		{
			name: "most kernels starved",
			step: Step{Armed: true, Spans: []Span{
				laneOn(1, 0, 0, 40, 0), kernelOn(2, 0, 0, 5, s), kernelOn(3, 0, 10, 15, s), kernelOn(4, 0, 20, 25, q), kernelOn(5, 0, 30, 40, s),
			}},
			want: Derived{
				ExtentNS: 40, LaneNS: 40, HasBusy: true, BusyNS: 25, LaneIdleNS: 15, HasQueue: true, Kernels: 4, Starved: 3, Bound: BoundLaunch,
			},
		},
		{
			name: "half of the kernels starved",
			step: Step{Armed: true, Spans: []Span{
				laneOn(1, 0, 0, 40, 0), kernelOn(2, 0, 0, 10, s), kernelOn(3, 0, 10, 20, s), kernelOn(4, 0, 20, 30, q), kernelOn(5, 0, 30, 40, q),
			}},
			want: Derived{ExtentNS: 40, LaneNS: 40, HasBusy: true, BusyNS: 40, HasQueue: true, Kernels: 4, Starved: 2, Bound: BoundGPU},
		},
		{
			name: "a starved graph has one starved kernel",
			step: Step{Armed: true, Spans: []Span{laneOn(1, 0, 0, 40, 0), graphOn(2, 2, 40, s, 200)}},
			want: Derived{ExtentNS: 40, LaneNS: 40, HasBusy: true, BusyNS: 38, LaneIdleNS: 2, HasQueue: true, Kernels: 200, Starved: 1, Bound: BoundGPU},
		},
		{
			name: "the next lane waited long",
			step: Step{Spans: []Span{laneOn(1, 0, 0, 1_000_000, 6000), laneOn(2, 0, 1_000_000, 1_400_000, 900_000)}},
			want: Derived{ExtentNS: 1_400_000, LaneNS: 1_400_000, QueueNS: 6000, HasQueue: true, Bound: BoundGPU},
		},
		{
			name: "the next lane waited as on an idle stream",
			step: Step{Spans: []Span{laneOn(1, 0, 0, 1_000_000, 6000), laneOn(2, 0, 1_000_000, 1_400_000, dryNS)}},
			want: Derived{ExtentNS: 1_400_000, LaneNS: 1_400_000, QueueNS: 6000, HasQueue: true},
		},
		{
			name: "the host was done long before",
			step: Step{HasBegin: true, HasEnd: true, EndMonoNS: 100_000, Spans: []Span{laneOn(1, 0, 0, 1_000_000, 6000)}},
			want: Derived{ExtentNS: 1_000_000, LaneNS: 1_000_000, QueueNS: 6000, HasQueue: true, Bound: BoundGPU},
		},
		{
			name: "the host waited",
			step: Step{HasBegin: true, HasEnd: true, EndMonoNS: 1_005_000, Spans: []Span{laneOn(1, 0, 0, 1_000_000, 6000)}},
			want: Derived{ExtentNS: 1_000_000, LaneNS: 1_000_000, QueueNS: 6000, HasQueue: true},
		},
		{
			name: "mostly outside lanes",
			step: Step{HasBegin: true, HasEnd: true, EndMonoNS: 2_000_000, Spans: []Span{laneOn(1, 0, 0, 200_000, 6000), laneOn(2, 0, 900_000, 1_100_000, 6000)}},
			want: Derived{ExtentNS: 1_100_000, LaneNS: 400_000, OutsideNS: 700_000, QueueNS: 6000, HasQueue: true, Bound: BoundLaunch},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			new(deriver).derive(&tt.step)
			if d := cmp.Diff(tt.want, tt.step.Derived); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestDerivedAgainstBruteForce counts each nanosecond.
func TestDerivedAgainstBruteForce(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	var v deriver
	for range 2000 {
		s := Step{Armed: true}
		var lane, busy [2][160]bool
		lo, hi := [2]int{160, 160}, [2]int{}
		for o := range uint32(1 + rnd.IntN(12)) {
			a := rnd.IntN(100)
			b := a + 1 + rnd.IntN(40)
			c := rnd.IntN(2)
			lo[c], hi[c] = min(lo[c], a), max(hi[c], b)
			set := &lane[c]
			sp := laneOn(o+1, uint16(rnd.IntN(3)), int64(a), int64(b), 0)
			if rnd.IntN(3) == 0 {
				sp, set = kernelOn(o+1, uint16(rnd.IntN(3)), int64(a), int64(b), spanring.GapUnknown), &busy[c]
			}
			s.Spans = append(s.Spans, onDevice(uint8(c), sp))
			for i := a; i < b; i++ {
				set[i] = true
			}
		}
		want := Derived{HasQueue: true}
		for c := range 2 {
			hasBusy := false
			for i := range 160 {
				hasBusy = hasBusy || busy[c][i]
			}
			want.HasBusy = want.HasBusy || hasBusy
			want.ExtentNS += int64(max(0, hi[c]-lo[c]))
			for i := range 160 {
				want.LaneNS += int64(b2i(lane[c][i]))
				want.BusyNS += int64(b2i(busy[c][i]))
				want.LaneIdleNS += int64(b2i(hasBusy && lane[c][i] && !busy[c][i]))
				want.BusyOutsideNS += int64(b2i(busy[c][i] && !lane[c][i]))
			}
		}
		want.OutsideNS = want.ExtentNS - want.LaneNS
		v.derive(&s)
		got := s.Derived
		got.Bound = want.Bound
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("%+v (-want +got):\n%s", s.Spans, d)
		}
	}
}

func TestDeriveDoesNotAllocate(t *testing.T) {
	s := Step{Armed: true}
	for i := range uint32(300) {
		s.Spans = append(s.Spans, kernelOn(i+1, uint16(i%3), int64(1000-i), int64(1100-i), spanring.GapQueued))
	}
	var v deriver
	var g gpuTime
	v.derive(&s)
	if a := testing.AllocsPerRun(100, func() { v.derive(&s); g.add(&s) }); a > 0 {
		t.Errorf("%v allocations", a)
	}
}

func BenchmarkDerive(b *testing.B) {
	lanes := Step{Spans: []Span{laneOn(1, 0, 0, 100, 5), laneOn(2, 0, 100, 900, 5), laneOn(3, 1, 50, 700, 5)}}
	armed := Step{Armed: true, Spans: []Span{laneOn(1, 0, 0, 400_000, 5)}}
	for i := range uint32(400) {
		armed.Spans = append(armed.Spans, kernelOn(i+2, 0, int64(i)*1000, int64(i)*1000+900, spanring.GapQueued))
	}
	for _, bb := range []struct {
		name string
		s    *Step
	}{{"3 lanes", &lanes}, {"a lane and 400 kernels", &armed}} {
		b.Run(bb.name, func(b *testing.B) {
			var v deriver
			b.ReportAllocs()
			for b.Loop() {
				v.derive(bb.s)
			}
		})
	}
}
