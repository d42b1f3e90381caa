package cudaevents_test

import (
	"testing"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

// freeDriver costs next to nothing and completes everything at once, so that what
// is measured is the recorder. Its GPU's clock is the host's.
type freeDriver struct {
	*scripted.Driver
	now               int64
	anchorAt, priorAt int64
}

func (d *freeDriver) clock() int64 { d.now += 50; return d.now }

func (d *freeDriver) Record(cudaevents.Event, cudaevents.Stream) cudaevents.Recorded {
	return cudaevents.Recorded{Calls: 2}
}

func (d *freeDriver) StreamID(s cudaevents.Stream) (uint64, error) { return uint64(s) + 1, nil }

func (d *freeDriver) Elapsed(anchor cudaevents.Event, pairs []cudaevents.Pair, out []cudaevents.Times) (int, cudaevents.Result, int) {
	for i := range pairs {
		out[i] = cudaevents.Times{DurationMS: 0.001, SinceAnchorMS: float32(float64(d.now-d.anchorAt) / 1e6)}
	}
	d.now += 5000
	return len(pairs), cudaevents.Success, 2 * len(pairs)
}

// Since is only asked from the last anchor to the next.
func (d *freeDriver) Since(a, b cudaevents.Event) (float32, cudaevents.Result) {
	return float32(float64(d.anchorAt-d.priorAt) / 1e6), cudaevents.Success
}

func (d *freeDriver) Anchor(e cudaevents.Event, s cudaevents.Stream, bound int64) cudaevents.AnchorTry {
	before := d.now
	d.now += 6000
	d.priorAt, d.anchorAt = d.anchorAt, before+3000
	return cudaevents.AnchorTry{BeforeMonoNS: before, AfterMonoNS: d.now, Calls: 3}
}

func (d *freeDriver) Pending(cudaevents.Event) cudaevents.Result { return cudaevents.Success }

func newBenchRecorder(b testing.TB, pairs int) (*cudaevents.Recorder, *freeDriver, *spanring.Writer) {
	b.Helper()
	d := &freeDriver{Driver: scripted.New(scripted.Options{}), now: 1e12}
	w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 1 << 16, Slots: pairs, Allocs: 1, NameBytes: 4096}})
	if err != nil {
		b.Fatal(err)
	}
	r, err := cudaevents.New(d, w, cudaevents.Options{Pairs: pairs, Now: d.clock})
	if err != nil {
		b.Fatal(err)
	}
	if err := r.EnsurePool(); err != nil {
		b.Fatal(err)
	}
	return r, d, w
}

// BenchmarkBeginEnd is the bookkeeping of one lane on the serving thread: no
// driver, and a clock that costs a nanosecond (the real one costs some 40, twice).
func BenchmarkBeginEnd(b *testing.B) {
	r, _, w := newBenchRecorder(b, 4096)
	m := &cudaevents.Meta{Kind: spanring.KindLane, Step: 1, Ordinal: 1}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		h, o := r.Begin(0x10, m)
		if o != cudaevents.BeginOK || !r.End(h) {
			b.Fatal(o)
		}
		if n++; n == 4096 {
			b.StopTimer()
			r.Harvest()
			n = 0
			b.StartTimer()
		}
	}
	if w.Counter(spanring.CtrDropped) != 0 {
		b.Error("spans were dropped")
	}
}

// BenchmarkHarvest is the harvester's work for one landed span, over 64 pairs on
// each of 4 streams a harvest.
func BenchmarkHarvest(b *testing.B) {
	const streams, each = 4, 64
	r, _, w := newBenchRecorder(b, 1024)
	m := &cudaevents.Meta{Kind: spanring.KindLane, Step: 1, Ordinal: 1}
	b.ReportAllocs()
	calls, landed := 0, 0
	for b.Loop() {
		b.StopTimer()
		for k := range streams * each {
			h, _ := r.Begin(cudaevents.Stream(k%streams)*16, m)
			r.End(h)
		}
		b.StartTimer()
		h := r.Harvest()
		calls += h.Calls
		landed += h.Landed
	}
	if c := w.Counters(); landed != int(c[spanring.CtrBegun]) {
		b.Errorf("%d of %d landed, %d failed", landed, c[spanring.CtrBegun], c.Failed())
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(landed), "ns/span")
	b.ReportMetric(float64(calls)/float64(landed), "calls/span")
}
