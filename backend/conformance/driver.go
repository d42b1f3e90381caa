package conformance

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/spanring"
)

// driverTests hold telemetry's side of a backend to what cudaevents.Driver says.
var driverTests = []test{
	{"pairs", pairs},
	{"durations", durations},
	{"since", since},
	{"not recorded", notRecorded},
	{"pending", pending},
	{"anchor", anchor},
	{"anchor behind work", anchorBehind},
	{"stream identity", identity},
	{"never in a capture", recordCapturing},
	{"stale stream", staleStream},
	{"device", deviceOf},
}

// timing makes n timing events that are destroyed at the end.
func (r *rig) timing(n int) []cudaevents.Event {
	r.t.Helper()
	d := r.driver()
	ev := make([]cudaevents.Event, n)
	r.ok(d.CreateEvents(ev))
	r.t.Cleanup(func() { r.ok2(d.DestroyEvents(ev)) })
	for i, e := range ev {
		if e == 0 {
			r.t.Fatalf("event %d of %d is none", i, n)
		}
	}
	return ev
}

func (r *rig) record(e cudaevents.Event, s cudaevents.Stream) {
	r.t.Helper()
	rec := r.driver().Record(e, s)
	if rec.Capturing || rec.Result != cudaevents.Success || rec.Calls < 2 {
		r.t.Fatalf("record: %+v", rec)
	}
}

// pairs reads a row of pairs as they complete: in order, up to the first that is
// not complete.
func pairs(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	d, st := r.driver(), r.stream()
	const n = 6
	ev := r.timing(2*n + 1)
	anchor := ev[2*n]
	r.record(anchor, st)
	ps := make([]cudaevents.Pair, n)
	var at2 bool
	var host [n]time.Duration // how long it took to enqueue each: the GPU may have waited inside
	seen(t, "a pair behind work is pending", func() bool {
		for i := range ps {
			ps[i] = cudaevents.Pair{Start: ev[2*i], End: ev[2*i+1]}
			if i == 3 {
				r.spin(st, 50*time.Millisecond)
			}
			began := time.Now()
			r.record(ps[i].Start, st)
			r.spin(st, time.Duration(i+1)*100*time.Microsecond)
			r.record(ps[i].End, st)
			host[i] = time.Since(began)
		}
		until(t, "the third pair is complete", func() bool { return d.Pending(ps[2].End) == cudaevents.Success })
		out := make([]cudaevents.Times, n)
		got, res, calls := d.Elapsed(anchor, ps, out)
		if got == 3 && res == cudaevents.NotReady {
			at2 = true
			if calls < 2*3+1 {
				t.Errorf("%d calls to read 3 pairs and find a fourth pending", calls)
			}
		}
		r.sync(st)
		return at2
	})
	out := make([]cudaevents.Times, n)
	got, res, _ := d.Elapsed(anchor, ps, out)
	if got != n || res != cudaevents.Success {
		t.Fatalf("read %d of %d complete pairs, result %d", got, n, res)
	}
	last := float32(-1)
	for i, o := range out {
		lo := 0.1 * float32(i+1)
		if hi := ms(r.atMost(r.cycles(time.Duration(i+1)*100*time.Microsecond)) + host[i]); o.DurationMS < lo || o.DurationMS > hi {
			t.Errorf("pair %d took %v ms, want %v to %v", i, o.DurationMS, lo, hi)
		}
		if o.SinceResult != cudaevents.Success || o.SinceAnchorMS <= last {
			t.Errorf("pair %d began %v ms after the anchor (result %d), the one before %v", i, o.SinceAnchorMS, o.SinceResult, last)
		}
		last = o.SinceAnchorMS
	}
	// Without an anchor nothing but durations is read.
	bare := make([]cudaevents.Times, n)
	if got, res, calls := d.Elapsed(0, ps, bare); got != n || res != cudaevents.Success || calls < n {
		t.Errorf("without an anchor: read %d, result %d, %d calls", got, res, calls)
	}
	for i := range bare {
		want := cudaevents.Times{DurationMS: out[i].DurationMS}
		if diff := cmp.Diff(want, bare[i]); diff != "" {
			t.Errorf("pair %d without an anchor (-want +got):\n%s", i, diff)
		}
	}
	if got, res, calls := d.Elapsed(anchor, nil, nil); got != 0 || res != cudaevents.Success {
		t.Errorf("no pairs: read %d, result %d, %d calls", got, res, calls)
	}
}

func ms(d time.Duration) float32 { return float32(d.Seconds() * 1e3) }

// durations holds spin kernels against their length: twice the cycles take twice
// the time, less what does not depend on them.
func durations(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	d := r.driver()
	st, err := d.CreateStream()
	r.ok(err)
	t.Cleanup(func() { r.ok2(d.DestroyStream(st)) })
	ev := r.timing(2)
	p := cudaevents.Pair{Start: ev[0], End: ev[1]}
	pair := func(cycles uint64) float64 {
		t.Helper()
		r.ok(d.Spin(st, r.cycles(time.Millisecond))) // a plug, so that nothing starves
		r.ok(d.SpinPair(st, cycles, p))
		until(t, "the pair is complete", func() bool { return d.Pending(p.End) == cudaevents.Success })
		var out [1]cudaevents.Times
		if n, res, _ := d.Elapsed(0, []cudaevents.Pair{p}, out[:]); n != 1 || res != cudaevents.Success {
			t.Fatalf("read %d pairs, result %d", n, res)
		}
		return float64(out[0].DurationMS) * 1e6
	}
	best := func(cycles uint64) float64 {
		b := pair(cycles)
		for range 10 {
			b = min(b, pair(cycles))
		}
		return b
	}
	short, long := r.cycles(200*time.Microsecond), r.cycles(600*time.Microsecond)
	a, b := best(short), best(long)
	rate := float64(long-short) / (b - a) * 1e3
	if rate < r.caps.MinCyclesPerUS*0.99 || rate > r.caps.MaxCyclesPerUS*1.01 {
		t.Errorf("%d and %d cycles took %.0f and %.0f ns: %.1f cycles/µs, want %v to %v", short, long, a, b, rate, r.caps.MinCyclesPerUS, r.caps.MaxCyclesPerUS)
	}
	fixed := a - float64(short)/rate*1e3
	t.Logf("%.1f cycles/µs, a pair at zero cycles %.0f ns", rate, fixed)
	if fixed < 0 || fixed > 20_000 {
		t.Errorf("a pair at zero cycles takes %.0f ns", fixed)
	}
	if empty := best(1); empty < 500 || empty > 20_000 {
		t.Errorf("a pair around nothing takes %.0f ns", empty)
	}
}

func since(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	d, st := r.driver(), r.stream()
	ev := r.timing(3)
	// A plug first: what is measured is all queued before it begins, unless the host
	// takes longer than that.
	const plug = 30 * time.Millisecond
	r.spin(st, plug)
	began := time.Now()
	r.record(ev[0], st)
	r.spin(st, time.Millisecond)
	r.record(ev[1], st)
	late := max(0, time.Since(began)-plug/2)
	r.spin(st, 30*time.Millisecond)
	r.record(ev[2], st)
	until(t, "the second event is complete", func() bool { return d.Pending(ev[1]) == cudaevents.Success })
	seenPending := false
	if _, res := d.Since(ev[0], ev[2]); res == cudaevents.NotReady {
		seenPending = true
	}
	forth, res := d.Since(ev[0], ev[1])
	if res != cudaevents.Success || forth < 1 || forth > ms(r.atMost(r.cycles(time.Millisecond))+late) {
		t.Errorf("a millisecond's spin later: %v ms, result %d", forth, res)
	}
	back, res := d.Since(ev[1], ev[0])
	if res != cudaevents.Success || back != -forth {
		t.Errorf("the other way: %v ms, result %d, want %v", back, res, -forth)
	}
	var out [1]cudaevents.Times
	if n, res, _ := d.Elapsed(ev[1], []cudaevents.Pair{{Start: ev[0], End: ev[1]}}, out[:]); n != 1 || out[0].SinceResult != cudaevents.Success || out[0].SinceAnchorMS != back {
		t.Errorf("a pair that began before its anchor: %+v, result %d, want %v ms", out[0], res, back)
	}
	if same, res := d.Since(ev[1], ev[1]); res != cudaevents.Success || same != 0 {
		t.Errorf("from an event to itself: %v ms, result %d", same, res)
	}
	r.sync(st)
	if after, res := d.Since(ev[0], ev[2]); res != cudaevents.Success || after < 31 {
		t.Errorf("to the last event: %v ms, result %d (seen pending: %v)", after, res, seenPending)
	}
}

// notRecorded: an event without a record is a failure, not pending and not
// complete.
func notRecorded(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	d, st := r.driver(), r.stream()
	ev := r.timing(3)
	failure := func(what string, res cudaevents.Result) {
		t.Helper()
		if res == cudaevents.Success || res == cudaevents.NotReady {
			t.Errorf("%s: result %d, want a failure", what, res)
		}
	}
	failure("Pending of an event never recorded", d.Pending(ev[0]))
	r.record(ev[1], st)
	r.sync(st)
	_, res := d.Since(ev[0], ev[1])
	failure("Since an event never recorded", res)
	_, res = d.Since(ev[1], ev[0])
	failure("Since to an event never recorded", res)
	r.record(ev[2], st)
	r.sync(st)
	ps := []cudaevents.Pair{{Start: ev[1], End: ev[2]}, {Start: ev[0], End: ev[2]}, {Start: ev[1], End: ev[2]}}
	out := make([]cudaevents.Times, 3)
	n, res, _ := d.Elapsed(0, ps, out)
	if n != 1 {
		t.Errorf("read %d pairs before the one never recorded, want 1", n)
	}
	failure("Elapsed of a pair never recorded", res)
	// A failed anchor costs the position, not the pair.
	n, res, _ = d.Elapsed(ev[0], ps[:1], out)
	if n != 1 || res != cudaevents.Success {
		t.Errorf("with an anchor never recorded: read %d, result %d", n, res)
	}
	failure("SinceResult with an anchor never recorded", out[0].SinceResult)
}

func pending(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	d, st := r.driver(), r.stream()
	ev := r.timing(1)
	seen(t, "an event behind work is pending", func() bool {
		r.spin(st, 30*time.Millisecond)
		r.record(ev[0], st)
		res := d.Pending(ev[0])
		r.sync(st)
		if after := d.Pending(ev[0]); after != cudaevents.Success {
			t.Errorf("after the stream was waited for: result %d", after)
		}
		return res == cudaevents.NotReady
	})
}

const anchorBound = 200 * time.Microsecond

// anchor holds two anchors against each other: what lies between them on the
// GPU's clock lies between them on the host's.
func anchor(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	d := r.driver()
	st, err := d.CreateStream()
	r.ok(err)
	t.Cleanup(func() { r.ok2(d.DestroyStream(st)) })
	ev := r.timing(2)
	take := func(e cudaevents.Event) (try cudaevents.AnchorTry) {
		t.Helper()
		for range 100 {
			lo := spanring.MonoNS()
			try = d.Anchor(e, st, int64(anchorBound))
			hi := spanring.MonoNS()
			// The two readings of the same clock may differ by a microsecond.
			if try.BeforeMonoNS < lo-1000 || try.AfterMonoNS > hi+1000 || try.AfterMonoNS < try.BeforeMonoNS || try.Calls < 2 {
				t.Fatalf("anchor %+v taken from %d to %d", try, lo, hi)
			}
			if try.Result == cudaevents.Success {
				return try
			}
			if try.Result != cudaevents.NotReady {
				t.Fatalf("anchor on an idle stream: %+v", try)
			}
			until(t, "the event of a try that was given up completes", func() bool { return d.Pending(e) == cudaevents.Success })
		}
		t.Fatalf("no anchor in 100 tries: %+v", try)
		return try
	}
	a := take(ev[0])
	busy := r.stream() // some time has to pass between the two
	r.spin(busy, 2*time.Millisecond)
	r.sync(busy)
	b := take(ev[1])
	gpuMS, res := d.Since(ev[0], ev[1])
	lo, hi := b.BeforeMonoNS-a.AfterMonoNS, b.AfterMonoNS-a.BeforeMonoNS
	if ns := int64(float64(gpuMS) * 1e6); res != cudaevents.Success || ns < lo-500 || ns > hi+500 {
		t.Errorf("the GPU says %d ns between two anchors (result %d), the host %d to %d", ns, res, lo, hi)
	}
	t.Logf("anchors %d and %d ns wide", a.AfterMonoNS-a.BeforeMonoNS, b.AfterMonoNS-b.BeforeMonoNS)
}

// anchorBehind: a try behind work gives up at its bound, and does not take much
// longer.
func anchorBehind(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	d, st := r.driver(), r.stream()
	ev := r.timing(1)
	seen(t, "an anchor behind work is given up", func() bool {
		r.spin(st, 100*time.Millisecond)
		try := d.Anchor(ev[0], st, int64(anchorBound))
		r.sync(st)
		if try.Result != cudaevents.NotReady {
			return false
		}
		return try.AfterMonoNS-try.BeforeMonoNS >= int64(anchorBound) && try.AfterMonoNS-try.BeforeMonoNS < int64(20*time.Millisecond)
	})
}

func identity(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	d := r.driver()
	seenIDs := make(map[uint64]bool)
	id := func(st cudaevents.Stream) uint64 {
		t.Helper()
		v, err := d.StreamID(st)
		r.ok(err)
		if again, err := d.StreamID(st); err != nil || again != v {
			t.Errorf("stream %#x is %d, then %d (%v)", st, v, again, err)
		}
		return v
	}
	for _, st := range []cudaevents.Stream{0, r.gpu.DefaultStream(), r.stream(), r.stream()} {
		seenIDs[id(st)] = true
	}
	if len(seenIDs) != 4 {
		t.Errorf("4 streams have %d identities", len(seenIDs))
	}
	reused := false
	handles := make(map[cudaevents.Stream]bool)
	for range 20 {
		st := r.stream()
		reused = reused || handles[st]
		handles[st] = true
		if v := id(st); seenIDs[v] {
			t.Errorf("identity %d was given twice", v)
		} else {
			seenIDs[v] = true
		}
		r.ok(r.gpu.DestroyStream(st))
	}
	t.Logf("handles were used again: %v", reused)
	if _, err := d.StreamID(0xdead0); err == nil {
		t.Error("a stream that does not exist has an identity")
	}
}

// recordCapturing: nothing gets into a capture, and it is none the worse.
func recordCapturing(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	d, st, other := r.driver(), r.stream(), r.stream()
	ev := r.timing(2)
	p := r.words(3, 1)
	if d.Capturing() {
		t.Error("capturing before the capture")
	}
	g := r.capture(st, func() {
		if !d.Capturing() {
			t.Error("the driver does not know of the capture")
		}
		rec := d.Record(ev[0], st)
		if !rec.Capturing || rec.Calls < 1 {
			t.Errorf("record on a capturing stream: %+v", rec)
		}
		r.scale(st, p, 6, 3)
		r.record(ev[1], other) // other streams go on
	})
	if d.Capturing() {
		t.Error("capturing after the capture")
	}
	if res := d.Pending(ev[0]); res == cudaevents.Success || res == cudaevents.NotReady {
		t.Errorf("the event was recorded all the same: result %d", res)
	}
	r.ok(r.gpu.LaunchGraph(g, st))
	r.wantAll("the capture survived", st, p, 6, 3)
}

func staleStream(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	d := r.driver()
	ev := r.timing(1)
	st := r.stream()
	r.ok(r.gpu.DestroyStream(st))
	for _, bad := range []cudaevents.Stream{st, 0xdead0} {
		if rec := d.Record(ev[0], bad); !rec.Capturing && rec.Result == cudaevents.Success {
			t.Errorf("record on stream %#x: %+v", bad, rec)
		}
		if try := d.Anchor(ev[0], bad, 1000); try.Result == cudaevents.Success || try.Result == cudaevents.NotReady {
			t.Errorf("anchor on stream %#x: %+v", bad, try)
		}
		r.refused("Spin", invalidHandle, d.Spin(bad, 1))
		r.refused("DestroyStream", invalidHandle, d.DestroyStream(bad))
	}
}

func deviceOf(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	d := r.driver().Device()
	if d.Name != r.gpu.Name() || d.Name == "" {
		t.Errorf("device %q, GPU %q", d.Name, r.gpu.Name())
	}
	if d.UUID == [16]byte{} {
		t.Error("device has no UUID")
	}
	if d.Capability < 50 || d.Capability > 200 {
		t.Errorf("compute capability %d", d.Capability)
	}
}
