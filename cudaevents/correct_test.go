package cudaevents_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
)

// TestDepth: how much a queued kernel's pair is corrected by follows from how many
// kernels waited behind it, as far as that can be known.
func TestDepth(t *testing.T) {
	const (
		deep, shallow, unsure = 3040, 3040 - 720, 3040 - 360
		spread                = 2 * 300
	)
	type corrected struct{ By, MoreUncertain int }
	for _, tc := range []struct {
		name string
		run  func(g *rig, s cudaevents.Stream, launch func(n int))
		want []corrected
	}{
		{"a queue of eleven, while the step goes on", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			g.d.Stall(s)
			launch(11)
			g.d.Advance(ms)
			g.d.Release(s)
		}, []corrected{{deep, 0}, {deep, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}}},
		{"the step had ended on the host", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			g.d.Stall(s)
			launch(10)
			g.stepEnded[1] = g.d.Now()
			g.d.Advance(ms)
			g.d.Release(s)
		}, []corrected{{deep, 0}, {unsure, 720}, {unsure, 720}, {unsure, 720}, {unsure, 720}, {unsure, 720}, {unsure, 720}, {unsure, 720}, {unsure, 720}, {unsure, 720}}},
		{"the step ended on the host after it had waited", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			g.d.Work(s, ms)
			launch(2)
			g.d.Advance(2 * ms)
			g.stepEnded[1] = g.d.Now()
		}, []corrected{{shallow, 0}, {shallow, 0}}},
		{"lanes and their ends do not count", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			g.d.Stall(s)
			for range 10 {
				launch(1)
				g.end(g.begin(s, g.lane(1)))
			}
			g.d.Advance(ms)
			g.d.Release(s)
		}, []corrected{{deep, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}}},
		{"the others came while it ran", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			g.d.Work(s, ms)
			g.long = 5 * ms
			launch(1)
			g.long = 0
			g.d.Advance(2 * ms)
			launch(9)
		}, []corrected{{unsure, 720}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}}},
		{"the others came when it was done", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			g.d.Work(s, ms)
			launch(1)
			g.d.Advance(2 * ms)
			g.d.Work(s, ms)
			launch(9)
			g.d.Advance(2 * ms)
		}, []corrected{{shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}, {shallow, 0}}},
		{"its own launch was still arriving", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			launch(1)
		}, []corrected{{unsure, 720}}},
		{"one comes while it runs", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			g.d.Work(s, ms)
			g.long = 5 * ms
			launch(1)
			g.d.Advance(2 * ms)
			launch(1)
		}, []corrected{{unsure, 720}, {shallow, 0}}},
		{"its lane's end comes while it runs", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			h := g.begin(s, g.lane(1))
			g.d.Work(s, ms)
			g.long = 5 * ms
			launch(1)
			g.d.Advance(2 * ms)
			g.end(h)
		}, []corrected{{unsure, 720}}},
		{"its lane's end had come before", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			h := g.begin(s, g.lane(1))
			g.d.Work(s, ms)
			launch(1)
			g.end(h)
		}, []corrected{{shallow, 0}}},
		{"a kernel without a pair had come before", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			launch(1)
			g.r.Untimed(s)
			g.d.Advance(ms)
			g.d.Work(s, ms)
			launch(2)
			g.d.Advance(2 * ms)
		}, []corrected{{unsure, 720}, {shallow, 0}, {shallow, 0}}},
		{"a kernel without a pair comes behind", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			launch(1)
			g.settle() // the stream is known
			g.d.Stall(s)
			launch(10)
			g.r.Untimed(s)
			g.d.Advance(ms)
			launch(1)
			g.d.Advance(ms)
			g.d.Release(s)
		}, []corrected{
			{unsure, 720}, {deep, 0}, {deep, 0},
			{unsure, 720}, {unsure, 720}, {unsure, 720}, {unsure, 720}, {unsure, 720}, {unsure, 720}, {unsure, 720}, {unsure, 720}, {shallow, 0},
		}},
		{"a kernel without a pair on another stream", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			other := g.d.NewStream()
			l, _ := g.r.Reserve(other, g.kernel(2))
			g.r.Launched(l, g.d.Launch(l.Pair, other, 5600))
			g.d.Work(s, ms)
			launch(1)
			g.r.Untimed(other)
			g.d.Advance(2 * ms)
		}, []corrected{{shallow, 0}}},
		{"on another stream", func(g *rig, s cudaevents.Stream, launch func(n int)) {
			g.d.StallAll()
			launch(1)
			other := g.d.NewStream()
			for range 20 {
				l, _ := g.r.Reserve(other, g.kernel(2))
				g.r.Launched(l, g.d.Launch(l.Pair, other, 5600))
			}
			g.d.Advance(ms)
			g.d.ReleaseAll()
		}, []corrected{{shallow, 0}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newRig(t, scripted.Options{CallNS: 500, EventNS: 320, Device: cudaevents.Device{Capability: 90}}, cudaevents.Options{Pairs: 64})
			s := g.d.NewStream()
			tc.run(g, s, func(n int) {
				for range n {
					l, _ := g.r.Reserve(s, g.kernel(1))
					if !g.r.Launched(l, g.d.Launch(l.Pair, s, 5600+g.long)) {
						t.Fatal("not launched")
					}
				}
			})
			g.settle()
			spans, _, _ := g.log()
			var got []corrected
			for i := range spans {
				sp := &spans[i]
				if sp.Lane == 0 || sp.Step != 1 || sp.Name != 6 {
					continue
				}
				got = append(got, corrected{int(sp.CorrectionNS), moreThan(sp.DurationUncertaintyNS, spread)})
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestWakingOnTwoStreams: which of two spans after a pause the GPU woke for does not
// follow from which stream was landed first.
func TestWakingOnTwoStreams(t *testing.T) {
	g := newRig(t, scripted.Options{CallNS: 500, EventNS: 320, Device: cudaevents.Device{Capability: 90}}, cudaevents.Options{Pairs: 16})
	s := [2]cudaevents.Stream{g.d.NewStream(), g.d.NewStream()}
	g.d.SetLatency(func(bool) int64 { return 100 })
	launch := func(i int) {
		l, _ := g.r.Reserve(s[i], g.kernel(1))
		if !g.r.Launched(l, g.d.Launch(l.Pair, s[i], 5600)) {
			t.Fatal("not launched")
		}
		g.d.Advance(ms)
	}
	launch(0)
	launch(1)
	g.settle()
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		g.log()
		g.d.Advance(30 * ms)
		for _, i := range append(order, order...) {
			launch(i)
		}
		g.settle()
		spans, _, _ := g.log()
		waking := 0
		for i := range spans {
			if spans[i].DurationUncertaintyNS > 100_000 {
				waking++
			}
		}
		// The first on each stream; the second one follows it on its own.
		if len(spans) != 4 || waking != 2 {
			t.Errorf("%d of %d spans may have waked the GPU, want 2 of 4", waking, len(spans))
		}
	}
}

// moreThan is how much more uncertain than the spread a span is, but for the
// coarseness of its duration and for what a starved one adds: four calls of 500 ns,
// and 100 µs for the first after a long sleep.
func moreThan(u uint64, spread int) int {
	d := int(u) - spread
	for _, known := range []int{0, 720} {
		for _, starved := range []int{0, 2000, 102_000} {
			if d >= known+starved && d < known+starved+100 {
				return known
			}
		}
	}
	return d
}
