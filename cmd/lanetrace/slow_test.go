package main

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// reasonCounts is an exporter that counts steps by why they are exported.
type reasonCounts struct {
	mu sync.Mutex
	n  map[collector.ExportReason]int
}

func (r *reasonCounts) Export(s *collector.Step, reason collector.ExportReason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n[reason]++
	s.Engine.Ledger().Export(s.Units())
}

func (r *reasonCounts) of(reason collector.ExportReason) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n[reason]
}

// TestSlowStepArmsARealEngine: an engine whose step is slow is asked by what reads
// it, arms the next steps, and their traces are exported as asked for.
func TestSlowStepArmsARealEngine(t *testing.T) {
	path := t.TempDir()
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	hub, err := lanetrace.Open(lanetrace.Config{Dir: path, Level: "kernel", KernelSpanEvery: 1_000_000, Service: "slow"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hub.Close(context.Background()) })
	flags := selectFlags{Every: 1_000_000_000}
	side := slowArmFlags{SlowArms: 3}
	x := &reasonCounts{n: make(map[collector.ExportReason]int)}
	col, err := collector.New(collector.Options{
		Dir: spanring.Dir{Path: path, Group: -1}, Processor: collector.ProcessorOptions{Exporter: x},
		GPUWait: time.Millisecond, Rescan: 5 * time.Millisecond, NewSelector: flags.selection(side.arms(&app{log: newLogger(t.Output())})),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- col.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	step := func(ns int64) {
		s := hub.StepBegin()
		for end := spanring.MonoNS() + ns; spanring.MonoNS() < end; {
		}
		s.End()
	}
	for range 400 {
		step(50_000)
	}
	step(20_000_000)
	eventually(t, "a step is exported as slow", func() bool { return x.of(collector.ExportSlow) > 0 })
	// Engines look for requests four times a second.
	eventually(t, "three steps are exported as asked for", func() bool {
		step(50_000)
		return x.of(collector.ExportAsked) >= 3
	})
	// A machine that is slow makes other steps slow, which ask as well after a while.
	if n := hub.Ring().Counter(spanring.CtrControlApplied); n == 0 {
		t.Error("no request was acted on")
	}
	if n := x.of(collector.ExportArmed); n > 0 {
		t.Errorf("%d steps are exported as armed by their turn", n)
	}
}
