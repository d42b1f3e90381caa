package conformance

import (
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/backend"
)

var costTests = []test{
	{"a recorded launch does not allocate", recordedLaunch},
	{"alloc and free do not allocate", allocFree},
}

// recordedLaunch: in the steady state of the launch trace neither a launch nor a
// memset allocates.
func recordedLaunch(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p := r.words(100, 1)
	l := backend.Launch{Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{32, 1, 1}, Stream: st, Args: []backend.Arg{backend.Ptr(p), backend.U32(1), backend.U32(100)}}
	region := r.gpu.LaunchTrace().Region("cost")
	for range 3 {
		region.Begin(uint64(st))
		for range 200 {
			r.ok(r.gpu.Launch(r.k[kFill], &l))
		}
		region.End(0, 0)
		r.sync(st)
	}
	var allocs float64
	seen(t, "launches that allocate nothing", func() bool {
		r.spin(st, 20*time.Millisecond) // a backend's own threads may allocate
		region.Begin(uint64(st))
		allocs = testing.AllocsPerRun(100, func() {
			if err := r.gpu.Launch(r.k[kFill], &l); err != nil {
				t.Error(err)
			}
		})
		region.Cancel()
		r.sync(st)
		return allocs < 1
	})
	if allocs >= 1 {
		t.Errorf("%v allocations a launch", allocs)
	}
}

// allocFree: once sites are known the ledger's part of an allocation takes nothing.
func allocFree(s *suite, t *testing.T) {
	if s.caps.Driverless {
		t.Skip("the sim's device memory is Go's")
	}
	r := s.rig(t, nil)
	pair := func() {
		p, err := r.gpu.Alloc(1000)
		if err != nil {
			t.Error(err)
		}
		if err := r.gpu.Free(p); err != nil {
			t.Error(err)
		}
	}
	pair()
	if allocs := testing.AllocsPerRun(100, pair); allocs > 0 {
		t.Errorf("%v allocations for an Alloc and a Free", allocs)
	}
}
