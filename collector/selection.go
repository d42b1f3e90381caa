package collector

// ExportReason is why a step is exported, the value of the attribute
// lanetrace.export.reason.
type ExportReason uint8

// Why steps are exported. Where several hold, the first in this order is named.
const (
	ExportNone       ExportReason = iota
	ExportIncomplete              // closed before all it opened was accounted for
	ExportFailed                  // a span of it failed
	ExportDropped                 // a span of it found no slot, or was left out
	ExportLaunchDiff              // a region of it enqueued other operations than before
	ExportLinked                  // it worked for a request whose trace is recorded
	ExportArmed                   // its kernels were timed
	ExportOneInN                  // one of so many
	ExportAll                     // every step is exported

	numExportReasons
)

// NumExportReasons is the number of reasons, ExportNone included.
const NumExportReasons = int(numExportReasons)

var exportText = [NumExportReasons]string{"none", "incomplete", "failed", "dropped", "launch_diff", "linked", "armed", "one_in_n", "all"}

// String is the attribute's value.
func (r ExportReason) String() string {
	if int(r) < NumExportReasons {
		return exportText[r]
	}
	return "unknown"
}

// NotSelected is why a step is not exported. It is no loss.
type NotSelected uint8

// Why steps are not exported.
const (
	// NotOneInN: nothing spoke for the step.
	NotOneInN NotSelected = iota
	// NotWanted: there is no exporter.
	NotWanted
	// NotSampled: a request whose trace is not recorded.
	NotSampled

	numNotSelected
)

// NumNotSelected is the number of reasons.
const NumNotSelected = int(numNotSelected)

var notSelectedText = [NumNotSelected]string{"one_in_n", "no_exporter", "request_not_sampled"}

// String is the value of the metric label reason.
func (r NotSelected) String() string {
	if int(r) < NumNotSelected {
		return notSelectedText[r]
	}
	return "unknown"
}

// Selector decides for one engine which closed steps are exported. It is asked
// for every step, in the order in which they close, from one goroutine, and must
// not keep the step. Time is the step's own (ClosedMonoNS).
type Selector interface {
	// Select returns why s is exported, or ExportNone and why not.
	Select(s *Step) (ExportReason, NotSelected)
}

// SelectAll exports every step, as the file formats do.
type SelectAll struct{}

// Select returns ExportAll.
func (SelectAll) Select(*Step) (ExportReason, NotSelected) { return ExportAll, 0 }

// DefaultOneInN is how many steps one exported step stands for.
const DefaultOneInN = 1000

// LiveSelector is the selection of a live engine: what went wrong, what is armed,
// linked to a request, and one step in N.
type LiveSelector struct {
	// OneInN exports each step whose number is a multiple of it. 0 is
	// DefaultOneInN, negative is none.
	OneInN int
}

// Select implements Selector.
func (l LiveSelector) Select(s *Step) (ExportReason, NotSelected) {
	n := l.OneInN
	if n == 0 {
		n = DefaultOneInN
	}
	switch {
	case s.Incomplete != Complete:
		return ExportIncomplete, 0
	case s.FailedCount > 0:
		return ExportFailed, 0
	case s.Dropped > 0 || s.LeftOut > 0:
		return ExportDropped, 0
	case s.LaunchDiffCount > 0:
		return ExportLaunchDiff, 0
	case s.Linked():
		return ExportLinked, 0
	case s.Armed:
		return ExportArmed, 0
	case n > 0 && s.Number%uint64(n) == 0:
		return ExportOneInN, 0
	}
	return ExportNone, NotOneInN
}
