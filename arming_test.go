package lanetrace

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// after ends a step that took so long on the host and timed launches.
func after(o *overhead, hostNS int64, armed, asked bool, launches uint32) {
	from := o.time.hostUntilNS.Load()
	o.ended(new(stepCost), &endedStep{beginNS: from, endNS: from + hostNS, armed: armed, asked: asked, launches: launches})
}

func TestStrideArmsOneInSoMany(t *testing.T) {
	var o overhead
	o.init(64, 0.003, 0)
	var armed []int
	for i := 1; i <= 256; i++ {
		is, asked, untimed := o.begin(true)
		if is {
			armed = append(armed, i)
		}
		if asked || untimed {
			t.Errorf("step %d: asked %v, untimed %v", i, asked, untimed)
		}
		after(&o, 10_000_000, is, asked, 60) // 10 ms steps: nothing to raise
	}
	if len(armed) != 4 || armed[0] != 64 || armed[3] != 256 {
		t.Errorf("armed steps %v, want 64, 128, 192, 256", armed)
	}
}

func TestRequestsComeOnTop(t *testing.T) {
	var o overhead
	o.init(8, 0.003, 0)
	o.arms.request(2)
	o.arms.request(8)
	var got []string
	for range 20 {
		armed, asked, _ := o.begin(true)
		got = append(got, map[[2]bool]string{{true, true}: "asked", {true, false}: "armed", {false, false}: "-"}[[2]bool{armed, asked}])
		after(&o, 1_000_000, armed, asked, 50)
	}
	// Ten that are asked for; then the one that was due at the eighth, whose cost
	// of 175 µs the next 58 steps cover.
	want := strings.Fields("asked asked asked asked asked asked asked asked asked asked armed - - - - - - - - -")
	if d := cmp.Diff(want, got); d != "" || o.arms.requested() != 0 {
		t.Errorf("%d still asked for (-want +got):\n%s", o.arms.requested(), d)
	}
	if want := int64(58_333_334 - 10*1_000_000); o.arms.budget.owedNS.Load() != want {
		t.Errorf("owed %d ns, want %d", o.arms.budget.owedNS.Load(), want)
	}
}

// TestOneOfManyIsArmed: of steps that begin at once, one takes what is due.
func TestOneOfManyIsArmed(t *testing.T) {
	for range 200 {
		var o overhead
		o.init(100, 0.003, 0)
		o.arms.until.Store(4)
		var armed atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if is, _, _ := o.begin(true); is {
					armed.Add(1)
				}
			})
		}
		wg.Wait()
		if n := armed.Load(); n != 1 {
			t.Fatalf("%d of 8 steps armed, want 1", n)
		}
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
