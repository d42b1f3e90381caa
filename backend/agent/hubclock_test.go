package agent

import (
	"fmt"
	"os/exec"
	"testing"
)

// Ten minutes of anchors and spans, drifting, wandering and jumping: each position lies
// within its uncertainty, and the map never goes back.
func TestClockHolds(t *testing.T) {
	program := buildProgram(t, "clock.c", []string{"clock.c"})
	for _, c := range []struct {
		seed, seconds, ppb, jumpEvery int
		resets                        bool
	}{
		{1, 600, 0, 0, false},
		{2, 600, 11_800, 0, false},
		{3, 600, -95_000, 0, false},
		{4, 600, 11_800, 60, true},
		{5, 120, 150_000, 0, false},
	} {
		out, err := exec.Command(program, fmt.Sprint(c.seed), fmt.Sprint(c.seconds), fmt.Sprint(c.ppb), fmt.Sprint(c.jumpEvery)).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
		var asked, outside, back, worst, last, resets int
		if _, err := fmt.Sscan(string(out), &asked, &outside, &back, &worst, &last, &resets); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
		if asked < c.seconds*50 || outside != 0 || back != 0 || last > 5000 || (resets != 0) != c.resets {
			t.Errorf("%+v: %d of %d positions outside, map went back %d times, ± %d ns at the end, %d resets", c, outside, asked, back, last, resets)
		}
		t.Logf("%d positions, worst %d ns off, ± %d ns at the end, %d resets", asked, worst, last, resets)
	}
}
