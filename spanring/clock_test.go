package spanring

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestMonoNS holds each reading between two of CLOCK_MONOTONIC itself, give or
// take a microsecond.
func TestMonoNS(t *testing.T) {
	kernel := func() int64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		return ts.Nano()
	}
	const bound = 1000
	last := int64(0)
	for range 10000 {
		before := kernel()
		now := MonoNS()
		after := kernel()
		if now < before-bound || now > after+bound {
			t.Fatalf("MonoNS is %d, CLOCK_MONOTONIC was %d before and %d after", now, before, after)
		}
		if now < last {
			t.Fatalf("MonoNS went back from %d to %d", last, now)
		}
		last = now
	}
}
