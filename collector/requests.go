package collector

import (
	"crypto/sha256"

	"github.com/lanetrace/lanetrace/spanring"
)

// Link is a request that a step worked for: its span, in its own trace.
type Link struct {
	spanring.TraceContext
	request    *openRequest // nil for one whose trace is not recorded
	generation uint32       // of request, which may be another one's by now
}

// MaxLinks is how many links a step, and how many a request's summary keeps.
const MaxLinks = spanring.MaxStepLinks

// Request is a request that has ended, with what the steps that were linked to it
// came to. A Request that is handed to a [RequestExporter] or [RequestObserver] is
// valid during that call only.
type Request struct {
	Engine *Engine
	// The entry of its end: its span in its own trace, its times on
	// CLOCK_MONOTONIC, its tokens.
	spanring.RequestEnd
	// Steps is how many steps were linked to it that closed. StepsOpen is how many
	// had not when they were no longer waited for; nothing of theirs is known.
	Steps, StepsOpen int
	// StepsUntimed is of how many of Steps the engine left the lanes out, to stay
	// within its budget for them: GPULaneNS lacks their time.
	StepsUntimed int
	// Gapped: entries of the engine were lost while the request ran, or missed before
	// reading began; it may have had more steps.
	Gapped bool
	// GPULaneNS is for how long at least one lane of its steps was on the GPU, in
	// ns; of several devices the sum. It is shared with the other requests of the
	// steps.
	GPULaneNS int64
	// Exported are the numbers of its steps that were selected for export, in the
	// order in which they closed, at most MaxLinks; ExportedCount is all of them.
	Exported      []uint64
	ExportedCount int
	// WallOffsetNS added to a CLOCK_MONOTONIC time gives Unix time, in ns.
	WallOffsetNS int64
}

// UnixNS places a CLOCK_MONOTONIC time on the wall clock, both in ns.
func (r *Request) UnixNS(monoNS int64) int64 { return monoNS + r.WallOffsetNS }

// SummaryID is the id of the request's summary span: a hash of the run and the
// request's context, so that a recording sent again sends the same span.
func (r *Request) SummaryID() SpanID {
	run := r.Engine.RunID()
	var b [len(run) + 24]byte
	copy(b[:], run[:])
	copy(b[len(run):], r.TraceID[:])
	copy(b[len(run)+16:], r.SpanID[:])
	h := sha256.Sum256(b[:])
	var s SpanID
	copy(s[:], h[:])
	if s == (SpanID{}) {
		s[0] = 1
	}
	return s
}

// RequestExporter is an Exporter that takes summaries of requests too. It settles
// each as one unit of the engine's [Ledger]; of an exporter that is none, every
// request is not selected.
type RequestExporter interface {
	ExportRequest(r *Request)
}

// RequestObserver is an Observer that sees requests too: every one that ends and
// whose trace is recorded.
type RequestObserver interface {
	ObserveRequest(r *Request)
}

// requests gathers, for every request whose trace is recorded, what the steps that
// were linked to it came to, until its end has come and those steps have closed.
// It is used from the assembler's goroutine.
type requests struct {
	max    int // requests kept
	waitNS int64
	open   map[requestKey]*openRequest
	live   requestList    // not ended, the one longest untouched first
	ended  requestList    // ended, waiting for steps, the first ended first
	done   []*openRequest // ended and out of the table, to be handed over
	free   []*openRequest
	counts RequestCounts
	out    Request // the one that is being handed over

	lanes []deviceLane // of the step at hand

	// over ended before the collector was restarted, as far as that was read again:
	// nobody waits for their steps. No more than max.
	over map[requestKey]struct{}
}

// RequestCounts is how many requests of an engine there were whose traces are
// recorded.
type RequestCounts struct {
	// Ended have ended. Open are gathered now, Ended ones that wait for a step among
	// them.
	Ended, Open uint64
	// Evicted had not ended when they made room for others: should their end come,
	// the summary knows of no step before that.
	Evicted uint64
}

// Requests is how many requests there were, as of the last Poll.
func (e *Engine) Requests() RequestCounts {
	e.sum.mu.Lock()
	defer e.sum.mu.Unlock()
	return e.requests
}

// requestKey is a request's span. Two engines' requests do not meet: each engine
// has requests of its own.
type requestKey struct {
	trace [16]byte
	span  [8]byte
}

func keyOf(c *spanring.TraceContext) requestKey { return requestKey{c.TraceID, c.SpanID} }

// openRequest is a request that has not been handed over.
type openRequest struct {
	key        requestKey
	generation uint32
	// lastStep is the step that was linked to it last: a second link of the same
	// step says nothing new.
	lastStep uint64
	// waiting is how many linked steps have not closed.
	waiting, steps int
	untimed        int        // of steps, those whose lanes were left out
	lanes          []laneTime // of each device
	exported       []uint64
	exportedCount  int

	end     spanring.RequestEnd
	endedNS int64 // the source's time when the end came
	hasEnd  bool

	list *requestList
	neighbours[openRequest]
}

// requestList holds requests, from the one that was added first.
type requestList = ageList[openRequest, *openRequest]

// freeRequests is how many requests are kept for reuse.
const freeRequests = 256

func newRequests(o *ProcessorOptions) requests {
	return requests{max: o.MaxOpenRequests, waitNS: o.StepTimeout.Nanoseconds(), open: make(map[requestKey]*openRequest)}
}

// get is the request of that key, made if need be and touched.
func (q *requests) get(k requestKey) *openRequest {
	if r, ok := q.open[k]; ok {
		if r.list == &q.live && q.live.newest != r {
			q.live.remove(r)
			q.live.add(r)
		}
		return r
	}
	for len(q.open) >= q.max {
		if r := q.live.oldest; r != nil {
			q.counts.Evicted++
			q.take(r)
			q.release(r)
			continue
		}
		q.finish(q.ended.oldest)
	}
	var r *openRequest
	if n := len(q.free); n > 0 {
		r, q.free = q.free[n-1], q.free[:n-1]
	} else {
		r = new(openRequest)
	}
	r.key = k
	q.open[k] = r
	r.list = &q.live
	r.list.add(r)
	return r
}

// take takes r out of the table.
func (q *requests) take(r *openRequest) {
	delete(q.open, r.key)
	r.list.remove(r)
	r.list = nil
	r.generation++ // links to it lead nowhere from now on
}

// release keeps r, which is out of the table, for reuse.
func (q *requests) release(r *openRequest) {
	if len(q.free) < freeRequests {
		*r = openRequest{generation: r.generation, exported: r.exported[:0], lanes: r.lanes[:0]}
		q.free = append(q.free, r)
	}
}

// finish makes r, which has ended, ready to be handed over.
func (q *requests) finish(r *openRequest) {
	q.take(r)
	q.done = append(q.done, r)
}

// link says that step works for the request and reports whether that was new.
func (q *requests) link(l *Link, step uint64) bool {
	if _, ok := q.over[keyOf(&l.TraceContext)]; ok {
		return true
	}
	r := q.get(keyOf(&l.TraceContext))
	if r.lastStep == step {
		return false
	}
	r.lastStep = step
	r.waiting++
	l.request, l.generation = r, r.generation
	return true
}

// wasOver notes a request that had ended, and been handed on, before the restart.
func (q *requests) wasOver(e *spanring.RequestEnd) {
	k := keyOf(&e.TraceContext)
	if r := q.open[k]; r != nil && !r.hasEnd {
		q.take(r)
		q.release(r)
	}
	if q.over == nil {
		q.over = make(map[requestKey]struct{})
	}
	if len(q.over) < q.max {
		q.over[k] = struct{}{}
	}
}

// requestEnded takes the end of a request in; false is one that had ended before.
func (q *requests) requestEnded(e *spanring.RequestEnd, nowNS int64) bool {
	r := q.get(keyOf(&e.TraceContext))
	if r.hasEnd {
		return false
	}
	q.counts.Ended++
	r.hasEnd, r.end, r.endedNS = true, *e, nowNS
	if r.waiting == 0 {
		q.finish(r)
		return true
	}
	r.list.remove(r)
	r.list = &q.ended
	r.list.add(r)
	return true
}

// closed takes a step in that has closed, and whether it is exported.
func (q *requests) closed(s *Step, exported bool) {
	merged := false
	for i := range s.Links {
		l := &s.Links[i]
		r := l.request
		if r == nil || r.generation != l.generation {
			continue
		}
		if !merged {
			q.lanes, merged = deviceLanes(q.lanes[:0], s), true
		}
		for _, lane := range q.lanes {
			r.lane(lane)
		}
		r.steps++
		if s.Untimed {
			r.untimed++
		}
		if exported {
			r.exportedCount++
			if len(r.exported) < MaxLinks {
				r.exported = append(r.exported, s.Number)
			}
		}
		r.waiting--
		if r.waiting == 0 && r.hasEnd {
			q.finish(r)
		}
	}
}

// expire finishes requests that ended longer ago than is waited for their steps.
func (q *requests) expire(nowNS int64) {
	for q.ended.oldest != nil && nowNS-q.ended.oldest.endedNS >= q.waitNS {
		q.finish(q.ended.oldest)
	}
}

// finishAll finishes every request that has ended, and forgets the others.
func (q *requests) finishAll() {
	for q.ended.oldest != nil {
		q.finish(q.ended.oldest)
	}
	for q.live.oldest != nil {
		q.take(q.live.oldest)
	}
}

// lane adds the time of a lane.
func (r *openRequest) lane(l deviceLane) {
	for i := range r.lanes {
		if r.lanes[i].context == l.context {
			r.lanes[i].add(l.interval)
			return
		}
	}
	r.lanes = append(r.lanes, laneTime{context: l.context})
	r.lanes[len(r.lanes)-1].add(l.interval)
}

// laneNS is for how long lanes were on the GPU, of several devices the sum.
func (r *openRequest) laneNS() (ns int64) {
	for i := range r.lanes {
		ns += r.lanes[i].ns()
	}
	return ns
}

// gaps is when entries of a source were lost.
type gaps struct {
	missed  bool  // some before reading began
	firstNS int64 // begin of the first step that was read
	lost    uint64
	lostNS  int64 // the source's time when the last loss was noticed
}

// watch takes the reader's account in as of nowNS.
func (g *gaps) watch(a spanring.Account, nowNS int64) {
	g.missed = a.Missed > 0
	if a.Lost > g.lost {
		g.lost, g.lostNS = a.Lost, nowNS
	}
}

// step takes the begin of a step in.
func (g *gaps) step(beginNS int64) {
	if g.firstNS == 0 {
		g.firstNS = beginNS
	}
}

// during reports whether entries may be missing of what began then and has just
// ended.
func (g *gaps) during(beginNS int64) bool {
	return g.missed && (g.firstNS == 0 || beginNS < g.firstNS) || g.lost > 0 && beginNS <= g.lostNS
}

// addLink takes the entry of a step's trace context.
func (a *assembler) addLink(w *spanring.Words) {
	e, err := w.StepLink()
	if err != nil {
		a.engine.sum.malformed++
		return
	}
	st := a.step(e.Step)
	if st == nil {
		a.engine.sum.lateEntries++
		return
	}
	st.linkEntries++
	if len(st.Links) >= MaxLinks {
		return
	}
	l := Link{TraceContext: e.TraceContext}
	if l.Sampled() && !a.requests.link(&l, e.Step) {
		st.linkedTwice++
		return
	}
	st.Links = append(st.Links, l)
}

// requestEnd takes the entry of a request's end. A request is one unit of the
// account.
func (a *assembler) requestEnd(w *spanring.Words) {
	a.received++
	e, err := w.RequestEnd()
	if err != nil {
		a.drop(DropMalformed)
		return
	}
	if !e.Sampled() {
		a.flush()
		a.engine.ledger.NotSelect(NotSampled, 1)
		return
	}
	if !a.requests.requestEnded(&e, a.nowNS) {
		a.drop(DropMalformed) // no request ends twice
	}
}

// handOverRequests gives the requests that are done to whom they concern. The
// steps that closed have been handed over before.
func (p *Processor) handOverRequests() {
	q := &p.asm.requests
	q.expire(p.asm.nowNS)
	for i, r := range q.done {
		p.handOverRequest(r)
		q.release(r)
		q.done[i] = nil
	}
	q.done = q.done[:0]
	q.counts.Open = uint64(len(q.open))
	p.engine.sum.mu.Lock()
	p.engine.requests = q.counts
	p.engine.sum.mu.Unlock()
}

func (p *Processor) handOverRequest(r *openRequest) {
	out := &p.asm.requests.out
	*out = Request{
		Engine: p.engine, RequestEnd: r.end, Steps: r.steps, StepsOpen: r.waiting, StepsUntimed: r.untimed, GPULaneNS: r.laneNS(),
		Gapped: p.asm.gaps.during(r.end.BeginNS), Exported: r.exported, ExportedCount: r.exportedCount, WallOffsetNS: p.asm.wallOffsetNS,
	}
	for _, ob := range p.o.Observers {
		if ro, ok := ob.(RequestObserver); ok {
			ro.ObserveRequest(out)
		}
	}
	x, ok := p.o.Exporter.(RequestExporter)
	if !ok {
		p.engine.ledger.NotSelect(NotWanted, 1)
		return
	}
	if sel, ok := p.o.Selector.(RequestSelector); ok && !sel.SelectRequest(out, p.asm.nowNS) {
		p.engine.ledger.NotSelect(NotBudget, 1)
		return
	}
	x.ExportRequest(out)
}
