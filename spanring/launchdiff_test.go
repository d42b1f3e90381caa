package spanring

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLaunchDiff(t *testing.T) {
	const most = math.MaxUint32
	for _, c := range []struct {
		name string
		d    LaunchDiff
		ok   bool
	}{
		{"nothing", LaunchDiff{}, true},
		{"first", LaunchDiff{Region: 7, Step: 3, MonoNS: 9, First: true, After: most}, true},
		{"no step", LaunchDiff{Region: 1, MonoNS: math.MaxInt64, Before: 4, After: 4}, true},
		{"all differ", LaunchDiff{Region: most, Step: math.MaxUint64, Partial: true, Block: true, Before: most, After: most, Inserted: most, Removed: most}, true},
		{"all changed", LaunchDiff{Before: most, After: most, Changed: most}, true},
		{"mixed", LaunchDiff{Step: 5, MonoNS: 8, Before: 10, After: 11, Inserted: 3, Removed: 2, Changed: 8}, true},

		{"before boot", LaunchDiff{MonoNS: -1}, false},
		{"first with a before", LaunchDiff{First: true, Before: 1}, false},
		{"first with a difference", LaunchDiff{First: true, After: 1, Inserted: 1}, false},
		{"more removed than there were", LaunchDiff{Before: 1, Removed: 2, Inserted: 1}, false},
		{"more changed than were left", LaunchDiff{Before: 3, After: 2, Removed: 1, Changed: 3}, false},
		{"does not add up", LaunchDiff{Before: 3, After: 3, Inserted: 1}, false},
		{"adds up only when it wraps", LaunchDiff{Before: 2, After: 1, Inserted: most}, false},
	} {
		w := c.d.Words()
		got, err := w.LaunchDiff()
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %v", c.name, err)
		}
		if d := cmp.Diff(c.d, got); d != "" {
			t.Errorf("%s (-written +read):\n%s", c.name, d)
		}
	}
	if w := (&StepBegin{Step: 1}).Words(); true {
		if _, err := w.LaunchDiff(); !errors.Is(err, ErrEntry) {
			t.Errorf("a step taken for a launch diff: %v", err)
		}
	}
	d := LaunchDiff{Inserted: most, Removed: most, Changed: most}
	if n := d.Differing(); n != 3*most {
		t.Errorf("%d operations differ", n)
	}
}
