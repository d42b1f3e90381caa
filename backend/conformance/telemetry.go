package conformance

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/spanring"
)

var telemetryTests = []test{
	{"lanes", lanesLand},
	{"kernels of an armed step", kernelsLand},
	{"graphs of an armed step", graphsLand},
	{"unattributed", unattributed},
	{"queued and starved", gaps},
	{"never in a capture", lanesCapturing},
	{"a graph has the same nodes", sameNodes},
	{"somebody else's capture", foreignCapture},
	{"level and arming flip", flips},
	{"a handle used again", reusedHandle},
	{"a handle is reused at once", reusedAtOnce},
	{"one busy stream delays no other", busyStream},
	{"many streams at once", manyStreams},
	{"steps overlap", overlap},
	{"full pool", fullPool},
	{"calls at basic", basicCalls},
	{"a second installation", secondInstallation},
	{"calibration", calibration},
}

// between checks that a span lies where the host says: begun no earlier than
// enqueued and over no later than seen.
func (x *telemetry) between(s spanring.Span, fromNS, toNS int64) {
	x.t.Helper()
	u := int64(s.PlaceUncertaintyNS) + 1000 // between the two readings of one clock
	if s.StartMonoNS+u < fromNS || s.EndMonoNS()-u > toNS {
		x.t.Errorf("%s %s lies from %d to %d ± %d ns, the host enqueued it at %d and saw it over at %d",
			s.Kind, x.name(s), s.StartMonoNS-fromNS, s.EndMonoNS()-fromNS, u, 0, toNS-fromNS)
	}
	// Without an anchor, which a busy machine may not get, that is all there is to go by.
	if s.PlaceUncertaintyNS > uint64(int64(5*time.Millisecond)+toNS-fromNS) {
		x.t.Errorf("%s %s is uncertain by %d ns", s.Kind, x.name(s), s.PlaceUncertaintyNS)
	}
}

// loose is how far the places of spans can be off together.
func loose(spans ...spanring.Span) (ns int64) {
	for _, s := range spans {
		ns += int64(s.PlaceUncertaintyNS)
	}
	return ns
}

// took checks a span's raw length against the spin kernel inside, and what took the host
// so long to enqueue: it may have been stopped in between.
func (x *telemetry) took(s spanring.Span, spun, host time.Duration) {
	x.t.Helper()
	hi := x.atMost(x.cycles(spun))
	if !x.caps.ExactTimes || s.Gap != spanring.GapQueued {
		hi += host
	}
	if d := time.Duration(s.RawNS); d < spun || d > hi {
		x.t.Errorf("%s %s took %v, want %v to %v", s.Kind, x.name(s), d, spun, hi)
	}
}

func lanesLand(s *suite, t *testing.T) {
	x := s.telemetry(t, "lane")
	st := x.stream()
	prefill, decode, inner := x.hub.Lane("prefill"), x.hub.Lane("decode"), x.hub.Lane("sample")
	p := x.words(8, 1)
	for round := range 3 {
		from, began := spanring.MonoNS(), time.Now()
		step := x.hub.StepBegin()
		a := x.dev.LaneBegin(step, prefill, st)
		x.spin(st, time.Millisecond)
		b := a.Next(decode)
		x.spin(st, 2*time.Millisecond)
		c := x.dev.LaneBegin(step, inner, st)
		x.scale(st, p, 3, 8)
		c.End()
		b.End()
		step.End()
		host := time.Since(began)
		x.sync(st)
		spans := x.drain()
		to := spanring.MonoNS()
		type shape struct {
			Name            string
			Ordinal, Parent uint32
			Shared          bool
		}
		got := make([]shape, 0, 3)
		slices.SortFunc(spans, func(a, b spanring.Span) int { return int(a.Ordinal) - int(b.Ordinal) })
		for _, l := range spans {
			got = append(got, shape{x.name(l), l.Ordinal, l.Parent, l.SharedStart})
			x.between(l, from, to)
			if l.Step != step.ID() || l.Kind != spanring.KindLane || l.Gap != spanring.GapUnknown || l.CorrectionNS != 0 {
				t.Errorf("round %d: %+v", round, l)
			}
		}
		want := []shape{{"prefill", 1, 0, false}, {"decode", 2, 0, true}, {"sample", 3, 2, false}}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("round %d: lanes (-want +got):\n%s", round, d)
		}
		x.took(spans[0], time.Millisecond, host)
		x.took(spans[1], 2*time.Millisecond, host)
		x.took(spans[2], 0, host)
		// The two lanes share an event: the one ends where the other begins, as far as
		// their places are known.
		if d := spans[1].StartMonoNS - spans[0].EndMonoNS(); d < -loose(spans[:2]...) || d > loose(spans[:2]...) {
			t.Errorf("round %d: %d ns lie between lanes that share an event", round, d)
		}
	}
	x.wantAll("what the lanes enclosed", st, p, 27, 8)
}

func kernelsLand(s *suite, t *testing.T) {
	x := s.telemetry(t, "kernel")
	st := x.stream()
	lane := x.hub.Lane("decode")
	p := x.words(64, 1)
	work := func(step lanetrace.Step) (host time.Duration) {
		began := time.Now()
		l := x.dev.LaneBegin(step, lane, st)
		x.spin(st, 500*time.Microsecond)
		x.scale(st, p, 2, 64)
		x.fill(st, p, 7, 64)
		l.End()
		x.dev.Bind(step, st)
		x.scale(st, p, 3, 64)
		x.dev.Bind(lanetrace.Step{}, st)
		step.End()
		host = time.Since(began)
		x.sync(st)
		return host
	}
	work(x.hub.StepBegin())
	if spans := x.drain(); len(spans) != 1 || spans[0].Kind != spanring.KindLane || spans[0].Armed {
		t.Errorf("a step that is not armed gave %+v, want its lane alone", spans)
	}
	x.wantAll("without timed launches", st, p, 21, 64)

	from := spanring.MonoNS()
	step := x.armed()
	host := work(step)
	spans := x.drain()
	to := spanring.MonoNS()
	x.wantAll("with timed launches", st, p, 21, 64)
	type shape struct {
		Kind            spanring.Kind
		Name            string
		Ordinal, Parent uint32
		Lane            bool
	}
	var got []shape
	slices.SortFunc(spans, func(a, b spanring.Span) int { return int(a.Ordinal) - int(b.Ordinal) })
	for _, k := range spans {
		got = append(got, shape{k.Kind, x.name(k), k.Ordinal, k.Parent, k.Lane == uint16(lane)})
		x.between(k, from, to)
		if !k.Armed || k.Step != step.ID() {
			t.Errorf("%+v is not of the armed step %d", k, step.ID())
		}
		if k.Kind == spanring.KindKernel && k.Gap == spanring.GapUnknown {
			t.Errorf("kernel %s is neither queued nor starved", x.name(k))
		}
	}
	want := []shape{
		{spanring.KindLane, "decode", 1, 0, true},
		{spanring.KindKernel, kSpin, 2, 1, true},
		{spanring.KindKernel, kScale, 3, 1, true},
		{spanring.KindKernel, kFill, 4, 1, true},
		{spanring.KindKernel, kScale, 5, 0, false},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("spans of an armed step (-want +got):\n%s", d)
	}
	x.took(spans[1], 500*time.Microsecond, host)
	// Kernels lie one behind the other, inside their lane.
	for i := 2; i < 4; i++ {
		if a, b := spans[i-1], spans[i]; b.StartMonoNS < a.EndMonoNS()-loose(a, b) {
			t.Errorf("%s began %d ns before %s was over", x.name(b), a.EndMonoNS()-b.StartMonoNS, x.name(a))
		}
	}
	if l, k := spans[0], spans[3]; k.EndMonoNS() > l.EndMonoNS()+loose(k, l) || spans[1].StartMonoNS < l.StartMonoNS-loose(spans[1], l) {
		t.Errorf("the kernels do not lie within their lane: %+v", spans)
	}
	x.wantCounter(spanring.CtrLaunches, 0, 4)
	x.wantCounter(spanring.CtrUnattributed, 0, 0)
}

func graphsLand(s *suite, t *testing.T) {
	x := s.telemetry(t, "kernel")
	st := x.stream()
	lane := x.hub.Lane("decode")
	p := x.words(64, 1)
	g := x.capture(st, func() {
		x.spin(st, time.Millisecond)
		x.scale(st, p, 2, 64)
		x.scale(st, p, 5, 64)
	})
	from, began := spanring.MonoNS(), time.Now()
	step := x.armed()
	l := x.dev.LaneBegin(step, lane, st)
	x.ok(x.gpu.LaunchGraph(g, st))
	x.ok(x.gpu.LaunchGraph(g, st))
	l.End()
	step.End()
	host := time.Since(began)
	x.sync(st)
	spans := x.drain()
	to := spanring.MonoNS()
	x.wantAll("two timed replays", st, p, 100, 64)
	graphs := slices.DeleteFunc(slices.Clone(spans), func(s spanring.Span) bool { return s.Kind != spanring.KindGraph })
	if len(graphs) != 2 || len(spans) != 3 {
		t.Fatalf("got %+v, want a lane and two graphs", spans)
	}
	for _, sp := range graphs {
		n, ok := x.rd.Name(sp.Name)
		if !ok || n.GraphID != uint64(g) || n.GraphNodes != 3 {
			t.Errorf("graph's name %+v (%v), want id %d and 3 nodes", n, ok, g)
		}
		x.took(sp, time.Millisecond, host)
		x.between(sp, from, to)
		if sp.CorrectionNS != 0 {
			t.Errorf("a graph's time was corrected by %d ns", sp.CorrectionNS)
		}
	}
}

func unattributed(s *suite, t *testing.T) {
	x := s.telemetry(t, "kernel")
	a, b := x.stream(), x.stream()
	p := x.words(4, 1)
	step := x.armed()
	l := x.dev.LaneBegin(step, x.hub.Lane("decode"), a)
	x.scale(b, p, 2, 4) // no lane, no step
	x.sync(b)
	x.scale(a, p, 2, 4)
	l.End()
	step.End()
	x.sync(a)
	if spans := x.drain(); len(spans) != 2 {
		t.Errorf("got %d spans, want a lane and a kernel", len(spans))
	}
	x.wantCounter(spanring.CtrUnattributed, 0, 1)
	x.wantAll("timed or not", a, p, 4, 4)
}

func gaps(s *suite, t *testing.T) {
	x := s.telemetry(t, "kernel")
	st := x.stream()
	lane := x.hub.Lane("decode")
	kernels := func(prepare func()) (queued, starved int) {
		for range 5 {
			prepare()
			step := x.armed()
			l := x.dev.LaneBegin(step, lane, st)
			prepare()
			for range 4 {
				x.launch(st, kSpin, backend.U64(1))
				prepare()
			}
			l.End()
			step.End()
			x.sync(st)
			for _, k := range x.drain() {
				switch {
				case k.Kind != spanring.KindKernel:
				case k.Gap == spanring.GapQueued:
					queued++
				case k.Gap == spanring.GapStarved:
					starved++
				}
			}
		}
		return queued, starved
	}
	seen(t, "kernels behind work are queued", func() bool {
		queued, starved := kernels(func() { x.spinUntimed(st, time.Millisecond) })
		t.Logf("behind work: %d queued, %d starved", queued, starved)
		return queued == 20 && starved == 0
	})
	if x.caps.LaunchBusy == nil {
		t.Log("nobody can slow a launch down here: starved kernels are not tested")
		return
	}
	x.caps.LaunchBusy(t, x.gpu, 100)
	defer x.caps.LaunchBusy(t, x.gpu, 0)
	seen(t, "kernels on an idle stream are starved", func() bool {
		queued, starved := kernels(func() { x.sync(st) })
		t.Logf("on an idle stream: %d queued, %d starved", queued, starved)
		return starved >= 10
	})
	x.wantCounter(spanring.CtrQueued, 0, x.counter(spanring.CtrQueued))
}

// spinUntimed keeps a stream busy without being one of its step's launches.
func (x *telemetry) spinUntimed(st backend.Stream, d time.Duration) {
	x.t.Helper()
	x.ok(x.driver().Spin(st, x.cycles(d)))
}

func lanesCapturing(s *suite, t *testing.T) {
	x := s.telemetry(t, "kernel")
	st := x.stream()
	lane, other := x.hub.Lane("decode"), x.hub.Lane("sample")
	p := x.words(4, 1)
	step := x.armed()
	before := x.dev.LaneBegin(step, lane, st)
	x.ok(x.gpu.BeginCapture(st))
	capturing := x.counter(spanring.CtrCapturing)
	inside := x.dev.LaneBegin(step, other, st)
	x.scale(st, p, 2, 4)
	inside.End()
	before.End()
	x.hub.Harvest()
	g, err := x.gpu.EndCapture(st)
	x.ok(err)
	if n := x.counter(spanring.CtrCapturing) - capturing; n < 2 {
		t.Errorf("%d spans were counted as capturing, want the lane and the kernel", n)
	}
	around := x.dev.LaneBegin(step, lane, st)
	x.ok(x.gpu.LaunchGraph(g, st))
	around.End()
	step.End()
	x.sync(st)
	spans := x.drain()
	x.wantAll("the capture survived", st, p, 2, 4)
	var lanes, graphs int
	for _, sp := range spans {
		switch sp.Kind {
		case spanring.KindLane:
			lanes++
		case spanring.KindGraph:
			graphs++
		}
	}
	if lanes != 1 || graphs != 1 || len(spans) != 2 {
		t.Errorf("got %d spans, want the lane around the graph launch and the graph: %+v", len(spans), spans)
	}
	x.wantCounter(spanring.FailCapture.Counter(), 0, 1)
}

// sameNodes: a graph captured on an armed step has the nodes that it has without
// telemetry.
func sameNodes(s *suite, t *testing.T) {
	x := s.telemetry(t, "kernel")
	st := x.stream()
	lane := x.hub.Lane("decode")
	p := x.words(64, 1)
	nodes := func(step lanetrace.Step) uint32 {
		l := x.dev.LaneBegin(step, lane, st)
		g := x.capture(st, func() {
			in := x.dev.LaneBegin(step, x.hub.Lane("sample"), st)
			for range 10 {
				x.scale(st, p, 2, 64)
			}
			x.ok(x.gpu.MemsetAsync(p, 1, 4, st))
			x.ok(x.gpu.CopyDtoDAsync(p, p+8, 4, st))
			in.End()
		})
		x.ok(x.gpu.LaunchGraph(g, st))
		l.End()
		step.End()
		x.sync(st)
		for _, sp := range x.drain() {
			if n, ok := x.rd.Name(sp.Name); ok && sp.Kind == spanring.KindGraph {
				return n.GraphNodes
			}
		}
		return 0
	}
	x.hub.Arm(1)
	if n := nodes(x.hub.StepBegin()); n != 12 {
		t.Errorf("12 captured operations are %d nodes", n)
	}
}

// foreignCapture: a capture in mode GLOBAL that nobody here knows of survives
// lanes, launches, harvests and the making of pools, on its thread and on others.
func foreignCapture(s *suite, t *testing.T) {
	if s.caps.OpenGlobal == nil {
		t.Skip("this backend has no capture modes")
	}
	for _, level := range []string{"basic", "kernel"} {
		t.Run("from "+level, func(t *testing.T) {
			x := s.telemetry(t, level)
			other := s.rigOn(t, s.caps.OpenGlobal(t))
			captured, st := other.stream(), x.stream()
			p := other.words(16, 1)
			lane := x.hub.Lane("decode")
			l := backend.Launch{
				Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{16, 1, 1}, Stream: st,
				Args: []backend.Arg{backend.U64(1000)},
			}
			traffic := func() {
				x.hub.Arm(1)
				step := x.hub.StepBegin()
				a := x.dev.LaneBegin(step, lane, st)
				x.ok2(x.gpu.Launch(x.k[kSpin], &l))
				a.End()
				step.End()
				x.hub.Harvest()
			}
			traffic()
			begun, captureSome, stop := make(chan struct{}), make(chan struct{}), make(chan struct{})
			var g backend.Graph
			var wg sync.WaitGroup
			wg.Go(func() {
				elsewhere(func() {
					x.ok2(other.gpu.BeginCapture(captured))
					close(begun)
					for i := range 20 {
						x.ok2(other.tryLaunch(captured, kScale, backend.Ptr(p), backend.U32(3), backend.U32(16)))
						traffic() // the capturing thread's own, on another stream
						if i == 10 {
							close(captureSome)
						}
					}
					<-stop
					var err error
					g, err = other.gpu.EndCapture(captured)
					x.ok2(err)
				})
			})
			<-begun
			x.ok2(x.hub.SetLevel(lanetrace.LevelKernel)) // from basic this makes the pool
			<-captureSome
			for range 50 {
				traffic()
			}
			close(stop)
			wg.Wait()
			if g == 0 {
				t.Fatal("the capture did not survive")
			}
			other.ok(other.gpu.LaunchGraph(g, captured))
			want := uint32(1)
			for range 20 {
				want *= 3
			}
			other.wantAll("the captured graph", captured, p, int(want), 16)
			x.sync(st)
			if spans := x.drain(); len(spans) == 0 {
				t.Error("nothing landed")
			}
		})
	}
}

// flips changes the level and arms steps between every begin and end.
func flips(s *suite, t *testing.T) {
	x := s.telemetry(t, "lane")
	st := x.stream()
	a, b := x.hub.Lane("prefill"), x.hub.Lane("decode")
	p := x.words(4, 1)
	// Six levels and five flips a step: every place in the step sees every change.
	levels := []lanetrace.Level{
		lanetrace.LevelOff, lanetrace.LevelKernel, lanetrace.LevelLane,
		lanetrace.LevelBasic, lanetrace.LevelKernel, lanetrace.LevelLane,
	}
	n := 0
	flip := func() {
		x.ok(x.hub.SetLevel(levels[n%len(levels)]))
		if n%3 == 0 {
			x.hub.Arm(1)
		}
		n++
	}
	for range 40 {
		step := x.hub.StepBegin()
		flip()
		l := x.dev.LaneBegin(step, a, st)
		flip()
		x.fill(st, p, 2, 4)
		flip()
		l = l.Next(b)
		x.scale(st, p, 2, 4)
		flip()
		l.End()
		flip()
		step.End()
		x.hub.Harvest()
	}
	x.sync(st)
	if spans := x.drain(); len(spans) < 20 {
		t.Errorf("%d spans landed in 40 steps", len(spans))
	}
	x.wantAll("whatever the level", st, p, 4, 4)
	x.wantCounter(spanring.CtrMisuse, 0, 0)
}

// reusedHandle: a destroyed stream's spans land, and a new stream under its
// handle is another stream.
func reusedHandle(s *suite, t *testing.T) {
	x := s.telemetry(t, "lane")
	lane := x.hub.Lane("decode")
	streams := make(map[uint16]backend.Stream)
	handles := make(map[backend.Stream]int)
	for i := range 8 {
		st := x.stream()
		handles[st]++
		began := time.Now()
		step := x.hub.StepBegin()
		l := x.dev.LaneBegin(step, lane, st)
		x.spin(st, 500*time.Microsecond)
		l.End()
		step.End()
		host := time.Since(began)
		if i%2 == 0 { // with the span in flight
			x.ok(x.gpu.DestroyStream(st))
		}
		spans := x.drain()
		if i%2 == 1 {
			x.ok(x.gpu.DestroyStream(st))
		}
		if len(spans) != 1 {
			t.Fatalf("stream %d: %d spans landed", i, len(spans))
		}
		x.took(spans[0], 500*time.Microsecond, host)
		if was, ok := streams[spans[0].Stream]; ok {
			t.Errorf("streams %#x and %#x are both number %d", was, st, spans[0].Stream)
		}
		streams[spans[0].Stream] = st
	}
	t.Logf("8 streams had %d handles", len(handles))
	// A lane that is open when its stream goes has failed, not hung.
	st := x.stream()
	step := x.hub.StepBegin()
	l := x.dev.LaneBegin(step, lane, st)
	x.ok(x.gpu.DestroyStream(st))
	l.End()
	step.End()
	if spans := x.drain(); len(spans) != 0 {
		t.Errorf("a lane that was open when its stream was destroyed landed: %+v", spans)
	}
}

// reusedAtOnce: streams come and go on several threads, and the end of one does nothing
// to the next under its handle.
func reusedAtOnce(s *suite, t *testing.T) {
	x := s.telemetry(t, "lane")
	lane := x.hub.Lane("decode")
	step := x.hub.StepBegin()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 250 {
				st, err := x.gpu.CreateStream()
				if err != nil {
					t.Error(err)
					return
				}
				x.dev.LaneBegin(step, lane, st).End()
				if err := x.gpu.DestroyStream(st); err != nil {
					t.Error(err)
					return
				}
				x.hub.Harvest() // there are not so many slots
			}
		})
	}
	wg.Wait()
	step.End()
	x.drain()
	x.wantCounter(spanring.FailRecord.Counter(), 0, 0) // of a stream that is gone
	x.wantCounter(spanring.CtrMisuse, 0, 0)
}

func busyStream(s *suite, t *testing.T) {
	x := s.telemetry(t, "lane")
	busy, free := x.stream(), x.stream()
	lane := x.hub.Lane("decode")
	seen(t, "spans land while another stream is busy", func() bool {
		step := x.hub.StepBegin()
		a := x.dev.LaneBegin(step, lane, busy)
		x.spin(busy, 100*time.Millisecond)
		a.End()
		step.End()
		next := x.hub.StepBegin()
		b := x.dev.LaneBegin(next, lane, free)
		x.spin(free, 100*time.Microsecond)
		b.End()
		next.End()
		x.sync(free)
		x.hub.Harvest()
		early := x.spans()
		late := x.drain()
		if len(early)+len(late) != 2 {
			t.Errorf("%d and %d spans landed, want 2", len(early), len(late))
		}
		return len(early) == 1 && early[0].Step == next.ID() && len(late) == 1 && late[0].Step == step.ID()
	})
}

func manyStreams(s *suite, t *testing.T) {
	x := s.telemetry(t, "kernel")
	const workers, steps = 6, 10
	lane := x.hub.Lane("decode")
	x.hub.Arm(workers * steps)
	var wg sync.WaitGroup
	var stop atomic.Bool
	wg.Go(func() {
		for !stop.Load() {
			x.hub.Harvest()
		}
	})
	var work sync.WaitGroup
	for range workers {
		st, p := x.stream(), x.words(32, 1)
		work.Go(func() {
			for range steps {
				step := x.hub.StepBegin()
				l := x.dev.LaneBegin(step, lane, st)
				for range 3 {
					x.ok2(x.tryLaunch(st, kScale, backend.Ptr(p), backend.U32(2), backend.U32(32)))
				}
				l.End()
				step.End()
				x.ok2(x.gpu.Synchronize(st))
			}
			got := make([]byte, 4*32)
			x.ok2(x.gpu.CopyDtoHOnStream(got, p, st))
			if v := unle(got); v[0] != 1<<30 || v[31] != 1<<30 {
				t.Errorf("got %d, want %d", v[0], 1<<30)
			}
		})
	}
	work.Wait()
	stop.Store(true)
	wg.Wait()
	perStream := make(map[uint16]int)
	perStep := make(map[uint64]int)
	for _, sp := range x.drain() {
		perStream[sp.Stream]++
		perStep[sp.Step]++
	}
	c := x.hub.Ring().Counters()
	if lost := c.Failed() + c[spanring.CtrDropped]; lost != 0 {
		t.Errorf("spans were lost: %s", counters(c))
	}
	if len(perStream) != workers || len(perStep) != workers*steps {
		t.Errorf("spans of %d streams and %d steps, want %d and %d", len(perStream), len(perStep), workers, workers*steps)
	}
	for st, n := range perStream {
		if n != 4*steps {
			t.Errorf("stream %d: %d spans, want %d", st, n, 4*steps)
		}
	}
}

// overlap ends step N on the host before the GPU has begun it, with N+1 begun
// meanwhile, as asynchronous engines do.
func overlap(s *suite, t *testing.T) {
	x := s.telemetry(t, "kernel")
	st := x.stream()
	lane := x.hub.Lane("decode")
	p := x.words(4, 1)
	var ids []uint64
	x.spin(st, 5*time.Millisecond)
	began := time.Now()
	for i := range 4 {
		x.hub.Arm(1)
		step := x.hub.StepBegin()
		l := x.dev.LaneBegin(step, lane, st)
		x.scale(st, p, 3, 4)
		x.launch(st, kSpin, backend.U64(x.cycles(time.Duration(i+1)*200*time.Microsecond)))
		l.End()
		step.End()
		ids = append(ids, step.ID())
	}
	host := time.Since(began)
	x.sync(st)
	got := make(map[uint64]int)
	for _, sp := range x.drain() {
		got[sp.Step]++
		if sp.Kind == spanring.KindLane {
			x.took(sp, time.Duration(sp.Step-ids[0]+1)*200*time.Microsecond, host)
		}
	}
	want := map[uint64]int{ids[0]: 3, ids[1]: 3, ids[2]: 3, ids[3]: 3}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("spans a step (-want +got):\n%s", d)
	}
	x.wantAll("four steps", st, p, 81, 4)
}

func fullPool(s *suite, t *testing.T) {
	x := s.telemetry(t, "lane")
	st := x.stream()
	lane := x.hub.Lane("decode")
	seen(t, "a full pool drops", func() bool {
		dropped := x.counter(spanring.CtrDropped)
		x.spin(st, 100*time.Millisecond)
		for range 300 { // the pool has 256 pairs
			step := x.hub.StepBegin()
			x.dev.LaneBegin(step, lane, st).End()
			step.End()
		}
		dropped = x.counter(spanring.CtrDropped) - dropped
		landed := len(x.drain())
		if uint64(landed)+dropped != 300 {
			t.Errorf("%d landed and %d dropped of 300", landed, dropped)
		}
		return dropped >= 44
	})
}

// basicCalls compares what the driver is asked at level basic with what it is
// asked without telemetry.
func basicCalls(s *suite, t *testing.T) {
	work := func(r *rig, hub *lanetrace.Hub) map[string]uint64 {
		dev := r.gpu.Telemetry()
		st := r.stream()
		p := r.words(4, 1)
		e := r.event()
		before := map[string]uint64{}
		if r.caps.Calls != nil {
			before = r.caps.Calls()
		}
		lane := hub.Lane("decode")
		for range 10 {
			step := hub.StepBegin()
			l := dev.LaneBegin(step, lane, st)
			r.fill(st, p, 3, 4)
			l = l.Next(lane)
			r.ok(r.gpu.RecordEvent(e, st))
			g := r.capture(st, func() { r.scale(st, p, 2, 4) })
			r.ok(r.gpu.LaunchGraph(g, st))
			r.ok(r.gpu.DestroyGraph(g))
			l.End()
			step.End()
			r.sync(st)
			hub.Harvest()
		}
		r.wantAll("the same work", st, p, 6, 4)
		delta := map[string]uint64{}
		if r.caps.Calls != nil {
			for name, n := range r.caps.Calls() {
				if n != before[name] {
					delta[name] = n - before[name]
				}
			}
		}
		return delta
	}
	bare := work(s.rig(t, nil), nil)
	for _, level := range []string{"off", "basic"} {
		x := s.telemetry(t, level)
		with := work(x.rig, x.hub)
		if d := cmp.Diff(bare, with); d != "" {
			t.Errorf("calls at level %s (-without +with telemetry):\n%s", level, d)
		}
		x.wantCounter(spanring.CtrDriverCalls, 0, 0)
		if level == "basic" {
			x.wantCounter(spanring.CtrStepsEnded, 0, 10)
		}
	}
}

// secondInstallation attaches the device again: the first is drained and
// replaced, and counters go on.
func secondInstallation(s *suite, t *testing.T) {
	x := s.telemetry(t, "lane")
	st := x.stream()
	lane := x.hub.Lane("decode")
	step := x.hub.StepBegin()
	l := x.dev.LaneBegin(step, lane, st)
	x.spin(st, 2*time.Millisecond)
	l.End()
	step.End()
	y := &telemetry{rig: s.rig(t, x.hub), hub: x.hub, rd: x.rd}
	y.dev = y.gpu.Telemetry()
	if spans := x.spans(); len(spans) != 1 {
		t.Errorf("%d spans landed when the installation was replaced, want 1", len(spans))
	}
	begun := x.counter(spanring.CtrBegun)
	next := x.hub.StepBegin()
	x.dev.LaneBegin(next, lane, st).End() // the old installation records nothing
	if n := x.counter(spanring.CtrBegun) - begun; n != 1 {
		t.Errorf("%d spans were begun, want the step alone", n)
	}
	st2 := y.stream()
	began := time.Now()
	l2 := y.dev.LaneBegin(next, lane, st2)
	y.spin(st2, time.Millisecond)
	l2.End()
	next.End()
	host := time.Since(began)
	spans := y.drain()
	if len(spans) != 1 {
		t.Fatalf("%d spans landed in the second installation, want 1", len(spans))
	}
	y.took(spans[0], time.Millisecond, host)
	if n := x.counter(spanring.CtrBegun) - begun; n != 2 {
		t.Errorf("counters did not go on: %d begun", n)
	}
	// The first GPU is as good as ever.
	p := x.words(4, 2)
	x.scale(st, p, 2, 4)
	x.wantAll("on the replaced installation's GPU", st, p, 4, 4)
}

// calibration measures the machine's constant with the device's own spin kernel.
func calibration(s *suite, t *testing.T) {
	hub, err := lanetrace.OpenHeap(lanetrace.Config{
		Level: "kernel", Pairs: 64, HarvestEvery: -1, Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := hub.Close(ctx); err != nil {
			t.Errorf("close hub: %v", err)
		}
	})
	s.rig(t, hub)
	rd, err := spanring.NewHeapReader(hub.Ring(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close() //nolint:errcheck // of a heap ring
	cs, err := rd.Contexts()
	if err != nil || len(cs) != 1 {
		t.Fatalf("contexts %+v, %v", cs, err)
	}
	c := cs[0]
	t.Logf("%s: constant %d ns, spread %d ns, %s", c.UUIDText(), c.ConstantNS, c.SpreadNS, c.Calibration)
	if c.Calibration == spanring.CalibrationNone {
		t.Error("not calibrated")
	}
	if c.ConstantNS < 200 || c.ConstantNS > 10_000 {
		t.Errorf("constant %d ns", c.ConstantNS)
	}
	if fmt.Sprint(c.UUID) == fmt.Sprint([16]byte{}) {
		t.Error("the context has no UUID")
	}
}
