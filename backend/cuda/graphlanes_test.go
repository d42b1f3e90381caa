//go:build cgo

package cuda

import (
	"slices"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/conformance"
	"github.com/lanetrace/lanetrace/spanring"
)

// TestGraphLaneCost prints what lanes inside a graph of 200 kernels cost its
// replays, and how many of the lanes could be read: waiting for each replay, and
// launching one behind the other.
func TestGraphLaneCost(t *testing.T) {
	lib := anyDriver(t)
	const kernels, replays = 200, 200
	hub, err := lanetrace.OpenHeap(lanetrace.Config{Level: "lane", NoCalibration: true, Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer hub.Close(t.Context()) //nolint:errcheck // the GPU is closed first
	g := openTest(t, Config{Library: lib, Hub: hub, GraphLanes: true})
	defer func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(g.LoadModule(conformance.Module, conformance.Image))
	k, err := g.Kernel(conformance.Module, "lt_test_fill")
	ok(err)
	s, err := g.CreateStream()
	ok(err)
	p, err := g.Alloc(4096)
	ok(err)
	l := backend.Launch{Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{32, 1, 1}, Stream: s, Args: []backend.Arg{backend.Ptr(p), backend.U32(1), backend.U32(32)}}
	lane := hub.Lane("inside")
	capture := func(lanes int) backend.Graph {
		step := hub.StepBegin()
		defer step.End()
		ok(g.BeginCapture(s))
		for i := range max(lanes, 1) {
			var in lanetrace.Lane
			if lanes > 0 {
				in = g.Telemetry().LaneBegin(step, lane, s)
			}
			for j := range kernels {
				if j*max(lanes, 1)/kernels == i {
					ok(g.Launch(k, &l))
				}
			}
			in.End()
		}
		gr, err := g.EndCapture(s)
		ok(err)
		return gr
	}
	counters := func() (c spanring.Counters) { return hub.Ring().Counters() }
	for _, async := range []bool{false, true} {
		for _, lanes := range []int{0, 1, 20} {
			gr := capture(lanes)
			before := counters()
			var took []time.Duration
			begin := time.Now()
			for range replays {
				at := time.Now()
				step := hub.StepBegin()
				g.Telemetry().Bind(step, s)
				ok(g.LaunchGraph(gr, s))
				if !async {
					ok(g.Synchronize(s))
				}
				step.End()
				took = append(took, time.Since(at))
			}
			ok(g.Synchronize(s))
			each := time.Since(begin) / replays
			ok(g.Telemetry().Recorder().Drain(t.Context()))
			after := counters()
			slices.Sort(took)
			replayed := after[spanring.FailReplayed.Counter()] - before[spanring.FailReplayed.Counter()]
			landed := after[spanring.CtrLanded] - before[spanring.CtrLanded] - replays // the steps land too
			if want := uint64(lanes * replays); landed+replayed != want {
				t.Errorf("%d lanes, async %v: %d landed, %d replayed, want %d in all", lanes, async, landed, replayed, want)
			}
			if !async && replayed > 0 {
				t.Errorf("%d lanes, synchronous: %d replayed", lanes, replayed)
			}
			share := 100.0
			if lanes > 0 {
				share = 100 * float64(landed) / float64(lanes*replays)
			}
			t.Logf("MEASURED graph of %d kernels, %2d lanes inside, async %v: %v a replay (median call to done or launched %v); %.1f %% of its lanes read",
				kernels, lanes, async, each, took[len(took)/2], share)
			ok(g.DestroyGraph(gr))
		}
	}
}
