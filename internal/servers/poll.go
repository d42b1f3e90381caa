package servers

import (
	"testing"
	"time"
)

// Patience is how long tests wait for what servers do within a second or two on
// a machine that has time.
const Patience = 3 * time.Minute

// pollEvery is how often a condition is asked for.
const pollEvery = 50 * time.Millisecond

// Poll asks until ok returns nil, and fails the test with its last error when
// that takes longer than Patience.
func Poll(tb testing.TB, what string, ok func() error) {
	tb.Helper()
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	for end := time.Now().Add(Patience); ; {
		err := ok()
		if err == nil {
			return
		}
		if !time.Now().Before(end) {
			tb.Fatalf("%s: not within %v: %v", what, Patience, err)
		}
		select {
		case <-t.C:
		case <-tb.Context().Done():
			tb.Fatalf("%s: the test ended first: %v", what, err)
		}
	}
}
