package lanetrace

import (
	"sync/atomic"

	"github.com/lanetrace/lanetrace/spanring"
)

// openSteps is how many steps can be open at once. An engine that opens more has
// forgotten to end some: those are counted as misuse and as failed{abandoned}.
const openSteps = 4096

// stepEnded is the bit in stepState.opened that closes a step to further spans,
// in the same atomic operation that reads how many there were.
const stepEnded = 1 << 31

// stepState is what is known of a step while spans may still be opened in it. Its
// place is used again openSteps steps later.
type stepState struct {
	id      atomic.Uint64
	beginNS atomic.Int64
	endNS   atomic.Int64 // 0 while open
	opened  atomic.Uint32
	dropped atomic.Uint32
	ordinal atomic.Uint32
	timed   atomic.Uint32 // launches that got a pair
	linked  atomic.Uint32 // trace contexts, also those beyond what is written
	armed   atomic.Bool
	cost    stepCost
}

type stepTable struct {
	last  atomic.Uint64
	state [openSteps]stepState
}

// at is the place of a step, nil once it is another's.
func (t *stepTable) at(step uint64) *stepState {
	if s := &t.state[step%openSteps]; step != 0 && s.id.Load() == step {
		return s
	}
	return nil
}

// ended is cudaevents.Options.StepEnded.
func (t *stepTable) ended(step uint64) (int64, bool) {
	s := t.at(step)
	if s == nil {
		// Overtaken by a later step: it ended, or was given up, long ago.
		return 0, true
	}
	ns := s.endNS.Load()
	return ns, ns != 0
}

// Step is one step of the engine, begun by Hub.StepBegin. It is a small value to
// be passed around; the zero Step does nothing.
type Step struct {
	hub   *Hub
	state *stepState
	num   uint64 // its number, and how it is timed
}

// Bits of Step.num beside the number.
const (
	stepArmed   = 1 << 63
	stepAsked   = 1 << 62
	stepUntimed = 1 << 61
	stepBits    = stepArmed | stepAsked | stepUntimed
)

// ID is the step's number within the run, from 1; 0 for the zero Step.
func (s Step) ID() uint64 { return s.num &^ stepBits }

// Armed reports whether the step's kernels are timed.
func (s Step) Armed() bool { return s.num&stepArmed != 0 }

// untimed reports whether the budget for lanes leaves the step's lanes out.
func (s Step) untimed() bool { return s.num&stepUntimed != 0 }

// StepBegin begins a step. It reads the clock and writes one log entry; at level
// off it is one load. It does not block, allocate or call the driver. Steps may
// overlap.
func (h *Hub) StepBegin() (s Step) {
	if h != nil && h.level.Load() != 0 {
		s = h.stepBegin()
	}
	return s
}

func (h *Hub) stepBegin() Step {
	level := Level(h.level.Load())
	if level == LevelOff {
		return Step{}
	}
	id := h.steps.last.Add(1)
	st := &h.steps.state[id%openSteps]
	if prev := st.id.Load(); prev != 0 && st.endNS.Load() == 0 {
		h.forget(st, prev)
	}
	now := spanring.MonoNS()
	armed, asked, untimed := false, false, false
	if level >= LevelLane {
		armed, asked, untimed = h.over.begin(level >= LevelKernel)
	}
	// The place is closed to its old step's spans before it takes the new id.
	st.id.Store(0)
	st.endNS.Store(0)
	st.beginNS.Store(now)
	st.dropped.Store(0)
	st.ordinal.Store(0)
	st.timed.Store(0)
	st.linked.Store(0)
	st.armed.Store(armed)
	st.cost.reset()
	st.opened.Store(0)
	st.id.Store(id)
	h.ring.Add(spanring.CtrBegun, 1)
	h.ring.Add(spanring.CtrStepsBegun, 1)
	if armed {
		h.armedOpen.Add(1)
		h.ring.Add(spanring.CtrStepsArmed, 1)
		h.publishArming()
	}
	num := id
	if armed {
		num |= stepArmed
	}
	if asked {
		num |= stepAsked
	}
	if untimed {
		num |= stepUntimed
		h.ring.Add(spanring.CtrStepsUntimed, 1)
	}
	e := (&spanring.StepBegin{Step: id, MonoNS: now, Armed: armed, Asked: asked, Untimed: untimed, Level: uint8(level)}).Words()
	h.ring.Append(&e)
	return Step{hub: h, state: st, num: num}
}

// forget accounts for a step whose place is needed though it never ended.
func (h *Hub) forget(st *stepState, id uint64) {
	if old := st.opened.Or(stepEnded); old&stepEnded == 0 {
		h.ring.Add(spanring.CtrMisuse, 1)
		h.ring.Add(spanring.FailAbandoned.Counter(), 1)
		if st.armed.Load() {
			h.armedOpen.Add(-1)
		}
	}
}

// End ends the step on the host. Its spans may still be running on the GPU. It
// reads the clock and writes one log entry. Ending twice is counted as misuse.
func (s Step) End() {
	if s.hub != nil {
		s.end()
	}
}

func (s Step) end() {
	h := s.hub
	if s.state.id.Load() != s.ID() {
		h.ring.Add(spanring.CtrMisuse, 1)
		return
	}
	opened := s.state.opened.Or(stepEnded)
	if opened&stepEnded != 0 {
		h.ring.Add(spanring.CtrMisuse, 1)
		return
	}
	now := spanring.MonoNS()
	begin := s.state.beginNS.Load()
	s.state.endNS.Store(now)
	e := (&spanring.StepEnd{
		Step: s.ID(), MonoNS: now, BeginNS: begin, Armed: s.Armed(), Untimed: s.untimed(),
		Opened: opened, Dropped: s.state.dropped.Load(), Linked: s.state.linked.Load(),
	}).Words()
	h.ring.Append(&e)
	h.ring.Add(spanring.CtrLanded, 1)
	h.ring.Add(spanring.CtrStepsEnded, 1)
	s.spent(begin, now, opened)
	if s.Armed() {
		h.armedOpen.Add(-1)
		h.publishArming()
	}
}

// spent reckons what the step that has ended cost.
func (s Step) spent(beginNS, endNS int64, opened uint32) {
	h := s.hub
	launches := min(s.state.timed.Load(), opened)
	lanes := opened - launches
	ns := h.over.ended(&s.state.cost, &endedStep{
		beginNS: beginNS, endNS: endNS, armed: s.Armed(), asked: s.num&stepAsked != 0, untimed: s.untimed(), lanes: lanes, launches: launches,
	})
	h.ring.Add(spanring.CtrStepTimeNS, uint64(ns))
	if lanes > 0 {
		h.ring.Add(spanring.CtrLaneCostNS, uint64(lanes)*laneCostNS)
	}
	if launches > 0 {
		h.ring.Add(spanring.CtrArmedCostNS, uint64(launches)*launchCostNS)
	}
	if h.over.lanes.budget.share > 0 {
		h.publishLanes()
	}
}

// Attrs are what a step worked on.
type Attrs struct {
	BatchSize     int // sequences
	DecodeTokens  int // tokens generated
	PrefillTokens int // prompt tokens processed
	GraphMode     spanring.GraphMode
}

// SetAttrs says what the step works on: one log entry. The last call counts.
func (s Step) SetAttrs(a Attrs) {
	if s.hub != nil {
		s.setAttrs(&a)
	}
}

func (s Step) setAttrs(a *Attrs) {
	e := (&spanring.StepAttrs{
		Step: s.ID(), BatchSize: clamp32(a.BatchSize), DecodeTokens: clamp32(a.DecodeTokens),
		PrefillTokens: clamp32(a.PrefillTokens), GraphMode: min(a.GraphMode, spanring.GraphMixed),
	}).Words()
	s.hub.ring.Append(&e)
}

func clamp32(n int) uint32 { return uint32(max(0, min(n, 1<<32-1))) }

// open takes an ordinal for a span in the step. ok is false, and misuse counted,
// when the step has ended.
func (s Step) open() (ordinal uint32, ok bool) {
	st := s.state
	if st.id.Load() != s.ID() {
		s.hub.ring.Add(spanring.CtrMisuse, 1)
		return 0, false
	}
	for {
		old := st.opened.Load()
		if old&stepEnded != 0 {
			s.hub.ring.Add(spanring.CtrMisuse, 1)
			return 0, false
		}
		if st.opened.CompareAndSwap(old, old+1) {
			return st.ordinal.Add(1), true
		}
	}
}

// unopen takes open back for a span that was not begun after all.
func (s Step) unopen() {
	if s.state.id.Load() == s.ID() {
		s.state.opened.Add(^uint32(0))
	}
}

// drop turns an open span into one that found no slot.
func (s Step) drop() {
	s.unopen()
	if s.state.id.Load() == s.ID() {
		s.state.dropped.Add(1)
	}
}
