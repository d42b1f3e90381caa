package collector

import (
	"reflect"
	"testing"
	"time"
)

// TestExemplarsOutliveNoClock: of a bucket the latest exemplar stays, but not one of a
// wall clock that has been set back since, or of a ring that lies about its times.
func TestExemplarsOutliveNoClock(t *testing.T) {
	now := time.Now()
	b := newBuckets(stepBounds)
	for name, tt := range map[string]struct {
		kept, next, want time.Duration // after now
	}{
		"later":               {0, time.Second, time.Second},
		"a little earlier":    {0, -time.Second, 0},
		"the clock went back": {365 * 24 * time.Hour, 0, 0},
	} {
		var x exemplars
		for _, d := range []time.Duration{tt.kept, tt.next} {
			x.keep(&b, exemplar{ns: 1, atUnixNS: now.Add(d).UnixNano()})
		}
		got := x.list(now)
		if len(got) != 1 || !got[0].Time.Equal(now.Add(tt.want)) {
			t.Errorf("%s: %v, want one %v after now", name, got, tt.want)
		}
	}
}

// TestNoteBytes holds what is said of a note's memory against its types. Go's
// allocator hands out 80 bytes for 72.
func TestNoteBytes(t *testing.T) {
	if n := reflect.TypeFor[TraceNote]().Size(); n > noteBytes {
		t.Errorf("a note takes %d bytes, more than %d", n, noteBytes)
	}
	if n := reflect.TypeFor[laneNote]().Size(); n != laneNoteBytes {
		t.Errorf("a lane in it takes %d bytes, not %d", n, laneNoteBytes)
	}
	if n := (*TraceNote)(nil).Bytes(); n != 0 {
		t.Errorf("no note takes %d bytes", n)
	}
	n := TraceNote{lanes: make([]laneNote, 1, 3)}
	if got := n.Bytes(); got != noteBytes+3*laneNoteBytes {
		t.Errorf("a note with room for three lanes takes %d bytes", got)
	}
}
