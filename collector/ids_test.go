package collector

import (
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestIDsStay: who has stored a trace's id must find it again after an upgrade.
func TestIDsStay(t *testing.T) {
	tr := StepTraceID(spanring.RunID{1, 2, 3}, 7)
	for _, tt := range []struct{ what, got, want string }{
		{"trace", tr.String(), "50374ba0f2f8e8f8a4f19bc8c7f4c97d"},
		{"root", tr.RootID().String(), "b3ffbb567e0031e7"},
		{"host", tr.HostID().String(), "e03acad12fcbe257"},
		{"span 1", tr.SpanID(1).String(), "d5eae60d4d94d5cd"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s id is %s, want %s", tt.what, tt.got, tt.want)
		}
	}
}

func TestSpanIDsDiffer(t *testing.T) {
	tr := StepTraceID(spanring.RunID{9}, 1)
	seen := map[SpanID]uint64{tr.RootID(): 0, tr.HostID(): 1 << 32}
	for o := range uint32(100_000) {
		id := tr.SpanID(o + 1)
		if other, ok := seen[id]; ok {
			t.Fatalf("ordinals %d and %d share %s", o+1, other, id)
		}
		seen[id] = uint64(o + 1)
	}
	if a := testing.AllocsPerRun(100, func() { _ = StepTraceID(spanring.RunID{1}, 5).SpanID(4) }); a > 0 {
		t.Errorf("%v allocations", a)
	}
}
