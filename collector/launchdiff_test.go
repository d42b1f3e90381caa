package collector

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lanetrace/lanetrace/spanring"
)

// launchDiff is an execution that differs in a few operations.
func launchDiff(step uint64, region spanring.NameID, inserted, removed, changed uint32) *spanring.LaunchDiff {
	return &spanring.LaunchDiff{
		Region: region, Step: step, MonoNS: 150, Before: 100, After: 100 + inserted - removed,
		Inserted: inserted, Removed: removed, Changed: changed,
	}
}

func TestLaunchDiffOnItsStep(t *testing.T) {
	src := newMemSource("decode", "prefill")
	p, k := run(t, src, ProcessorOptions{})
	src.push(
		&spanring.LaunchDiff{Region: 1, Step: 1, MonoNS: 10, First: true, After: 100},
		begin(1, 100), end(1, 100, 200, 0),
		begin(2, 100), launchDiff(2, 1, 0, 0, 0), end(2, 100, 200, 0),
		begin(3, 100), launchDiff(3, 1, 2, 1, 4), launchDiff(3, 2, 0, 0, 1), end(3, 100, 200, 0),
		launchDiff(0, 1, 1, 0, 0), // outside of steps
		launchDiff(3, 1, 1, 0, 0), // after its step closed
		&spanring.LaunchDiff{Before: 1, After: 5},
	)
	pollAll(t, p)
	if len(k.steps) != 3 {
		t.Fatalf("%d steps", len(k.steps))
	}
	for _, s := range k.steps[:2] {
		if s.LaunchDiffCount != 0 {
			t.Errorf("step %d has %d launch diffs", s.Number, s.LaunchDiffCount)
		}
	}
	s := k.steps[2]
	if s.LaunchDiffCount != 2 || len(s.LaunchDiffs) != 2 {
		t.Fatalf("%d launch diffs, %d kept", s.LaunchDiffCount, len(s.LaunchDiffs))
	}
	got := s.LaunchDiffs[0]
	if d := cmp.Diff(*launchDiff(3, 1, 2, 1, 4), got.LaunchDiff); d != "" || got.Text.Text != "decode" || s.LaunchDiffs[1].Text.Text != "prefill" {
		t.Errorf("of %s: %s", got.Text, d)
	}
	want := []LaunchRegion{
		{Region: "decode", Executions: 5, Differing: 3, DifferingOps: 9, Last: *launchDiff(3, 1, 1, 0, 0)},
		{Region: "prefill", Executions: 1, Differing: 1, DifferingOps: 1, Last: *launchDiff(3, 2, 0, 0, 1)},
	}
	if d := cmp.Diff(want, p.Engine().LaunchRegions()); d != "" {
		t.Errorf("regions (-want +got):\n%s", d)
	}
	sum := &p.Engine().sum
	if sum.malformed != 1 || sum.lateEntries != 1 || sum.otherEntries != 0 {
		t.Errorf("%d malformed, %d late, %d others", sum.malformed, sum.lateEntries, sum.otherEntries)
	}
	// It is no span.
	a := p.Engine().Account()
	if u := a.Unbalanced(); len(u) > 0 || s.Units() != 1 {
		t.Errorf("unbalanced %v, %d units", u, s.Units())
	}
	if r, _ := NewLiveSelector(LiveOptions{OneInN: -1}).Select(s); r != ExportLaunchDiff {
		t.Errorf("exported as %v", r)
	}
}

// TestLaunchDiffsOfAStepAreBounded: what is not kept is counted, and a step that is
// used again has none.
func TestLaunchDiffsOfAStepAreBounded(t *testing.T) {
	src := newMemSource("decode")
	p, k := run(t, src, ProcessorOptions{})
	src.push(begin(1, 100))
	for range MaxLaunchDiffs + 5 {
		src.push(launchDiff(1, 1, 0, 0, 1))
	}
	src.push(end(1, 100, 200, 0))
	pollAll(t, p)
	src.push(begin(2, 100), end(2, 100, 200, 0))
	pollAll(t, p)
	if s := k.steps[0]; s.LaunchDiffCount != MaxLaunchDiffs+5 || len(s.LaunchDiffs) != MaxLaunchDiffs {
		t.Errorf("%d launch diffs, %d kept", s.LaunchDiffCount, len(s.LaunchDiffs))
	}
	if s := k.steps[1]; s.LaunchDiffCount != 0 || len(s.LaunchDiffs) != 0 {
		t.Errorf("the next step has %d", s.LaunchDiffCount)
	}
}

// points are a counter's values by region.
func points(t *testing.T, r *sdkmetric.ManualReader, name string) map[string]int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &rm); err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			if m.Name != name {
				continue
			}
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				v, _ := p.Attributes.Value(labelRegion)
				out[v.AsString()] = p.Value
			}
		}
	}
	return out
}

// TestLaunchDiffMetrics: by region from its first execution on, other from the
// start, and never more regions than are kept apart.
func TestLaunchDiffMetrics(t *testing.T) {
	const regions = maxRegions + 10
	var names []string
	for i := range regions {
		names = append(names, fmt.Sprintf("region %02d", i))
	}
	src := newMemSource(names...)
	in := NewInstruments(InstrumentOptions{})
	reader := sdkmetric.NewManualReader()
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	defer mp.Shutdown(context.Background())
	if err := in.Register(mp.Meter("test")); err != nil {
		t.Fatal(err)
	}
	p, _ := run(t, src, ProcessorOptions{Instruments: in})
	if d := cmp.Diff(map[string]int64{"other": 0}, points(t, reader, "lanetrace.launchtrace.differing_ops")); d != "" {
		t.Errorf("at the start (-want +got):\n%s", d)
	}
	src.push(&spanring.LaunchDiff{Region: 1, First: true, After: 7}, launchDiff(0, 1, 1, 2, 3), launchDiff(0, 1, 0, 0, 0), launchDiff(0, 2, 0, 0, 5))
	pollAll(t, p)
	for name, want := range map[string]map[string]int64{
		"lanetrace.launchtrace.executions":           {"other": 0, "region 00": 3, "region 01": 1},
		"lanetrace.launchtrace.differing_executions": {"other": 0, "region 00": 1, "region 01": 1},
		"lanetrace.launchtrace.differing_ops":        {"other": 0, "region 00": 6, "region 01": 5},
	} {
		if d := cmp.Diff(want, points(t, reader, name)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	for i := range regions {
		src.push(launchDiff(0, spanring.NameID(i+1), 0, 0, 1))
	}
	pollAll(t, p)
	got := points(t, reader, "lanetrace.launchtrace.differing_ops")
	if len(got) != maxRegions+1 || got["other"] != regions-maxRegions || got["region 00"] != 7 {
		t.Errorf("%d regions, %d others", len(got), got["other"])
	}
}
