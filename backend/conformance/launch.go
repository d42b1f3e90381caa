package conformance

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/cudaevents"
)

var launchTests = []test{
	{"values", kernelValues},
	{"arguments of every size", argumentSizes},
	{"arguments may be reused", argumentReuse},
	{"grids", grids},
	{"refused", refusedLaunches},
	{"modules", modules},
	{"allocates nothing", launchAllocs},
}

func kernelValues(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	for _, n := range []int{1, 31, 64, 65, 1000, 100_000} {
		a, b, c := r.words(n, 0), r.words(n, 5), r.words(n, 0)
		r.fill(st, a, 11, n)
		r.scale(st, b, 3, n)
		r.launch(st, kAdd, backend.Ptr(c), backend.Ptr(a), backend.Ptr(b), backend.U32(uint32(n)))
		r.wantAll(fmt.Sprintf("11 + 5*3, %d times", n), st, c, 26, n)
	}
	src := pattern(12_345, 3)
	p, q := r.alloc(len(src)), r.alloc(len(src))
	r.ok(r.gpu.CopyHtoD(p, src))
	r.launch(st, kCopy8, backend.Ptr(q), backend.Ptr(p), backend.U64(uint64(len(src))))
	got := make([]byte, len(src))
	r.ok(r.gpu.CopyDtoHOnStream(got, q, st))
	wantBytes(t, "copied by a kernel", src, got)
}

func argumentSizes(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	out := r.alloc(7 * 8)
	for _, v := range []struct {
		a uint8
		b uint16
		c uint32
		d uint64
		e float32
		f float64
		g uint8
	}{
		{1, 2, 3, 4, 5.5, 6.25, 7},
		{0xff, 0xffff, 0xffffffff, math.MaxUint64, float32(math.Copysign(0, -1)), math.Inf(-1), 0x80},
		{0x12, 0x3456, 0x789abcde, 0x0123456789abcdef, float32(math.NaN()), math.Pi, 0},
	} {
		r.launch(st, kArgs, backend.Ptr(out), backend.U8(v.a), backend.U16(v.b), backend.U32(v.c), backend.U64(v.d),
			backend.F32(v.e), backend.F64(v.f), backend.U8(v.g))
		want := []uint64{
			uint64(v.a), uint64(v.b), uint64(v.c), v.d,
			uint64(math.Float32bits(v.e)), math.Float64bits(v.f), uint64(v.g),
		}
		words := make([]uint32, 0, 14)
		for _, w := range want {
			words = append(words, uint32(w), uint32(w>>32))
		}
		r.wantWords(fmt.Sprintf("arguments %+v", v), st, out, words)
	}
	r.launch(st, kStore, backend.Ptr(out+8), backend.I64(-2))
	r.wantWords("a signed argument", st, out+8, []uint32{0xfffffffe, 0xffffffff})
	r.launch(st, kFill, backend.Ptr(out), backend.I32(-3), backend.U32(1))
	r.wantWords("a signed word", st, out, []uint32{0xfffffffd})
}

func argumentReuse(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	const n = 64
	p := r.words(n, 0)
	r.spin(st, 2e6)
	l := backend.Launch{Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{1, 1, 1}, Stream: st, Args: make([]backend.Arg, 3)}
	want := make([]uint32, n)
	for i := range n {
		l.Args[0], l.Args[1], l.Args[2] = backend.Ptr(p+backend.DevicePtr(4*i)), backend.U32(uint32(i*i)), backend.U32(1)
		r.ok(r.gpu.Launch(r.k[kFill], &l))
		want[i] = uint32(i * i)
	}
	clear(l.Args)
	r.wantWords("launches from one set of arguments", st, p, want)
}

func grids(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	const n = 5000
	p := r.words(n, 0)
	for i, d := range []struct{ grid, block backend.Dim3 }{
		{backend.Dim3{1, 1, 1}, backend.Dim3{1, 1, 1}},
		{backend.Dim3{7, 1, 1}, backend.Dim3{96, 1, 1}},
		{backend.Dim3{1, 1, 1}, backend.Dim3{1024, 1, 1}},
		{backend.Dim3{70_000, 1, 1}, backend.Dim3{32, 1, 1}},
		{backend.Dim3{1, 3, 2}, backend.Dim3{8, 4, 2}},
	} {
		l := backend.Launch{Grid: d.grid, Block: d.block, Stream: st, SharedBytes: 1024, Args: []backend.Arg{
			backend.Ptr(p), backend.U32(uint32(i + 1)), backend.U32(n),
		}}
		r.ok(r.gpu.Launch(r.k[kFill], &l))
		r.wantAll(fmt.Sprintf("grid %v, block %v", d.grid, d.block), st, p, i+1, n)
	}
}

func refusedLaunches(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p := r.words(4, 9)
	one := backend.Dim3{1, 1, 1}
	good := []backend.Arg{backend.Ptr(p), backend.U32(1), backend.U32(4)}
	for _, c := range []struct {
		name string
		k    backend.Kernel
		l    backend.Launch
		code cudaevents.Result
	}{
		{"no kernel", 0, backend.Launch{Grid: one, Block: one, Stream: st, Args: good}, 400},
		{"a kernel never handed out", 1 << 40, backend.Launch{Grid: one, Block: one, Stream: st, Args: good}, 400},
		{"a stream never made", r.k[kFill], backend.Launch{Grid: one, Block: one, Stream: 0xdead0, Args: good}, 400},
		{"no blocks", r.k[kFill], backend.Launch{Block: one, Stream: st, Args: good}, 1},
		{"no threads", r.k[kFill], backend.Launch{Grid: one, Stream: st, Args: good}, 1},
		{"2,048 threads in a block", r.k[kFill], backend.Launch{Grid: one, Block: backend.Dim3{2048, 1, 1}, Stream: st, Args: good}, 1},
		{"too few arguments", r.k[kFill], backend.Launch{Grid: one, Block: one, Stream: st, Args: good[:2]}, 1},
		{"too many arguments", r.k[kFill], backend.Launch{Grid: one, Block: one, Stream: st, Args: append(slices.Clone(good), good...)}, 1},
		{"an argument of another size", r.k[kFill], backend.Launch{Grid: one, Block: one, Stream: st, Args: []backend.Arg{
			backend.Ptr(p), backend.U64(1), backend.U32(4),
		}}, 1},
		{"an argument without a size", r.k[kFill], backend.Launch{Grid: one, Block: one, Stream: st, Args: []backend.Arg{
			backend.Ptr(p), {Bits: 1}, backend.U32(4),
		}}, 1},
		{"65 arguments", r.k[kFill], backend.Launch{Grid: one, Block: one, Stream: st, Args: make([]backend.Arg, 65)}, 1},
	} {
		r.refused(c.name, c.code, r.gpu.Launch(c.k, &c.l))
	}
	r.wantAll("what nothing was launched on", st, p, 9, 4)
}

func modules(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	if !r.gpu.HasModule(Module) {
		t.Error("the loaded module is not there")
	}
	if r.gpu.HasModule("nosuch") {
		t.Error("a module that was never loaded is there")
	}
	_, err := r.gpu.Kernel(Module, "nosuch")
	r.refused("a kernel the module does not have", notFound, err)
	_, err = r.gpu.Kernel("nosuch", kFill)
	r.refused("a kernel of a module that is not loaded", notFound, err)
	r.refused("loading a module twice", 0, r.gpu.LoadModule(Module, Image))
	if r.caps.Images {
		r.refused("loading nothing", invalidValue, r.gpu.LoadModule("empty", nil))
		r.refused("loading nonsense", 0, r.gpu.LoadModule("nonsense", []byte("this is no PTX")))
		if r.gpu.HasModule("empty") || r.gpu.HasModule("nonsense") {
			t.Error("a module that could not be loaded is there")
		}
	}
	// Handles stay what they were as more are looked up.
	again, err := r.gpu.Kernel(Module, kFill)
	r.ok(err)
	st := r.stream()
	p := r.words(1, 0)
	l := backend.Launch{
		Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{1, 1, 1}, Stream: st,
		Args: []backend.Arg{backend.Ptr(p), backend.U32(3), backend.U32(1)},
	}
	for _, k := range []backend.Kernel{r.k[kFill], again} {
		r.ok(r.gpu.Launch(k, &l))
		r.wantAll("filled", st, p, 3, 1)
		r.ok(r.gpu.Memset(p, 0, 4))
	}
}

// launchAllocs counts allocations of launches that telemetry looks at and of
// those it does not.
func launchAllocs(s *suite, t *testing.T) {
	for _, level := range []string{"off", "lane", "kernel"} {
		t.Run(level, func(t *testing.T) {
			x := s.telemetry(t, level)
			st := x.stream()
			p := x.words(1, 0)
			l := backend.Launch{
				Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{1, 1, 1}, Stream: st,
				Args: []backend.Arg{backend.Ptr(p), backend.U32(3), backend.U32(1)},
			}
			step := x.hub.StepBegin()
			if level == "kernel" {
				step.End()
				step = x.armed()
			}
			lane := x.dev.LaneBegin(step, x.hub.Lane("decode"), st)
			e := x.event()
			x.ok(x.gpu.BeginCapture(st))
			x.ok(x.gpu.Launch(x.k[kFill], &l))
			g, err := x.gpu.EndCapture(st)
			x.ok(err)
			k := x.k[kFill]
			for name, f := range map[string]func() error{
				"Launch":          func() error { return x.gpu.Launch(k, &l) },
				"LaunchGraph":     func() error { return x.gpu.LaunchGraph(g, st) },
				"RecordEvent":     func() error { return x.gpu.RecordEvent(e, st) },
				"StreamWaitEvent": func() error { return x.gpu.StreamWaitEvent(st, e) },
				"EventQuery":      func() error { _, err := x.gpu.EventQuery(e); return err },
			} {
				round := func() {
					for range 20 {
						if err := f(); err != nil {
							t.Error(err)
						}
					}
				}
				settle := func() {
					x.sync(st)
					until(t, "all but the lane has landed", func() bool {
						x.hub.Harvest()
						return x.dev.Recorder().InFlight() <= 1
					})
				}
				// As many in flight at once as there will be.
				x.spinUntimed(st, 20*time.Millisecond)
				for range 6 {
					round()
				}
				settle()
				// Behind work, so that a backend's own threads, which may allocate, stand still
				// unless the host takes too long.
				var n float64
				seen(t, "20 calls of "+name+" that allocate nothing", func() bool {
					x.spinUntimed(st, 20*time.Millisecond)
					n = testing.AllocsPerRun(3, round)
					settle()
					return n == 0
				})
				if n != 0 {
					t.Errorf("20 calls of %s allocate %v times", name, n)
				}
			}
			lane.End()
			step.End()
			x.sync(st)
			if spans := x.drain(); level == "kernel" && len(spans) < 100 {
				t.Errorf("only %d spans: launches were not timed", len(spans))
			}
		})
	}
}
