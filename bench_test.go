package lanetrace

import (
	"context"
	"testing"

	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

func benchHub(tb testing.TB, level string) (*Hub, *Device, LaneID) {
	tb.Helper()
	h, err := OpenHeap(Config{Level: level, HarvestEvery: -1, NoCalibration: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { h.Close(context.Background()) })
	dev, err := h.Attach(scripted.New(scripted.Options{RealTime: true}))
	if err != nil {
		tb.Fatal(err)
	}
	return h, dev, h.Lane("decode")
}

// BenchmarkOff is what each entry point takes at level off: aim under 2 ns.
func BenchmarkOff(b *testing.B) {
	h, dev, lane := benchHub(b, "off")
	step := h.StepBegin()
	b.Run("step_begin", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h.StepBegin()
		}
	})
	b.Run("step_end", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			step.End()
		}
	})
	b.Run("lane_begin", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			dev.LaneBegin(step, lane, 0)
		}
	})
	var l Lane
	b.Run("lane_end", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l.End()
		}
	})
	b.Run("launch", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if dev.Timing() {
				b.Fatal("timing at off")
			}
		}
	})
	b.Run("attrs", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			step.SetAttrs(Attrs{BatchSize: 1})
		}
	})
}

// BenchmarkStep is a step at basic: two log entries and two readings of the clock.
func BenchmarkStep(b *testing.B) {
	h, _, _ := benchHub(b, "basic")
	b.ReportAllocs()
	for b.Loop() {
		h.StepBegin().End()
	}
}

// BenchmarkLane is a lane's begin and end over the scripted driver and the harvest
// that lands it; the driver's own time is in docs/h200.md.
func BenchmarkLane(b *testing.B) {
	h, dev, lane := benchHub(b, "lane")
	step := h.StepBegin()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		dev.LaneBegin(step, lane, 0).End()
		if n++; n%64 == 0 {
			h.Harvest()
		}
	}
}

// TestNoAllocations holds that nothing an engine calls allocates once its names
// and streams are known.
func TestNoAllocations(t *testing.T) {
	for _, level := range []string{"off", "basic", "lane", "kernel"} {
		h, err := OpenHeap(Config{Level: level, HarvestEvery: -1, NoCalibration: true, KernelSpanEvery: 1, KernelBudget: 1})
		if err != nil {
			t.Fatal(err)
		}
		drv := &inert{Driver: scripted.New(scripted.Options{RealTime: true})}
		dev, err := h.Attach(drv)
		if err != nil {
			t.Fatal(err)
		}
		lane, other := h.Lane("decode"), h.Lane("sample")
		name := dev.Name(spanring.NameKernel, "k")
		step := func() {
			s := h.StepBegin()
			s.SetAttrs(Attrs{BatchSize: 1})
			dev.Bind(s, 0)
			l := dev.LaneBegin(s, lane, 0)
			if dev.Timing() {
				if x, ok := dev.LaunchBegin(spanring.KindKernel, 0, name); ok {
					dev.LaunchEnd(x, inertLaunch)
				}
			}
			l.Next(other).End()
			s.End()
			h.Harvest()
		}
		for range 100 {
			step()
		}
		if n := testing.AllocsPerRun(1000, step); n != 0 {
			t.Errorf("level %s: %v allocations a step", level, n)
		}
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}
