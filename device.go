package lanetrace

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// Device is one GPU context under a hub; Hub.Attach makes it. A nil Device does
// nothing.
type Device struct {
	hub *Hub
	rec *cudaevents.Recorder
	mem *ledger.Ledger // what AttachLedger tied to the ring; guarded by hub.mu

	// gone is set when another Attach has replaced the device: its lanes and
	// launches are no longer timed.
	gone atomic.Bool

	mu      sync.Mutex                // makes streams
	streams atomic.Pointer[streamMap] // replaced, never changed

	// capturing are the lanes of graphs that are being captured, by stream.
	captMu    sync.Mutex
	capturing atomic.Pointer[map[cudaevents.Stream]*cudaevents.GraphLanes]

	// The outermost lanes of the step that lands now, from the first's start to the
	// last's end: the harvester alone uses it.
	landing          uint64
	landingArmed     bool
	landFrom, landTo int64
}

type streamMap map[cudaevents.Stream]*streamState

// streamState is what is open on a stream, innermost lane last.
type streamState struct {
	mu    sync.Mutex
	lanes []openLane
	bound Step
}

type openLane struct {
	step    Step
	handle  cudaevents.Handle
	ordinal uint32
	lane    LaneID
}

// maxNesting bounds the lanes open at once on one stream; reaching it means that
// lanes were not ended.
const maxNesting = 32

// Recorder is the context's recorder of event pairs.
func (d *Device) Recorder() *cudaevents.Recorder {
	if d == nil {
		return nil
	}
	return d.rec
}

// ensurePool makes the pool; the recorder logs and counts a failure once.
func (d *Device) ensurePool() { _ = d.rec.EnsurePool() }

func (d *Device) detach(ctx context.Context) error {
	d.gone.Store(true)
	return d.rec.Close(ctx)
}

// Detach takes the context from its hub: what is in flight is drained until ctx
// ends, the rest is failed{closed}, and the events are destroyed. A backend calls
// it before its context goes.
func (d *Device) Detach(ctx context.Context) error {
	if d == nil {
		return nil
	}
	d.hub.mu.Lock()
	defer d.hub.mu.Unlock()
	d.hub.dropLedger(d.mem)
	return d.detach(ctx)
}

// AttachLedger ties the context's ledger to the hub's ring until Detach: from
// level basic on the ledger writes to it, at off it does not. A backend calls it
// once, before its first allocation. It makes no driver call.
func (d *Device) AttachLedger(l *ledger.Ledger) {
	if d == nil || l == nil {
		return
	}
	h := d.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.dropLedger(d.mem)
	d.mem = l
	h.ledgers = append(h.ledgers, l)
	l.Attach(h.ring, uint8(d.rec.ContextIndex()), h.Level() >= LevelBasic)
}

func (d *Device) stream(s cudaevents.Stream) *streamState {
	if st := (*d.streams.Load())[s]; st != nil {
		return st
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.streams.Load()
	if st := old[s]; st != nil {
		return st
	}
	next := make(streamMap, len(old)+1)
	for k, v := range old {
		next[k] = v
	}
	st := &streamState{lanes: make([]openLane, 0, maxNesting)}
	next[s] = st
	d.streams.Store(&next)
	return st
}

// StreamDestroyed says that a stream's handle is no longer this stream's: the
// driver may hand it out again. Call it before the stream is destroyed. Spans in
// flight on it still land.
func (d *Device) StreamDestroyed(s cudaevents.Stream) {
	if d == nil {
		return
	}
	d.mu.Lock()
	if old := *d.streams.Load(); old[s] != nil {
		next := make(streamMap, len(old))
		for k, v := range old {
			if k != s {
				next[k] = v
			}
		}
		d.streams.Store(&next)
	}
	d.mu.Unlock()
	d.rec.StreamDestroyed(s)
}

// Name interns a text for LaunchBegin. Keep the id: a text not seen before takes
// a lock and allocates.
func (d *Device) Name(kind spanring.NameKind, text string) spanring.NameID {
	if d == nil {
		return 0
	}
	return d.hub.ring.Name(kind, text)
}

// GraphName interns a graph's label with its id and node count.
func (d *Device) GraphName(id uint64, nodes uint32, label string) spanring.NameID {
	if d == nil {
		return 0
	}
	return d.hub.ring.GraphName(id, nodes, label)
}

// Bind says that launches on s outside any lane belong to step. Binding the zero
// Step takes that back.
func (d *Device) Bind(step Step, s cudaevents.Stream) {
	if d == nil || d.hub.level.Load() == uint32(LevelOff) {
		return
	}
	st := d.stream(s)
	st.mu.Lock()
	st.bound = step
	st.mu.Unlock()
}

// Timing reports whether launches have to ask LaunchBegin now: some armed step
// is open. It is one load.
func (d *Device) Timing() bool { return d != nil && d.hub.armedOpen.Load() > 0 }

// Launch is a launch that is being timed.
type Launch struct {
	cudaevents.Launch
	step Step
}

// LaunchBegin takes a pair for a kernel or graph launch on s. It belongs to the
// innermost lane open on s, else to the step bound to s. ok is false when it is
// not to be timed: its step is not armed, the pool is full (counted), or it
// belongs to nothing (counted). It makes no driver call. The caller records the
// pair's events around the launch, in one crossing, and reports to LaunchEnd.
func (d *Device) LaunchBegin(kind spanring.Kind, s cudaevents.Stream, name spanring.NameID) (l Launch, ok bool) {
	if !d.Timing() || d.hub.level.Load() < uint32(LevelKernel) || d.gone.Load() {
		return l, false
	}
	d.hub.ring.Add(spanring.CtrLaunches, 1)
	if l, ok = d.launchBegin(kind, s, name); !ok && kind == spanring.KindKernel {
		d.rec.Untimed(s)
	}
	return l, ok
}

func (d *Device) launchBegin(kind spanring.Kind, s cudaevents.Stream, name spanring.NameID) (l Launch, ok bool) {
	st := d.stream(s)
	st.mu.Lock()
	step, m := st.bound, cudaevents.Meta{Kind: kind, Name: name}
	if n := len(st.lanes); n > 0 {
		o := &st.lanes[n-1]
		step, m.Parent, m.Lane = o.step, o.ordinal, uint16(o.lane)
	}
	st.mu.Unlock()
	if step.hub == nil {
		d.hub.ring.Add(spanring.CtrUnattributed, 1)
		return l, false
	}
	if !step.Armed() {
		return l, false
	}
	if m.Ordinal, ok = step.open(); !ok {
		return l, false
	}
	m.Step, m.Armed = step.ID(), true
	cl, out := d.rec.Reserve(s, &m)
	if !step.began(out) {
		return l, false
	}
	return Launch{Launch: cl, step: step}, true
}

// LaunchEnd reports what came of a timed launch.
func (d *Device) LaunchEnd(l Launch, r cudaevents.LaunchResult) {
	if !d.rec.Launched(l.Launch, r) && r.Capturing {
		l.step.unopen()
		return
	}
	if st := l.step.state; st.id.Load() == l.step.ID() {
		st.timed.Add(1)
	}
}

// began settles a step's count of spans after an attempt to begin one.
func (s Step) began(out cudaevents.Outcome) bool {
	switch out {
	case cudaevents.BeginOK:
		return true
	case cudaevents.BeginFull:
		s.drop()
	case cudaevents.BeginFailed:
		// The recorder wrote an entry that says so: it stays among the opened.
	default:
		s.unopen()
	}
	return false
}

// landed sees every span as it lands, on the harvester's goroutine: the outermost
// lanes of a step bound its length from the GPU's side. A step's are taken in when
// the next one's land.
func (d *Device) landed(s *spanring.Span) {
	if s.Kind != spanring.KindLane || s.Parent != 0 {
		return
	}
	if s.Step == d.landing {
		d.landFrom, d.landTo = min(d.landFrom, s.StartMonoNS), max(d.landTo, s.EndMonoNS())
		return
	}
	if st := d.hub.steps.at(d.landing); st != nil {
		l := landedStep{armed: d.landingArmed, fromNS: d.landFrom, toNS: d.landTo, endNS: st.endNS.Load()}
		if next := d.hub.steps.at(d.landing + 1); next != nil {
			l.nextNS = next.beginNS.Load()
		}
		if ns := d.hub.over.onGPU(&st.cost, &l); ns > 0 {
			d.hub.ring.Add(spanring.CtrStepTimeNS, uint64(ns))
		}
	}
	d.landing, d.landingArmed, d.landFrom, d.landTo = s.Step, s.Armed, s.StartMonoNS, s.EndMonoNS()
}
