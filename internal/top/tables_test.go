package top

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
)

// Tables and seconds hold every lane and kernel that ran in full seconds.
func TestTables(t *testing.T) {
	v, e, _, kernels, _ := watched(t, synth.Options{Duration: 3500 * time.Millisecond})
	ts := v.Tables(e)
	secs := v.SecondsAfter(e, 0)
	if len(secs) < 3 || ts.Seconds != len(secs) {
		t.Fatalf("%d seconds, one by one %d", ts.Seconds, len(secs))
	}
	var steps int
	counts, sums := map[string]uint64{}, map[string]uint64{}
	for i, s := range secs {
		steps += s.Steps
		for _, l := range s.Lanes {
			counts[l.Name] += l.Count
			sums[l.Name] += l.SumNS
			if l.Count > 0 && (l.P50NS <= 0 || l.P99NS < l.P50NS) {
				t.Errorf("second %d: %+v", s.Second, l)
			}
		}
		if i > 0 && s.Second != secs[i-1].Second+1 {
			t.Errorf("second %d after %d", s.Second, secs[i-1].Second)
		}
	}
	if steps != ts.Steps || steps == 0 {
		t.Errorf("%d steps, one by one %d", ts.Steps, steps)
	}
	for i, l := range ts.Lanes {
		if l.Count != counts[l.Name] || l.SumNS != sums[l.Name] {
			t.Errorf("%+v, one by one %d lanes of %d ns", l, counts[l.Name], sums[l.Name])
		}
		if i > 0 && l.SumNS > ts.Lanes[i-1].SumNS {
			t.Errorf("lane %s is not in order", l.Name)
		}
	}
	got := map[string]float64{}
	for _, k := range ts.Kernels {
		got[k.Name] = float64(k.SumNS)
	}
	if d := cmp.Diff(kernels, got); d != "" || len(got) == 0 {
		t.Errorf("kernels (-want +got):\n%s", d)
	}
	if again := v.SecondsAfter(e, secs[len(secs)-2].Second); len(again) != 1 || again[0].Second != secs[len(secs)-1].Second {
		t.Errorf("after the last but one: %+v", again)
	}
	if v.SecondsAfter(e, math.MaxInt64-1) != nil || v.SecondsAfter(new(collector.Engine), 0) != nil || len(v.Tables(new(collector.Engine)).Lanes) != 0 {
		t.Error("something of nothing")
	}
}
