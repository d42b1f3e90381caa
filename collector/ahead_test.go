package collector_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

// TestHostAStepAheadThroughARing: an engine that really runs a step ahead of its
// GPU, from its calls through ring and reader to steps. Nothing is refused, no
// stamp is moved, and every root covers its lanes.
func TestHostAStepAheadThroughARing(t *testing.T) {
	const steps, laneNS = 60, 1_000_000
	hub, err := lanetrace.OpenHeap(lanetrace.Config{Level: "lane", HarvestEvery: -1, NoCalibration: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	drv := scripted.New(scripted.Options{RealTime: true})
	dev, err := hub.Attach(drv)
	if err != nil {
		t.Fatal(err)
	}
	prefill, decode, s := hub.Lane("prefill"), hub.Lane("decode"), drv.NewStream()
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !ok(); {
			if time.Now().After(end) {
				t.Fatalf("waited in vain until %s", what)
			}
			hub.Harvest()
		}
	}
	for range steps {
		step := hub.StepBegin()
		l := dev.LaneBegin(step, prefill, s)
		drv.Work(s, laneNS)
		l = l.Next(decode)
		drv.Work(s, laneNS)
		l.End()
		step.End()
		// The step before is through; this one is about to begin on the GPU.
		until("the step before has landed", func() bool { return dev.Recorder().InFlight() <= 2 })
	}
	until("all have landed", func() bool { return dev.Recorder().InFlight() == 0 })
	rd, err := spanring.NewHeapReader(hub.Ring(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := hub.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	rd.MarkDead()

	var got []*collector.Step
	p, err := collector.NewProcessor(collector.NewRingSource(rd), collector.ProcessorOptions{
		Observers: []collector.Observer{collector.ObserverFunc(func(s *collector.Step) { got = append(got, s.Clone()) })},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	a := p.Engine().Account()
	if p := &a.Producer; p.Begun != 3*steps || p.Landed != 3*steps || p.Dropped != 0 || len(a.Unbalanced()) > 0 {
		t.Errorf("account %+v", a)
	}
	for reason, n := range a.Producer.Failed {
		if n > 0 {
			t.Errorf("%d spans failed: %s", n, reason)
		}
	}
	if len(got) != steps {
		t.Fatalf("%d steps, want %d", len(got), steps)
	}
	ahead, overlap := 0, 0
	for i, s := range got {
		if s.Incomplete != collector.Complete || s.Faulty() || len(s.Spans) != 2 || s.Number != uint64(i+1) {
			t.Fatalf("step %d: %+v", i+1, s)
		}
		from, to := s.Bounds()
		for _, sp := range s.Spans {
			if sp.StartMonoNS < from || sp.EndMonoNS() > to || sp.RawNS < laneNS {
				t.Errorf("step %d from %d to %d has a lane from %d, %d ns long", s.Number, from, to, sp.StartMonoNS, sp.RawNS)
			}
		}
		if s.BeginMonoNS != from || to != max(s.EndMonoNS, s.Spans[1].EndMonoNS()) {
			t.Errorf("step %d covers %d to %d, its host part %d to %d", s.Number, from, to, s.BeginMonoNS, s.EndMonoNS)
		}
		if s.Spans[0].StartMonoNS > s.EndMonoNS {
			ahead++
		}
		if i > 0 {
			if _, before := got[i-1].Bounds(); from < before {
				overlap++
			}
		}
	}
	// The first has nothing before it; a machine that is busy holds up others.
	if ahead < steps/4 || overlap < steps/4 {
		t.Errorf("%d of %d steps began on the GPU after the host had ended them, %d overlap the one before", ahead, steps, overlap)
	}
}
