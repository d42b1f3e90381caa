package web

import (
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
)

// stepsFor are steps to take in, as many as the benchmark's loop needs of them.
func stepsFor(b *testing.B) (steps []*collector.Step, spans int) {
	b.Helper()
	keep := collector.ObserverFunc(func(s *collector.Step) {
		steps = append(steps, s.Clone())
		spans += len(s.Spans)
	})
	p, err := collector.NewProcessor(synth.New(synth.Options{Duration: time.Second}), collector.ProcessorOptions{Observers: []collector.Observer{keep}})
	if err != nil {
		b.Fatal(err)
	}
	if err := p.Drain(); err != nil {
		b.Fatal(err)
	}
	if err := p.Close(); err != nil {
		b.Fatal(err)
	}
	return steps, spans
}

// What the page costs the goroutine that reads an engine, a step.
func BenchmarkObserveStep(b *testing.B) {
	steps, spans := stepsFor(b)
	p := New(Options{Engines: func() []*collector.Engine { return nil }, MemoryEvery: time.Hour})
	defer p.Close()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p.ObserveStep(steps[i%len(steps)])
	}
	b.ReportMetric(float64(spans)/float64(len(steps)), "spans/step")
}

// What a viewer costs, a step.
func BenchmarkEncodeSteps(b *testing.B) {
	steps, _ := stepsFor(b)
	t := newTrack(steps[0].Engine)
	for _, s := range steps {
		t.add(s)
	}
	var p picked
	var e stepsEncoder
	var buf []byte
	n := 0
	for b.Loop() {
		t.since(&p, 0, maxSpans, true)
		buf = e.append(buf[:0], &p, 0, 0)
		n += len(p.steps)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/step")
	b.ReportMetric(float64(len(buf))/float64(len(p.steps)), "B/step")
}
