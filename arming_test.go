package lanetrace

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

func TestStrideArmsOneInSoMany(t *testing.T) {
	var a arming
	a.init(64, 0.003)
	var armed []int
	for i := 1; i <= 256; i++ {
		if is, asked := a.next(); is {
			if asked {
				t.Errorf("step %d is armed as asked for", i)
			}
			armed = append(armed, i)
		}
		a.ended(10_000_000, false, 0) // 10 ms steps: nothing to raise
	}
	if len(armed) != 4 || armed[0] != 64 || armed[3] != 256 {
		t.Errorf("armed steps %v, want 64, 128, 192, 256", armed)
	}
}

func TestRequestsComeOnTop(t *testing.T) {
	var a arming
	a.init(1000, 0.003)
	a.request(2)
	a.request(1)
	n := 0
	for range 10 {
		if is, asked := a.next(); is && asked {
			n++
		}
	}
	if n != 3 || a.requested() != 0 {
		t.Errorf("%d steps armed, %d still asked for, want 3 and 0", n, a.requested())
	}
}

// TestBudgetHolds changes the load under the arming and checks, from the lengths
// alone, that armed work stays within the budget of the time of the steps since.
func TestBudgetHolds(t *testing.T) {
	for _, c := range []struct {
		name     string
		stepNS   int64
		launches uint32
		want     uint32 // stride
	}{
		{"long steps stay at the default", 10_000_000, 60, 64},
		{"1 ms, 60 launches", 1_001_000, 60, 70},
		{"short steps, many launches", 200_000, 400, 2334},
		{"no launches", 1_000, 0, 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a arming
			a.init(64, 0.003)
			// It comes from another load.
			for range 200 {
				a.next()
				a.ended(50_000, false, 0)
			}
			var total, cost float64
			settled := false
			for i := range 200_000 {
				armed, _ := a.next()
				if settled {
					total += float64(c.stepNS)
					if armed {
						cost += float64(c.launches) * armedKernelCostNS
					}
				}
				if armed {
					a.ended(c.stepNS, true, c.launches)
				} else {
					a.ended(c.stepNS, false, 0)
				}
				settled = settled || armed && i > 5000
			}
			if got := a.stride(); got != c.want {
				t.Errorf("stride %d, want %d", got, c.want)
			}
			if share := cost / total; share > 0.003*1.01 {
				t.Errorf("armed work took %.5f of step time, budget 0.003", share)
			}
			if s := a.share(); s > 0.003 {
				t.Errorf("reckoned share %v", s)
			}
		})
	}
}

// TestLanesBoundTheStep: an asynchronous engine's host part is short, and the
// budget goes by the lanes.
func TestLanesBoundTheStep(t *testing.T) {
	var a arming
	a.init(64, 0.003)
	for range 500 {
		a.ended(100_000, false, 0)
		a.laneNS.observe(1_000_000)
	}
	a.ended(100_000, true, 60)
	if got := a.stride(); got != 70 {
		t.Errorf("stride %d, want 70 of 1 ms lanes", got)
	}
}

func TestOneStallDoesNotOpenTheGate(t *testing.T) {
	var m runningMean
	for range 100 {
		m.observe(1_000_000)
	}
	m.observe(math.MaxInt64)
	if got := m.load(); got > 1_400_000 {
		t.Errorf("mean %v ns after one stall, want at most 1.4 ms", got)
	}
	m.observe(-5)
	m.observe(0)
	if got := m.load(); got > 1_400_000 || got < 1_000_000 {
		t.Errorf("mean %v after nonsense", got)
	}
}

// TestAskedForStepsSaySo: a step's begin tells the steps that were asked for from
// those that come round.
func TestAskedForStepsSaySo(t *testing.T) {
	r := newRig(t, Config{Level: "kernel", KernelSpanEvery: 4})
	r.hub.Arm(2)
	for range 5 {
		r.hub.StepBegin().End()
	}
	var got []string
	for _, e := range r.entries() {
		if e.Words.Kind() != spanring.KindStepBegin {
			continue
		}
		b, err := e.Words.StepBegin()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d armed %v asked %v", b.Step, b.Armed, b.Asked))
	}
	want := []string{
		"1 armed true asked true", "2 armed true asked true", "3 armed false asked false", "4 armed true asked false", "5 armed false asked false",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
