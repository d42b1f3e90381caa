//go:build servers

package servers_test

import (
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/servers"
	"github.com/lanetrace/lanetrace/spanring"
)

// scripted is a stand-in engine whose steps a test writes one by one, with times that
// lie in the past: what is rare in an engine that is well happens in it.
type scripted struct {
	w     *spanring.Writer
	slots spanring.Slots
	// atNS is when the next step begins, and n the number of the last one.
	atNS int64
	n    uint64

	admit, decode              spanring.NameID
	gemm, allReduce            spanring.NameID
	graphs                     [2]spanring.NameID
	region                     spanring.NameID
	admitNS, ownNS, collective uint64
}

// scriptedStep says what is unusual in one step.
type scriptedStep struct {
	armed, asked bool
	prefill      bool
	longerNS     uint64 // its decode lane takes so much longer
	failed       bool   // a span of it fails
	dropped      bool   // a span of it finds no slot
	differs      bool   // its launches differ from those of the step before
	links        []spanring.TraceContext
}

const (
	// scriptedEvery is how far apart steps begin: far enough that none touches the
	// next one.
	scriptedEvery = 20 * time.Millisecond
	// scriptedGapNS is how long after its first lane a step's second one begins.
	scriptedGapNS = 100_000
)

// newScripted makes an engine on a GPU of its own. Its lanes take as long as said; the
// collective kernel lies in the decode lane.
func newScripted(t *testing.T, dir string, o spanring.Info, c spanring.ContextState, admitNS, ownNS, collectiveNS uint64) *scripted {
	t.Helper()
	w := servers.StandInOf(t, dir, spanring.Geometry{}, o)
	c.HostRefNS = c.UpdatedMonoNS
	slots, err := w.NewContext(&c, 16)
	if err != nil {
		t.Fatal(err)
	}
	w.SetGPU(c.UUIDText(), "stand-in GPU")
	return &scripted{
		w: w, slots: slots, admit: w.Name(spanring.NameLane, "admit"), decode: w.Name(spanring.NameLane, "decode"),
		gemm: w.Name(spanring.NameKernel, "gemm"), allReduce: w.Name(spanring.NameKernel, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
		graphs: [2]spanring.NameID{w.GraphName(7, 40, "decode_b8"), w.GraphName(8, 12, "sample")},
		region: w.Name(spanring.NameOther, "step"), admitNS: admitNS, ownNS: ownNS, collective: collectiveNS,
	}
}

// openStep is a step whose end is not written yet.
type openStep struct {
	s     *scripted
	begin spanring.StepBegin
	o     scriptedStep
}

// put writes an entry and counts what it is of the account.
func (s *scripted) put(w spanring.Words, counters ...spanring.Counter) {
	s.w.Append(&w)
	for _, c := range counters {
		s.w.Add(c, 1)
	}
}

// beginStep writes a step's begin, and what is said of it.
func (s *scripted) beginStep(o scriptedStep) openStep {
	s.n++
	b := spanring.StepBegin{Step: s.n, MonoNS: s.atNS, Armed: o.armed, Asked: o.asked, Level: s.w.Info().Level}
	s.atNS += scriptedEvery.Nanoseconds()
	s.put(b.Words(), spanring.CtrBegun, spanring.CtrStepsBegun)
	if o.armed {
		s.w.Add(spanring.CtrStepsArmed, 1)
	}
	a := spanring.StepAttrs{Step: s.n, BatchSize: 8, DecodeTokens: 8, GraphMode: spanring.GraphEager}
	if o.prefill {
		a.PrefillTokens = 120
	}
	s.put(a.Words())
	for _, c := range o.links {
		l := spanring.StepLink{Step: s.n, TraceContext: c}
		s.put(l.Words())
	}
	return openStep{s, b, o}
}

// end writes a step's spans and its end.
func (st openStep) end() {
	s, o, step := st.s, &st.o, st.begin.Step
	opened := uint32(0)
	at := st.begin.MonoNS + 50_000
	land := func(k spanring.Kind, name spanring.NameID, parent uint32, fromNS int64, ns uint64, correctionNS uint16) {
		opened++
		sp := spanring.Span{
			Kind: k, Armed: o.armed, Gap: spanring.GapQueued, Step: step, Name: name, Ordinal: opened, Parent: parent,
			StartMonoNS: fromNS, RawNS: ns, CorrectionNS: correctionNS, LeadNS: 40_000,
		}
		s.put(sp.Words(), spanring.CtrBegun, spanring.CtrLanded)
		if k != spanring.KindLane {
			s.w.Add(spanring.CtrQueued, 1)
		}
	}
	own := s.ownNS + o.longerNS
	land(spanring.KindLane, s.admit, 0, at, s.admitNS, 0)
	at += int64(s.admitNS) + scriptedGapNS
	land(spanring.KindLane, s.decode, 0, at, own+s.collective, 0)
	if o.armed {
		land(spanring.KindKernel, s.gemm, 2, at, own, 3000)
		land(spanring.KindKernel, s.allReduce, 2, at+int64(own), s.collective, 3000)
		at += int64(own + s.collective)
		land(spanring.KindGraph, s.graphs[0], 0, at, 250_000+step%7*10_000, 0)
		land(spanring.KindGraph, s.graphs[1], 0, at+400_000, 30_000+step%3*1000, 0)
	}
	if o.failed {
		opened++
		f := spanring.SpanFailed{SpanKind: spanring.KindLane, Reason: spanring.FailRecord, Step: step, EnqueueMonoNS: st.begin.MonoNS, Name: s.admit, Ordinal: opened}
		s.put(f.Words(), spanring.CtrBegun, spanring.FailRecord.Counter())
	}
	if o.differs {
		d := spanring.LaunchDiff{Region: s.region, Step: step, MonoNS: st.begin.MonoNS + 1000, Before: 40, After: 41, Inserted: 1}
		s.put(d.Words(), spanring.CtrLaunchExecutions, spanring.CtrLaunchDiffs, spanring.CtrLaunchDiffOps)
	}
	e := spanring.StepEnd{
		Step: step, MonoNS: st.begin.MonoNS + 1_000_000, BeginNS: st.begin.MonoNS, Armed: o.armed, Opened: opened, Linked: uint32(len(o.links)),
	}
	if o.dropped {
		e.Dropped = 1
		s.w.Add(spanring.CtrBegun, 1)
		s.w.Add(spanring.CtrDropped, 1)
	}
	s.put(e.Words(), spanring.CtrLanded, spanring.CtrStepsEnded)
}

// stray writes entries of which no step comes: a span of a step that is over, the end of
// one that cannot be, and of a kind that steps do not consist of.
func (s *scripted) stray(n int) {
	for range n {
		sp := spanring.Span{Kind: spanring.KindLane, Step: s.n, Name: s.admit, Ordinal: 90, StartMonoNS: s.atNS, RawNS: 5000}
		s.put(sp.Words(), spanring.CtrBegun, spanring.CtrLanded)
		e := (&spanring.StepEnd{Step: 1, MonoNS: 1}).Words()
		e[1] = 0
		s.put(e)
		a := spanring.Anchor{MonoNS: s.atNS}
		s.put(a.Words())
	}
}

// fly has a span in flight that was enqueued at a time.
func (s *scripted) fly(enqueuedMonoNS int64) {
	s.slots.Store(0, spanring.MakeSlotWord(1, spanring.SlotOpen))
	s.slots.Put(0, &spanring.Slot{Kind: spanring.KindLane, Step: s.n, EnqueueMonoNS: enqueuedMonoNS, Name: s.decode, Ordinal: 1})
	s.w.Add(spanring.CtrBegun, 1)
}

// write writes steps up to a number; unusual says what is so in some of them.
func (s *scripted) write(upTo uint64, unusual func(n uint64) scriptedStep) {
	for s.n < upTo {
		s.beginStep(unusual(s.n + 1)).end()
	}
}

// endAt puts the end of so many steps at a time.
func (s *scripted) endAt(monoNS int64, steps int) {
	s.atNS = monoNS - int64(steps)*scriptedEvery.Nanoseconds()
}

// allocate makes an allocation of a call site that nobody frees.
func (s *scripted) allocate(index uint64, site string, bytes uint64) {
	a := spanring.Alloc{
		Addr: 0x7f0000000000 + index<<24, Bytes: bytes, Site: s.w.Name(spanring.NameSite, site), Index: index, MonoNS: spanring.MonoNS(), Kind: spanring.AllocDevice,
	}
	t := s.w.Allocs()
	t.Lock()
	if _, ok := t.Put(&a); ok {
		t.Add(spanring.CtrAllocs, 1)
		t.Add(spanring.CtrMemLiveCount, 1)
		t.Add(spanring.CtrMemLiveBytes, int64(bytes))
		t.Raise(spanring.CtrMemPeakBytes, s.w.Counter(spanring.CtrMemLiveBytes))
	}
	t.Unlock()
	e := spanring.MemEvent{Kind: spanring.KindAlloc, Alloc: a, LiveBytes: s.w.Counter(spanring.CtrMemLiveBytes)}
	s.put(e.Words())
}
