//go:build cgo

package cuda

import (
	"context"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/conformance"
	"github.com/lanetrace/lanetrace/backend/cuda/internal/raw"
)

// BenchmarkAgainstC holds what the serving thread pays against the same driver
// calls in a loop of plain C, in alternating batches short enough never to fill
// the driver's queue: ns/op is ours, C-ns/op C's, ratio the one by the other.
//
// On a machine with a GPU (LANETRACE_TEST_GPU=1) these are the costs; on the
// stand-in driver they only show that the benchmark runs.
func BenchmarkAgainstC(b *testing.B) {
	lib := anyDriver(b)
	for _, c := range []struct {
		name            string
		records, launch bool
	}{
		{"lane", true, false},
		{"launch", false, true},
		{"timed launch", true, true},
	} {
		for _, bound := range []bool{true, false} {
			name := c.name + "/thread without a context"
			if bound {
				name = c.name + "/thread with the context"
			}
			b.Run(name, func(b *testing.B) { againstC(b, lib, c.records, c.launch, bound) })
		}
	}
}

func againstC(b *testing.B, lib string, records, launch, bound bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ok := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	hub, err := lanetrace.OpenHeap(lanetrace.Config{
		Level: "kernel", HarvestEvery: -1, NoCalibration: true, KernelSpanEvery: 1 << 30, Logger: slog.New(slog.DiscardHandler),
	})
	ok(err)
	defer hub.Close(context.Background()) //nolint:errcheck // the GPU is closed first
	g, err := Open(Config{Library: lib, Hub: hub})
	ok(err)
	defer func() { ok(g.Close()) }()
	ok(g.LoadModule(conformance.Module, conformance.Image))
	k, err := g.Kernel(conformance.Module, "lt_spin")
	ok(err)
	s, err := g.CreateStream()
	ok(err)
	rd, err := raw.Open(lib)
	ok(err)
	inC, err := rd.Bench(conformance.Image, "lt_spin")
	ok(err)
	defer inC.Close()

	dev, lane := g.Telemetry(), hub.Lane("decode")
	l := backend.Launch{Grid: one, Block: one, Stream: s, Args: []backend.Arg{backend.U64(1)}}
	const batch = 100
	ours := func(n int) time.Duration {
		if records && launch {
			hub.Arm(1)
		}
		step := hub.StepBegin()
		if launch {
			dev.Bind(step, s)
		}
		begin := time.Now()
		switch {
		case launch:
			for range n {
				ok(g.Launch(k, &l))
			}
		default:
			for range n {
				dev.LaneBegin(step, lane, s).End()
			}
		}
		d := time.Since(begin)
		dev.Bind(lanetrace.Step{}, s)
		step.End()
		ok(g.Synchronize(s))
		hub.Harvest()
		return d
	}
	theirs := func(n int) time.Duration {
		d, err := inC.Run(n, records, launch)
		ok(err)
		return d
	}
	onThread := func(f func(int) time.Duration, n int) time.Duration {
		if !bound { // C's loop needs one
			ok(inC.Unbind())
			defer func() { ok(inC.Bind()) }()
		}
		return f(n)
	}
	onThread(ours, batch)
	theirs(batch)
	var sum, sumC time.Duration
	for n := b.N; n > 0; n -= batch {
		sum += onThread(ours, min(n, batch))
		sumC += theirs(min(n, batch))
	}
	b.ReportMetric(float64(sum)/float64(b.N), "ns/op")
	b.ReportMetric(float64(sumC)/float64(b.N), "C-ns/op")
	b.ReportMetric(float64(sum)/float64(sumC), "ratio")
}
