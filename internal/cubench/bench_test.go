//go:build cgo

package cubench_test

import (
	"os"
	"sort"
	"testing"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/cuda"
	"github.com/lanetrace/lanetrace/internal/cubench"
	"github.com/lanetrace/lanetrace/internal/ptx"
	"github.com/lanetrace/lanetrace/internal/testdriver"
	"github.com/lanetrace/lanetrace/spanring"
)

// spinPTX is one kernel, lt_spin(cycles).
var spinPTX = []byte(ptx.Header + ptx.Spin("lt_spin") + "\x00")

// BenchmarkServingThread sets a lane's begin and end against two raw event records
// in C, and a launch timed by lanetrace against record, launch, record in C, in
// turns within one run. On a machine without a GPU it runs on the stand-in driver
// and its figures mean nothing.
func BenchmarkServingThread(b *testing.B) {
	lib := "libcuda.so.1"
	if os.Getenv("LANETRACE_TEST_GPU") == "" {
		lib = testdriver.Build(b)
		b.Log("LANETRACE_TEST_GPU is not set: this is the stand-in driver")
	}
	if err := cubench.Open(lib, spinPTX); err != nil {
		b.Fatal(err)
	}
	hub, err := lanetrace.OpenHeap(lanetrace.Config{Level: "kernel", HarvestEvery: -1})
	if err != nil {
		b.Fatal(err)
	}
	gpu, err := cuda.Open(cuda.Config{Library: lib, Hub: hub})
	if err != nil {
		b.Fatal(err)
	}
	defer gpu.Close()
	if err := gpu.LoadModule("spin", spinPTX); err != nil {
		b.Fatal(err)
	}
	k, err := gpu.Kernel("spin", "lt_spin")
	if err != nil {
		b.Fatal(err)
	}
	s := gpu.DefaultStream()
	dev := gpu.Telemetry()
	lane, outer := hub.Lane("lane"), hub.Lane("outer")
	launch := backend.Launch{Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{1, 1, 1}, Stream: s, Args: []backend.Arg{backend.U64(2000)}}

	const batch = 200
	open := 0 // lanes that stay open meanwhile
	land := func() {
		if err := gpu.Synchronize(s); err != nil {
			b.Fatal(err)
		}
		for dev.Recorder().InFlight() > open {
			hub.Harvest()
		}
	}
	ours := func(f func()) float64 {
		land()
		t0 := now()
		for range batch {
			f()
		}
		ns := float64(now()-t0) / batch
		land()
		return ns
	}
	theirs := func(what int) float64 {
		ns, err := cubench.Run(what, batch, 2000)
		if err != nil {
			b.Fatal(err)
		}
		return ns
	}
	var lanes, records, timed, timedC, plainC, plain []float64
	for b.Loop() {
		records = append(records, theirs(cubench.Records))
		hub.Arm(1)
		step := hub.StepBegin()
		lanes = append(lanes, ours(func() { dev.LaneBegin(step, lane, s).End() }))
		timedC = append(timedC, theirs(cubench.TimedLaunch))
		o := dev.LaneBegin(step, outer, s)
		open = 1
		timed = append(timed, ours(func() {
			if err := gpu.Launch(k, &launch); err != nil {
				b.Fatal(err)
			}
		}))
		o.End()
		open = 0
		step.End()
		plainC = append(plainC, theirs(cubench.Launch))
		plain = append(plain, ours(func() {
			if err := gpu.Launch(k, &launch); err != nil {
				b.Fatal(err)
			}
		}))
	}
	med := func(v []float64) float64 {
		sort.Float64s(v)
		return v[len(v)/2]
	}
	b.ReportMetric(med(records), "C-two-records-ns")
	b.ReportMetric(med(lanes), "lane-ns")
	b.ReportMetric(med(lanes)/med(records), "lane/C")
	b.ReportMetric(med(timedC), "C-record-launch-record-ns")
	b.ReportMetric(med(timed), "timed-launch-ns")
	b.ReportMetric(med(timed)/med(timedC), "timed/C")
	b.ReportMetric(med(plainC), "C-launch-ns")
	b.ReportMetric(med(plain), "launch-ns")
	b.ReportMetric(0, "ns/op")
}

func now() int64 { return spanring.MonoNS() }
