package collector

import "testing"

func TestLiveSelector(t *testing.T) {
	for _, tt := range []struct {
		name string
		l    LiveSelector
		s    Step
		want ExportReason
	}{
		{"ordinary", LiveSelector{}, Step{Number: 999}, ExportNone},
		{"one in 1,000", LiveSelector{}, Step{Number: 2000}, ExportOneInN},
		{"one in 3", LiveSelector{OneInN: 3}, Step{Number: 9}, ExportOneInN},
		{"none in N", LiveSelector{OneInN: -1}, Step{Number: 1000}, ExportNone},
		{"armed", LiveSelector{OneInN: -1}, Step{Number: 1, Armed: true}, ExportArmed},
		{"failed before armed", LiveSelector{}, Step{Number: 1, Armed: true, FailedCount: 1}, ExportFailed},
		{"launch diff before armed", LiveSelector{OneInN: -1}, Step{Number: 1, Armed: true, LaunchDiffCount: 1}, ExportLaunchDiff},
		{"dropped", LiveSelector{}, Step{Number: 1, Dropped: 1}, ExportDropped},
		{"left out", LiveSelector{}, Step{Number: 1, LeftOut: 1}, ExportDropped},
		{"incomplete before all", LiveSelector{}, Step{Number: 1000, FailedCount: 1, Incomplete: IncompleteTimeout}, ExportIncomplete},
	} {
		got, not := tt.l.Select(&tt.s)
		if got != tt.want || (got == ExportNone && not != NotOneInN) {
			t.Errorf("%s: %v (%v), want %v", tt.name, got, not, tt.want)
		}
	}
	if got, _ := (SelectAll{}).Select(&Step{Number: 3}); got != ExportAll {
		t.Errorf("all: %v", got)
	}
}

func TestSelectionReachesExporterAndLedger(t *testing.T) {
	src := newMemSource("a")
	k := &keep{settle: true}
	p, _ := run(t, src, ProcessorOptions{Exporter: k, Selector: LiveSelector{OneInN: 4}})
	for n := uint64(1); n <= 10; n++ {
		src.push(begin(n, 100), lane(n, 1, 1, 110, 10), end(n, 100, 200, 1))
	}
	pollAll(t, p)
	if len(k.steps) != 2 || k.steps[0].Number != 4 || k.steps[1].Number != 8 || k.reasons[0] != ExportOneInN {
		t.Errorf("exported %v", k.steps)
	}
	want := SidecarCounts{Received: 20, Exported: 4, NotSelected: [NumNotSelected]uint64{NotOneInN: 16}}
	if got := p.Engine().Ledger().Counts(); got != want {
		t.Errorf("ledger %+v, want %+v", got, want)
	}
}
