package web

import (
	"github.com/lanetrace/lanetrace/collector"
)

// What is kept of one run. A span takes about 110 bytes, so a run takes under 4 MB.
const (
	// maxSteps and maxSpans are the last steps.
	maxSteps = 1024
	maxSpans = 16384
	// maxNotable and maxNotableSpans are those of the steps before them that were
	// slow, armed or faulty, which are few and soon driven out by the others.
	maxNotable      = 64
	maxNotableSpans = 8192
	// maxRuns is how many runs are kept; the one longest without a step goes first.
	maxRuns = 32
)

// span is what is kept of a lane, kernel or graph launch.
type span struct {
	name, lane *collector.Name
	kind       uint8
	context    uint8
	gap        uint8
	calib      uint8
	inGraph    bool
	shared     bool
	stream     uint16
	ordinal    uint32
	parent     uint32
	startNS    int64
	rawNS      int64
	correctNS  int64
	leadNS     int64
	placeNS    int64 // uncertainty of the start
	lengthNS   int64 // uncertainty of the duration
}

// failed is what is kept of a span that will never land.
type failed struct {
	name      *collector.Name
	kind      uint8
	reason    string
	enqueueNS int64
}

// maxFailed is how many failed spans of a step are kept.
const maxFailed = 8

// step is what is kept of a step. Its spans lie in a reel.
type step struct {
	number           uint64
	startNS, endNS   int64 // bounds
	beginNS, hostNS  int64 // the host's part; hostNS is -1 when its end is not known
	hasBegin         bool
	armed, asked     bool
	untimed          bool // its lanes, to stay within their budget
	slow             bool
	faulty           bool
	incomplete       collector.IncompleteReason
	failed           [maxFailed]failed
	numFailed        int // all of them
	dropped, missing int
	hasAttrs         bool
	batch            uint32
	decode, prefill  uint32
	mode             string
	derived          collector.Derived
	wallOffsetNS     int64

	from  uint64 // where its spans begin in the reel
	spans int    // how many are kept there
	cut   int    // how many were not kept: more than a reel holds
	at    uint64 // the how manieth step of the run it is, from 1
}

// reel holds the last steps and their spans. It makes room as it is needed, up to
// its bounds, and allocates nothing from then on.
type reel struct {
	maxSteps, maxSpans int
	steps              []step // by at modulo maxSteps, once full
	spans              []span // by index modulo maxSpans, once full
	first, next        uint64 // the steps kept, counted within the reel
	spanNext           uint64
}

func newReel(steps, spans int) *reel { return &reel{maxSteps: steps, maxSpans: spans} }

// room is the place of a new step; its n spans go to put.
func (r *reel) room(n int) *step {
	if r.next-r.first == uint64(r.maxSteps) {
		r.first++
	}
	for r.first < r.next && r.spanNext+uint64(n)-r.step(r.first).from > uint64(r.maxSpans) {
		r.first++
	}
	i := int(r.next % uint64(r.maxSteps))
	if i == len(r.steps) {
		r.steps = append(r.steps, step{})
	}
	r.next++
	s := &r.steps[i]
	*s = step{from: r.spanNext, spans: n}
	return s
}

func (r *reel) step(i uint64) *step { return &r.steps[i%uint64(r.maxSteps)] }

func (r *reel) put(s span) {
	if i := int(r.spanNext % uint64(r.maxSpans)); i == len(r.spans) {
		r.spans = append(r.spans, s)
	} else {
		r.spans[i] = s
	}
	r.spanNext++
}

// spansOf appends the spans of s to dst.
func (r *reel) spansOf(dst []span, s *step) []span {
	for i := range uint64(s.spans) {
		dst = append(dst, r.spans[(s.from+i)%uint64(r.maxSpans)])
	}
	return dst
}

// copyFrom takes a step of another reel in.
func (r *reel) copyFrom(o *reel, s *step) {
	n := min(s.spans, r.maxSpans)
	t := r.room(n)
	from := t.from
	*t = *s
	t.from, t.spans, t.cut = from, n, s.cut+s.spans-n
	for i := range uint64(n) {
		r.put(o.spans[(s.from+i)%uint64(o.maxSpans)])
	}
}

// track is what is kept of one run.
type track struct {
	engine  *collector.Engine
	last    *reel
	notable *reel
	seen    uint64 // steps so far
	touched uint64 // for choosing what goes
	memory  memoryPast
	judge   *collector.LiveSelector // says which steps are slow; of the page alone
}

func newTrack(e *collector.Engine) *track {
	t := &track{engine: e, last: newReel(maxSteps, maxSpans), notable: newReel(maxNotable, maxNotableSpans)}
	// The engine's own selector judges only where traces are exported.
	t.judge = collector.NewLiveSelector(collector.LiveOptions{OnSlow: func(s *collector.Step) { t.slow(s.Number) }})
	return t
}

// add takes a closed step in.
func (t *track) add(s *collector.Step) {
	t.seen++
	n := min(len(s.Spans), maxSpans)
	k := t.last.room(n)
	k.at, k.number, k.cut = t.seen, s.Number, len(s.Spans)-n
	k.startNS, k.endNS = s.Bounds()
	k.hasBegin, k.beginNS, k.hostNS = s.HasBegin || s.HasEnd, s.BeginMonoNS, -1
	if s.HasEnd {
		k.hostNS = s.HostNS()
	}
	k.armed, k.asked, k.untimed, k.faulty = s.Armed, s.Asked, s.Untimed, s.Faulty()
	k.incomplete, k.numFailed = s.Incomplete, s.FailedCount
	k.dropped, k.missing = int(s.Dropped)+s.LeftOut, s.Missing()
	for i := range s.Failed[:min(len(s.Failed), maxFailed)] {
		f := &s.Failed[i]
		k.failed[i] = failed{name: f.Text, kind: uint8(f.SpanKind), reason: f.Reason.String(), enqueueNS: f.EnqueueMonoNS}
	}
	if s.HasAttrs {
		k.hasAttrs, k.batch, k.decode, k.prefill = true, s.Attrs.BatchSize, s.Attrs.DecodeTokens, s.Attrs.PrefillTokens
		k.mode = s.Attrs.GraphMode.String()
	}
	k.derived, k.wallOffsetNS = s.Derived, s.WallOffsetNS
	for i := range s.Spans[:n] {
		sp := &s.Spans[i]
		t.last.put(span{
			name: sp.Text, lane: sp.LaneText, kind: uint8(sp.Kind), context: sp.Context, gap: uint8(sp.Gap), calib: uint8(sp.Calibration),
			inGraph: sp.InGraph, shared: sp.SharedStart, stream: sp.Stream, ordinal: sp.Ordinal, parent: sp.Parent,
			startNS: sp.StartMonoNS, rawNS: int64(sp.RawNS), correctNS: int64(sp.CorrectionNS), leadNS: sp.LeadNS,
			placeNS: int64(min(sp.PlaceUncertaintyNS, 1<<62)), lengthNS: int64(min(sp.DurationUncertaintyNS, 1<<62)),
		})
	}
	if k.armed || k.faulty {
		t.notable.copyFrom(t.last, k)
	}
	t.judge.Select(s)
}

// slow marks the step that was taken in last, if it is that one.
func (t *track) slow(number uint64) {
	if t.last.first == t.last.next {
		return
	}
	k := t.last.step(t.last.next - 1)
	if k.number != number || k.slow {
		return
	}
	k.slow = true
	if k.armed || k.faulty { // it is there already
		t.notable.step(t.notable.next - 1).slow = true
		return
	}
	t.notable.copyFrom(t.last, k)
}

// picked are steps copied for a viewer, with their spans one after the other.
type picked struct {
	steps []step
	spans []span
}

func (p *picked) reset() { p.steps, p.spans = p.steps[:0], p.spans[:0] }

func (p *picked) take(r *reel, s *step) {
	c := *s
	c.from = uint64(len(p.spans))
	p.spans = r.spansOf(p.spans, s)
	p.steps = append(p.steps, c)
}

// since copies the steps after the seen-th, oldest first: of the last ones as many
// as have maxSpans spans together, and with old the notable ones before them.
func (t *track) since(p *picked, seen uint64, maxSpans int, old bool) {
	p.reset()
	from, spans := t.last.next, 0
	for from > t.last.first {
		s := t.last.step(from - 1)
		if s.at <= seen || spans+s.spans > maxSpans && spans > 0 {
			break
		}
		spans += s.spans
		from--
	}
	before := t.seen + 1
	if from < t.last.next {
		before = t.last.step(from).at
	}
	for i := t.notable.first; old && i < t.notable.next; i++ {
		if s := t.notable.step(i); s.at < before {
			p.take(t.notable, s)
		}
	}
	for ; from < t.last.next; from++ {
		p.take(t.last, t.last.step(from))
	}
}
