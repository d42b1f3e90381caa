package cudaevents_test

import (
	"math"
	"testing"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
)

// FuzzTimes lets the driver read anything at all of a complete pair. Whatever it
// is, the span lands where its own bounds allow or fails with a reason, the slot is
// free again, and the clock serves the next span as before.
func FuzzTimes(f *testing.F) {
	for _, ms := range []float32{0, 1, -1, 0.000032, 1e-45, 3e38, float32(math.Inf(1)), float32(math.NaN())} {
		f.Add(math.Float32bits(ms), math.Float32bits(0.5), int32(0), uint16(5))
		f.Add(math.Float32bits(1), math.Float32bits(ms), int32(0), uint16(700))
	}
	f.Add(math.Float32bits(1), math.Float32bits(1), int32(600), uint16(1))
	f.Fuzz(func(t *testing.T, durBits, sinceBits uint32, since int32, waitMS uint16) {
		g := newRig(t, scripted.Options{DriftPPM: 10}, cudaevents.Options{Pairs: 4})
		s := g.d.NewStream()
		g.span(s)
		g.settle()
		g.log()
		enqueue := g.d.Now()
		g.span(s)
		g.d.Finish()
		g.d.Advance(int64(waitMS) * ms)
		g.d.OnElapsed(func(_ cudaevents.Pair, t *cudaevents.Times) cudaevents.Result {
			t.DurationMS, t.SinceAnchorMS = math.Float32frombits(durBits), math.Float32frombits(sinceBits)
			t.SinceResult = cudaevents.Result(since)
			return cudaevents.Success
		})
		g.r.Harvest()
		g.d.OnElapsed(nil)
		spans, failed, _ := g.log()
		if len(spans)+len(failed) != 1 {
			t.Fatalf("%d landed, %d failed", len(spans), len(failed))
		}
		for _, sp := range spans {
			u := int64(sp.PlaceUncertaintyNS)
			if sp.RawNS == 0 || sp.StartMonoNS+u < enqueue || sp.EndMonoNS()-u > g.d.Now()+int64(sp.RawNS/1000) {
				t.Errorf("from %d to %d ± %d ns: enqueued at %d, seen by %d", sp.StartMonoNS, sp.EndMonoNS(), u, enqueue, g.d.Now())
			}
		}
		if n := g.busy(); n != 0 || g.r.InFlight() != 0 {
			t.Errorf("%d slots busy, %d in flight", n, g.r.InFlight())
		}
		g.d.Advance(600 * ms)
		g.span(s)
		g.settle()
		spans, failed, _ = g.log()
		if len(spans) != 1 || len(failed) != 0 {
			t.Errorf("the next span: %d landed, %+v", len(spans), failed)
		}
	})
}
