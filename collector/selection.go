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
	ExportAsked                   // its kernels were timed because somebody asked for it
	ExportSlow                    // it took long within its class
	ExportLinked                  // it worked for a request whose trace is recorded
	ExportArmed                   // its kernels were timed
	ExportOneInN                  // one of so many
	ExportAll                     // every step is exported

	numExportReasons
)

// NumExportReasons is the number of reasons, ExportNone included.
const NumExportReasons = int(numExportReasons)

var exportText = [NumExportReasons]string{
	"none", "incomplete", "failed", "dropped", "launch_diff", "asked", "slow", "linked", "armed", "one_in_n", "all",
}

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
	// NotBudget: something spoke for the step, but the byte budget did not allow it.
	NotBudget
	// NotLeft: the step was open when the collector stopped, and is left to the one
	// that reads on.
	NotLeft
	// NotAgain: the step had been handed on before the collector was restarted.
	NotAgain

	numNotSelected
)

// NumNotSelected is the number of reasons.
const NumNotSelected = int(numNotSelected)

var notSelectedText = [NumNotSelected]string{"one_in_n", "no_exporter", "request_not_sampled", "budget", "left_open", "before_restart"}

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

// RequestSelector is a Selector that decides of the summaries of requests, too. Of
// one that is none, all are exported.
type RequestSelector interface {
	// SelectRequest reports whether the summary of r, which is done at the source's
	// time nowMonoNS, is exported.
	SelectRequest(r *Request, nowMonoNS int64) bool
}

// Watcher is a Selector that looks at steps, too, of which none can be exported for
// want of an exporter: what it makes of slow ones is not only traces.
type Watcher interface {
	// Watch looks at s as Select does.
	Watch(s *Step)
}

// SelectAll exports every step, as the file formats do.
type SelectAll struct{}

// Select returns ExportAll.
func (SelectAll) Select(*Step) (ExportReason, NotSelected) { return ExportAll, 0 }

// DefaultOneInN is how many steps one exported step stands for.
const DefaultOneInN = 1000

// LiveOptions say which steps of a live engine are exported.
type LiveOptions struct {
	// OneInN exports each step whose number is a multiple of it, or the next one whose
	// lanes were timed. 0 is DefaultOneInN, negative is none.
	OneInN int
	// Slow says which steps are slow within their class.
	Slow SlowOptions
	// BudgetBytes is how many bytes of traces a second are exported on average, as
	// they are encoded. 0 is DefaultBudgetBytes, negative is without bound.
	BudgetBytes int
	// BurstBytes may be exported at once after a quiet time. Default: what the budget
	// has in DefaultBurstSeconds.
	BurstBytes int
	// Size is how many bytes a step's trace has. Default EstimateBytes.
	Size func(s *Step) int
	// OnSlow is told of each slow step, exported or not, on the goroutine that reads
	// the engine. Default: it is counted. Armer.Slow arms the next steps.
	OnSlow func(s *Step)
}

// LiveSelector is the selection of one live engine: what went wrong, what was asked
// for, what is slow, linked to a request or armed, and one step in N, all within a
// byte budget in which none of these starves for another.
type LiveSelector struct {
	o      LiveOptions
	slow   slowDetector
	budget budget
	due    bool // one in N was, and its lanes had not been timed
}

// NewLiveSelector makes the selector of one engine.
func NewLiveSelector(o LiveOptions) *LiveSelector {
	if o.OneInN == 0 {
		o.OneInN = DefaultOneInN
	}
	if o.BudgetBytes == 0 {
		o.BudgetBytes = DefaultBudgetBytes
	}
	o.BudgetBytes = max(o.BudgetBytes, 0)
	if o.BurstBytes == 0 {
		o.BurstBytes = DefaultBurstSeconds * o.BudgetBytes
	}
	if o.Size == nil {
		o.Size = EstimateBytes
	}
	if o.OnSlow == nil {
		o.OnSlow = NewArmer(ArmOptions{Steps: -1}).Slow
	}
	return &LiveSelector{
		o: o, slow: slowDetector{o: o.Slow.withDefaults()}, budget: newBudget(o.BudgetBytes, o.BurstBytes),
	}
}

// groupOf is the part of the budget that a reason draws on.
var groupOf = [NumExportReasons]budgetGroup{
	ExportIncomplete: groupFault, ExportFailed: groupFault, ExportDropped: groupFault, ExportLaunchDiff: groupFault,
	ExportAsked: groupAsked, ExportSlow: groupSlow, ExportLinked: groupLinked, ExportArmed: groupArmed, ExportOneInN: groupOneInN,
}

// Select implements Selector. A step for which several reasons hold is exported
// when the budget has something left for any of them; the first is named. It does
// not block; it allocates when a step is the first of its class.
func (l *LiveSelector) Select(s *Step) (ExportReason, NotSelected) {
	slow := l.slow.slow(s)
	if slow {
		l.o.OnSlow(s)
	}
	named, size := ExportNone, 0
	for r := ExportIncomplete; r < ExportAll; r++ {
		if !l.speaksFor(r, s, slow) {
			continue
		}
		if named == ExportNone {
			named, size = r, l.o.Size(s)
		}
		if l.budget.take(groupOf[r], size, s.ClosedMonoNS) {
			return named, 0
		}
	}
	if named == ExportNone {
		return ExportNone, NotOneInN
	}
	return ExportNone, NotBudget
}

// Watch implements Watcher: slow steps are told to OnSlow.
func (l *LiveSelector) Watch(s *Step) {
	if l.slow.slow(s) {
		l.o.OnSlow(s)
	}
}

// SelectRequest implements RequestSelector: every summary that the budget allows.
func (l *LiveSelector) SelectRequest(r *Request, nowMonoNS int64) bool {
	return l.budget.take(groupRequest, requestBytes+linkBytes*len(r.Exported), nowMonoNS)
}

// speaksFor reports whether a reason holds for a step.
func (l *LiveSelector) speaksFor(r ExportReason, s *Step, slow bool) bool {
	switch r {
	case ExportIncomplete:
		return s.Incomplete != Complete
	case ExportFailed:
		return s.FailedCount > 0
	case ExportDropped:
		return s.Dropped > 0 || s.LeftOut > 0
	case ExportLaunchDiff:
		return s.LaunchDiffCount > 0
	case ExportAsked:
		return s.Armed && s.Asked
	case ExportSlow:
		return slow
	case ExportLinked:
		return s.Linked()
	case ExportArmed:
		return s.Armed
	case ExportOneInN:
		if l.o.OneInN <= 0 {
			return false
		}
		// Two strides may go together so that none of these would ever have lanes.
		l.due = l.due || s.Number%uint64(l.o.OneInN) == 0
		if s.Untimed || !l.due {
			return false
		}
		l.due = false
		return true
	}
	return false
}
