package spanring

import "fmt"

// LaunchDiff says what a comparison of two executions of a region came to: how
// many operations were enqueued before and after, and how many of them differ. It
// is written for every execution, also where nothing differs.
type LaunchDiff struct {
	Region NameID
	Step   uint64 // in which the execution ended, 0 for none
	MonoNS int64  // when it ended, host, CLOCK_MONOTONIC
	// First: there was nothing to compare with; only After is known.
	First bool
	// Partial: for want of memory not every operation was recorded.
	Partial bool
	// Block: too many insertions and removals; the rest was not aligned.
	Block bool

	Before, After              uint32 // Before - Removed + Inserted = After, unless First
	Inserted, Removed, Changed uint32
}

const (
	flagDiffFirst   = 0x01
	flagDiffPartial = 0x02
	flagDiffBlock   = 0x04
)

// Differing is how many operations differ.
func (d *LaunchDiff) Differing() uint64 {
	return uint64(d.Inserted) + uint64(d.Removed) + uint64(d.Changed)
}

// Words encodes d.
func (d *LaunchDiff) Words() Words {
	var f uint8
	if d.First {
		f |= flagDiffFirst
	}
	if d.Partial {
		f |= flagDiffPartial
	}
	if d.Block {
		f |= flagDiffBlock
	}
	return Words{
		head(KindLaunchDiff, f, 0, 0, 0, 0), d.Step, uint64(d.MonoNS),
		uint64(d.Before) | uint64(d.After)<<32, uint64(d.Inserted) | uint64(d.Removed)<<32,
		uint64(d.Region) | uint64(d.Changed)<<32,
	}
}

// LaunchDiff decodes a comparison. Counts that do not add up are refused.
func (w *Words) LaunchDiff() (LaunchDiff, error) {
	f := w.flags()
	d := LaunchDiff{
		Region: NameID(w[5]), Step: w[1], MonoNS: int64(w[2]),
		First: f&flagDiffFirst != 0, Partial: f&flagDiffPartial != 0, Block: f&flagDiffBlock != 0,
		Before: uint32(w[3]), After: uint32(w[3] >> 32),
		Inserted: uint32(w[4]), Removed: uint32(w[4] >> 32), Changed: uint32(w[5] >> 32),
	}
	switch {
	case w.Kind() != KindLaunchDiff || d.MonoNS < 0:
		return d, fmt.Errorf("%w: %v of step %d at %d ns", ErrEntry, w.Kind(), d.Step, d.MonoNS)
	case d.First && (d.Before != 0 || d.Differing() != 0):
		return d, fmt.Errorf("%w: first execution with %d operations before and %d that differ", ErrEntry, d.Before, d.Differing())
	case !d.First && (d.Removed > d.Before || d.Changed > d.Before-d.Removed ||
		uint64(d.Before-d.Removed)+uint64(d.Inserted) != uint64(d.After)):
		return d, fmt.Errorf("%w: %d operations, %d removed, %d changed, %d inserted give %d", ErrEntry, d.Before, d.Removed, d.Changed, d.Inserted, d.After)
	}
	return d, nil
}
