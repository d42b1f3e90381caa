package conformance

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/cudaevents"
)

var closeTests = []test{
	{"used afterwards", usedAfterClose},
	{"with work in flight", closeBusy},
	{"with a capture open", closeCapturing},
	{"while others launch", closeRacing},
	{"while others allocate", closeAllocating},
	{"with lanes open", closeOpenLanes},
	{"after its hub", closeAfterHub},
}

func usedAfterClose(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st, e, p := r.stream(), r.event(), r.alloc(64)
	g := r.capture(st, func() { r.fill(st, p, 1, 1) })
	d := r.driver()
	r.ok(r.gpu.Close())
	r.ok(r.gpu.Close())
	_, errStream := r.gpu.CreateStream()
	_, errEvent := r.gpu.CreateEvent()
	_, errQuery := r.gpu.EventQuery(e)
	_, errGraph := r.gpu.EndCapture(st)
	_, errAlloc := r.gpu.Alloc(1)
	_, errTotal := r.gpu.TotalMemory()
	_, errFree := r.gpu.FreeMemory()
	_, errKernel := r.gpu.Kernel(Module, kFill)
	_, errManaged := r.gpu.AllocManaged(1)
	_, errArena := r.gpu.AllocArena(1)
	_, errPinned := r.gpu.AllocHostPinned(1)
	_, errHostPtr := r.gpu.HostPtrToDevice(make([]byte, 1))
	_, errSweep := r.gpu.SweepUnreleased()
	_, errDevFree := r.gpu.DeviceFreeMemory()
	_, errModules := r.gpu.Modules()
	_, errScratch := r.gpu.OpCache().Scratch("a", 1)
	for what, err := range map[string]error{
		"AllocManaged": errManaged, "AllocArena": errArena, "FreeArena": r.gpu.FreeArena(p), "AllocHostPinned": errPinned,
		"FreeHostPinned": r.gpu.FreeHostPinned(make([]byte, 1)), "HostPtrToDevice": errHostPtr, "BindThread": r.gpu.BindThread(),
		"SweepUnreleased": errSweep, "DeviceFreeMemory": errDevFree, "Modules": errModules, "Scratch": errScratch,
		"LaunchUntyped":         r.gpu.LaunchUntyped(r.k[kSpin], &backend.Launch{Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{1, 1, 1}, Stream: st}, []backend.Param{backend.ParamOf(new(uint64))}),
		"CopyDtoHAsync":         r.gpu.CopyDtoHAsync(make([]byte, 1), p, st),
		"CopyHtoDAsyncRetained": r.gpu.CopyHtoDAsyncRetained(p, make([]byte, 1), st),
		"CopyDtoD2DAsync":       r.gpu.CopyDtoD2DAsync(p, 1, p+8, 1, 1, 1, st),
		"LoadModule":            r.gpu.LoadModule("another", Image), "Kernel": errKernel,
		"Launch":        r.tryLaunch(st, kSpin, backend.U64(1)),
		"CreateStream":  errStream,
		"DestroyStream": r.gpu.DestroyStream(st), "Synchronize": r.gpu.Synchronize(st),
		"CreateEvent": errEvent, "DestroyEvent": r.gpu.DestroyEvent(e), "RecordEvent": r.gpu.RecordEvent(e, st),
		"StreamWaitEvent": r.gpu.StreamWaitEvent(st, e), "EventQuery": errQuery,
		"EventSynchronize": r.gpu.EventSynchronize(e), "BeginCapture": r.gpu.BeginCapture(st),
		"EndCapture": errGraph, "LaunchGraph": r.gpu.LaunchGraph(g, st), "DestroyGraph": r.gpu.DestroyGraph(g),
		"Alloc": errAlloc, "Free": r.gpu.Free(p), "CopyHtoD": r.gpu.CopyHtoD(p, []byte{1}),
		"CopyDtoH": r.gpu.CopyDtoH([]byte{1}, p), "CopyDtoD": r.gpu.CopyDtoD(p, p+8, 1),
		"CopyHtoDAsync":    r.gpu.CopyHtoDAsync(p, []byte{1}, st),
		"CopyDtoHOnStream": r.gpu.CopyDtoHOnStream([]byte{1}, p, st),
		"CopyDtoDAsync":    r.gpu.CopyDtoDAsync(p, p+8, 1, st),
		"Memset":           r.gpu.Memset(p, 1, 1), "MemsetAsync": r.gpu.MemsetAsync(p, 1, 1, st),
		"TotalMemory": errTotal, "FreeMemory": errFree,
	} {
		if err == nil {
			t.Errorf("%s after Close: no error", what)
		}
	}
	r.gpu.AbortCapture(st)
	if !r.gpu.StreamIsCapturing(st) {
		t.Error("a status that cannot be had counts as capturing")
	}
	if r.gpu.HasModule(Module) {
		t.Error("a closed GPU has a module")
	}
	// Telemetry that is late gets errors too.
	if err := d.CreateEvents(make([]cudaevents.Event, 2)); err == nil {
		t.Error("CreateEvents after Close: no error")
	}
	if rec := d.Record(1, st); rec.Result == cudaevents.Success && !rec.Capturing {
		t.Errorf("Record after Close: %+v", rec)
	}
	if _, res, _ := d.Elapsed(0, make([]cudaevents.Pair, 1), make([]cudaevents.Times, 1)); res == cudaevents.Success || res == cudaevents.NotReady {
		t.Errorf("Elapsed after Close: %d", res)
	}
	if _, res := d.Since(1, 2); res == cudaevents.Success || res == cudaevents.NotReady {
		t.Errorf("Since after Close: %d", res)
	}
	if try := d.Anchor(1, st, 1000); try.Result == cudaevents.Success || try.Result == cudaevents.NotReady {
		t.Errorf("Anchor after Close: %+v", try)
	}
	if res := d.Pending(1); res == cudaevents.Success || res == cudaevents.NotReady {
		t.Errorf("Pending after Close: %d", res)
	}
}

func closeBusy(s *suite, t *testing.T) {
	x := s.telemetry(t, "kernel")
	st, gone := x.stream(), x.stream()
	p := x.words(8, 1)
	step := x.armed()
	l := x.dev.LaneBegin(step, x.hub.Lane("decode"), st)
	for range 10 {
		x.spin(st, time.Millisecond)
		x.scale(st, p, 2, 8)
	}
	l.End()
	step.End()
	x.spin(gone, 5*time.Millisecond)
	x.scale(gone, x.words(8, 1), 1, 8) // of its own: the two run at once
	x.ok(x.gpu.DestroyStream(gone))
	x.ok(x.gpu.Close())
	spans := x.spans()
	if len(spans) != 21 {
		t.Errorf("%d spans landed, want the lane and 20 kernels", len(spans))
	}
}

func closeCapturing(s *suite, t *testing.T) {
	x := s.telemetry(t, "lane")
	st := x.stream()
	p := x.words(8, 1)
	x.ok(x.gpu.BeginCapture(st))
	x.scale(st, p, 2, 8)
	x.ok(x.gpu.CopyHtoDAsync(p, []byte{1}, st))
	x.ok(x.gpu.Close())
	// The device is none the worse.
	r := s.rig(t, nil)
	q := r.words(2, 5)
	r.wantAll("afterwards", r.gpu.DefaultStream(), q, 5, 2)
}

func closeRacing(s *suite, t *testing.T) {
	for range 5 {
		x := s.telemetry(t, "kernel")
		st := x.stream()
		p := x.words(8, 1)
		x.hub.Arm(1000)
		var wg sync.WaitGroup
		var launched, refused atomic.Int64
		for range 4 {
			wg.Go(func() {
				step := x.hub.StepBegin()
				for refused.Load() == 0 {
					l := x.dev.LaneBegin(step, x.hub.Lane("decode"), st)
					if err := x.tryLaunch(st, kScale, backend.Ptr(p), backend.U32(1), backend.U32(8)); err != nil {
						refused.Add(1)
					} else {
						launched.Add(1)
					}
					l.End()
				}
				step.End()
			})
		}
		until(t, "some launches are made", func() bool { return launched.Load() > 20 })
		x.ok(x.gpu.Close())
		wg.Wait()
		if refused.Load() == 0 {
			t.Error("no launch was refused after Close")
		}
	}
}

// closeAllocating: an allocation that was made is swept, however close to Close it was.
// There are more goroutines than processors, so that some are stopped anywhere.
func closeAllocating(s *suite, t *testing.T) {
	for range 20 {
		r := s.rig(t, nil)
		var wg sync.WaitGroup
		var made atomic.Int64
		for w := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					var err error
					switch (w + i) % 8 {
					case 0:
						_, err = r.gpu.AllocArena(100)
					case 1:
						_, err = r.gpu.AllocManaged(100)
					default:
						_, err = r.gpu.Alloc(100)
					}
					if err != nil {
						return
					}
					made.Add(1)
				}
			})
		}
		until(t, "some allocations are made", func() bool { return made.Load() > 100 })
		r.ok(r.gpu.Close())
		wg.Wait()
		if m := r.totals(); m.LiveBytes != 0 || m.LiveCount != 0 || m.ArenaBytes != 0 {
			t.Fatalf("%d made, %d live and %d bytes of arenas after Close", made.Load(), m.LiveCount, m.ArenaBytes)
		}
	}
}

func closeOpenLanes(s *suite, t *testing.T) {
	x := s.telemetry(t, "lane")
	st := x.stream()
	step := x.hub.StepBegin()
	l := x.dev.LaneBegin(step, x.hub.Lane("decode"), st)
	x.spin(st, time.Millisecond)
	if err := x.gpu.Close(); err == nil {
		t.Error("a lane that was never ended did not hold the drain up")
	}
	l.End()
	step.End()
	if c := x.hub.Ring().Counters(); c.InFlight() != 0 {
		t.Errorf("spans are in flight after Close: %s", counters(c))
	}
}

// closeAfterHub closes the hub first: the GPU works on, without telemetry.
func closeAfterHub(s *suite, t *testing.T) {
	x := s.telemetry(t, "kernel")
	st := x.stream()
	p := x.words(8, 1)
	step := x.armed()
	l := x.dev.LaneBegin(step, x.hub.Lane("decode"), st)
	x.spin(st, 2*time.Millisecond)
	l.End()
	step.End()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	x.ok(x.hub.Close(ctx))
	if c := x.hub.Ring().Counters(); c.InFlight() != 0 || c.Failed() != 0 {
		t.Errorf("the hub did not drain: %s", counters(c))
	}
	step = x.hub.StepBegin()
	l = x.dev.LaneBegin(step, x.hub.Lane("decode"), st)
	x.scale(st, p, 9, 8)
	l.End()
	step.End()
	x.wantAll("without a hub", st, p, 9, 8)
	x.ok(x.gpu.Close())
}
