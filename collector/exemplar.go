package collector

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lanetrace/lanetrace/spanring"
)

// exemplar is a span that a server took, and the value that it shows.
type exemplar struct {
	trace    TraceID
	span     SpanID
	ns       int64 // the value
	atUnixNS int64 // the span's end; 0 is no exemplar
}

// exemplarLife is how long an exemplar is shown: about as long as somebody who
// looks at a graph looks back.
const exemplarLife = time.Hour

// exemplars keep the latest exemplar of each explicit bucket. One that lies further
// after the next than it would be shown is of a clock that was set back.
type exemplars struct {
	slots []exemplar // nil until there is one
}

func (x *exemplars) keep(b *buckets, e exemplar) {
	if x.slots == nil {
		x.slots = make([]exemplar, len(b.counts))
	}
	if s := &x.slots[b.index(max(e.ns, 0))]; e.atUnixNS > s.atUnixNS || s.atUnixNS-e.atUnixNS > int64(exemplarLife) {
		*s = e
	}
}

// list are the exemplars as a reader gets them, oldest first, nil for none.
func (x *exemplars) list(now time.Time) (out []metricdata.Exemplar[float64]) {
	oldest := now.Add(-exemplarLife).UnixNano()
	for i := range x.slots {
		s := &x.slots[i]
		if s.atUnixNS <= oldest {
			continue
		}
		out = append(out, metricdata.Exemplar[float64]{
			Time: time.Unix(0, s.atUnixNS), Value: float64(s.ns) / 1e9,
			TraceID: slices.Clone(s.trace[:]), SpanID: slices.Clone(s.span[:]),
		})
	}
	slices.SortFunc(out, func(a, b metricdata.Exemplar[float64]) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Value, b.Value))
	})
	return out
}

// What a note takes, and each lane in it: a test holds them against the types.
const (
	noteBytes     = 80
	laneNoteBytes = 32
)

// maxNotedLanes is how many lanes of one step are noted as exemplars.
const maxNotedLanes = 16

// TraceNote remembers of one step's trace what may become exemplars of histograms,
// until a server has taken all of it. A nil TraceNote remembers nothing. Its
// methods may be called from any goroutine.
type TraceNote struct {
	engine *Engine
	trace  TraceID
	root   noted
	lanes  []laneNote
	// open counts the parts that a server has not taken yet, and whoever still adds
	// parts. A part that is lost stays open, and the note comes to nothing.
	open  atomic.Int32
	armed bool
}

// noted is an exemplar of a trace that a server has not taken yet. Many of them wait
// during an outage, so they are no larger than they must be.
type noted struct {
	ns       int64
	atUnixNS int64 // 0 is none
}

type laneNote struct {
	lane *laneSummary
	span SpanID
	noted
}

// NoteTrace notes s, which is about to be exported, nil when its engine has no
// instruments. It must be called on the goroutine that was handed s. The caller
// calls Part for each part it sends and Took once after the last.
func NoteTrace(s *Step) *TraceNote {
	e := s.Engine
	if !e.attrs.made {
		return nil
	}
	n := &TraceNote{engine: e, trace: StepTraceID(e.runID, s.Number), armed: s.Armed}
	n.open.Store(1)
	if s.HasEnd && !s.Untimed {
		a, b := s.Bounds()
		n.root = noted{ns: b - a, atUnixNS: s.UnixNS(b)}
	}
	lanes := 0
	for i := range s.Spans {
		if s.Spans[i].noted() {
			lanes++
		}
	}
	if lanes == 0 {
		return n
	}
	n.lanes = make([]laneNote, 0, min(lanes, maxNotedLanes))
	for i := range s.Spans {
		sp := &s.Spans[i]
		if !sp.noted() {
			continue
		}
		if len(n.lanes) == cap(n.lanes) {
			break
		}
		n.lanes = append(n.lanes, laneNote{sp.Text.lane, n.trace.SpanID(sp.Ordinal), noted{
			ns: int64(sp.DurationNS()), atUnixNS: s.UnixNS(sp.EndMonoNS()),
		}})
	}
	return n
}

// noted says whether a span may become an exemplar.
func (s *Span) noted() bool { return s.Kind == spanring.KindLane && s.Text.lane != nil }

// Bytes is the memory that the note takes; 0 of a nil one.
func (n *TraceNote) Bytes() int {
	if n == nil {
		return 0
	}
	return noteBytes + laneNoteBytes*cap(n.lanes)
}

// Part says that one more part of the trace is to be sent.
func (n *TraceNote) Part() {
	if n != nil {
		n.open.Add(1)
	}
}

// Took says that a server took one part. With the last one the trace is shown as
// exemplar.
func (n *TraceNote) Took() {
	if n == nil || n.open.Add(-1) != 0 {
		return
	}
	s, armed := &n.engine.sum, b2i(n.armed)
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.root.atUnixNS != 0 {
		h := &s.stepTime[armed]
		h.keep(&h.buckets, n.exemplar(n.trace.RootID(), n.root))
	}
	for i := range n.lanes {
		l := &n.lanes[i]
		h := &l.lane.duration[armed]
		h.keep(&h.buckets, n.exemplar(l.span, l.noted))
	}
}

func (n *TraceNote) exemplar(span SpanID, v noted) exemplar {
	return exemplar{trace: n.trace, span: span, ns: v.ns, atUnixNS: v.atUnixNS}
}
