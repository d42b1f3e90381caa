package collector

import (
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/lanetrace/lanetrace/spanring"
)

// maxLanes is how many lanes of an engine have series of their own; those that
// come later are the lane other.
const maxLanes = 64

// summary is what one run's steps and spans added up to, for its instruments.
// Every span counts, also those of steps that are not exported.
type summary struct {
	mu    sync.Mutex
	start time.Time
	label string

	steps          [2]uint64 // not armed, armed
	incomplete     [numIncompleteReasons]uint64
	exported       [NumExportReasons]uint64
	openSteps      int
	malformed      uint64 // entries that are no spans and cannot be
	lateEntries    uint64 // entries that are no spans, of steps closed before
	otherEntries   uint64 // of kinds that steps do not consist of
	form           HistogramForm
	stepTime       [2]histogram
	stepHost       histogram
	lanes          map[string]*laneSummary
	kernels, graph *topK
	regions        map[string]*regionSummary
	violations     []Violation // the last ones
	violated       uint64      // all of them
	rate           entryRate   // of the ring; has a lock of its own
	overhead       recentOverhead
	work           Work
	beganNS        int64 // when reading began, by the source's clock
	since          Work  // what of work was done after that
}

// laneSummary is what one lane added up to.
type laneSummary struct {
	attrs    attribute.Set
	duration [2]histogram // not armed, armed
	queue    histogram
	since    time.Time
}

func (s *summary) init(label string, top int) {
	s.start = time.Now()
	s.label = label
	s.keep(HistogramsExplicit)
	s.lanes = make(map[string]*laneSummary)
	attrs := func(key string) func(string) attribute.Set {
		return func(l string) attribute.Set {
			return attribute.NewSet(attribute.String(labelEngine, label), attribute.String(key, l))
		}
	}
	s.kernels = newTopK(top, s.start, attrs(labelKernel))
	s.graph = newTopK(top, s.start, attrs(labelGraph))
	// There from the start, so that a region's first difference is an increase of
	// something.
	s.regions = make(map[string]*regionSummary)
	s.region(other)
}

// keep says in which form histograms are kept, before anything is counted.
func (s *summary) keep(f HistogramForm) {
	s.form = f
	s.stepTime = [2]histogram{newHistogram(stepBounds, f), newHistogram(stepBounds, f)}
	s.stepHost = newHistogram(stepBounds, f)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// span counts one landed span. The caller holds mu.
func (s *summary) span(sp *spanring.Span, name *Name) {
	if sp.Kind == spanring.KindLane {
		l := name.lane
		if l == nil {
			l = s.lane(name.Label)
			name.lane = l
		}
		l.duration[b2i(sp.Armed)].observe(int64(sp.DurationNS()))
		if !sp.Armed {
			l.queue.observe(sp.LeadNS)
		}
		return
	}
	t := s.kernels
	if sp.Kind == spanring.KindGraph {
		t = s.graph
	}
	r := name.ranked
	if r == nil || r.gone || name.rankedIn != t {
		r = t.find(name.Label, time.Now)
		if r != &t.other {
			name.ranked, name.rankedIn = r, t
		}
	}
	t.observe(r, int64(sp.DurationNS()))
}

func (s *summary) lane(label string) *laneSummary {
	if l, ok := s.lanes[label]; ok {
		return l
	}
	if len(s.lanes) >= maxLanes && label != other {
		return s.lane(other)
	}
	l := &laneSummary{
		attrs:    attribute.NewSet(attribute.String(labelEngine, s.label), attribute.String(labelLane, label)),
		duration: [2]histogram{newHistogram(stepBounds, s.form), newHistogram(stepBounds, s.form)},
		queue:    newHistogram(stepBounds, s.form),
		since:    time.Now(),
	}
	s.lanes[label] = l
	return l
}

// step counts one closed step. The caller holds mu.
func (s *summary) step(st *Step) {
	armed := b2i(st.Armed)
	s.steps[armed]++
	s.incomplete[st.Incomplete]++
	s.work.add(st)
	if _, end := st.Bounds(); end > s.beganNS {
		s.since.add(st)
	}
	if !st.HasEnd {
		// How long it took is not known.
		return
	}
	// Nor is it of a step whose part on the GPU was not timed.
	if a, b := st.Bounds(); !st.Untimed {
		s.stepTime[armed].observe(b - a)
	}
	if !st.Armed {
		s.stepHost.observe(st.HostNS())
	}
}

// selected counts a step that is exported.
func (s *summary) selected(r ExportReason) {
	s.mu.Lock()
	s.exported[r]++
	s.mu.Unlock()
}
