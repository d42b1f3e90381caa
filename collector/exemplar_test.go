package collector

import (
	"reflect"
	"testing"
)

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
