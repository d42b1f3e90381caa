package spanring

import (
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSlotWord(t *testing.T) {
	for _, gen := range []uint32{0, 1, 2, 1 << 30, math.MaxUint32} {
		for s, text := range map[SlotState]string{SlotFree: "free", SlotOpen: "open", SlotClosed: "closed", SlotDrain: "drain"} {
			w := MakeSlotWord(gen, s)
			if w.Generation() != gen || w.State() != s || w.State().String() != text {
				t.Errorf("generation %d, %v: %#x, back as %d, %v", gen, s, w, w.Generation(), w.State())
			}
		}
	}
	if SlotState(7).String() != "unknown" {
		t.Error(SlotState(7).String())
	}
	// A generation after the last is the first again, and no state bit leaks.
	if MakeSlotWord(math.MaxUint32, SlotDrain)>>34 != 0 || MakeSlotWord(1, SlotState(7)) != MakeSlotWord(1, SlotDrain) {
		t.Error("bits outside generation and state")
	}
}

var fullSlot = Slot{
	Kind: KindGraph, Armed: true, Gap: GapStarved, Context: 15, Lane: math.MaxUint16, Stream: math.MaxUint16 - 1,
	Step: math.MaxUint64, EnqueueMonoNS: math.MaxInt64, ClosedMonoNS: math.MaxInt64 - 1, Name: math.MaxUint32,
	Ordinal: math.MaxUint32 - 1, Parent: math.MaxUint32 - 2, Graph: math.MaxUint64, SharedStart: true,
}

func newSlots(t *testing.T, w *Writer, n int) Slots {
	t.Helper()
	s, err := w.NewContext(&ContextState{}, n)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSlots(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	busy := func() []SlotEntry {
		t.Helper()
		b, err := r.Busy()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	newSlots(t, w, 2) // another context's come first
	s := newSlots(t, w, 6)
	if s.Len() != 6 || len(busy()) != 0 {
		t.Fatalf("%d slots, %d busy", s.Len(), len(busy()))
	}
	if !s.CompareAndSwap(3, 0, MakeSlotWord(1, SlotOpen)) || s.CompareAndSwap(3, 0, MakeSlotWord(1, SlotOpen)) {
		t.Error("one of two takers should win")
	}
	if b := busy(); len(b) != 0 {
		t.Errorf("taken, nothing written yet: %+v", b)
	}
	v := fullSlot
	v.Gap, v.ClosedMonoNS = GapUnknown, 0
	s.Put(3, &v)
	if d := cmp.Diff([]SlotEntry{{5, SlotOpen, v}}, busy()); d != "" {
		t.Error(d)
	}
	s.SetClosed(3, 77, GapQueued)
	s.Store(3, MakeSlotWord(1, SlotClosed))
	v.ClosedMonoNS, v.Gap = 77, GapQueued
	if d := cmp.Diff([]SlotEntry{{5, SlotClosed, v}}, busy()); d != "" {
		t.Error(d)
	}
	s.SetClosed(3, 78, GapStarved)
	s.SetClosed(3, 78, GapQueued)
	s.SetClosed(3, 78, GapUnknown) // says nothing new of the gap
	v.ClosedMonoNS, v.Gap = 78, GapQueued
	if d := cmp.Diff(v, s.Get(3)); d != "" {
		t.Error(d)
	}
	s.Store(3, MakeSlotWord(1, SlotFree))
	if b := busy(); len(b) != 0 {
		t.Errorf("free again: %+v", b)
	}
	// Taken again: what the last span left there is not this one's.
	s.Store(3, MakeSlotWord(2, SlotOpen))
	if b := busy(); len(b) != 0 {
		t.Errorf("the earlier span shows in the slot's next use: %+v", b)
	}
	s.Put(3, &fullSlot)
	s.Store(0, MakeSlotWord(math.MaxUint32, SlotDrain))
	s.Put(0, &fullSlot)
	want := []SlotEntry{{2, SlotDrain, fullSlot}, {5, SlotOpen, fullSlot}}
	if d := cmp.Diff(want, busy()); d != "" {
		t.Error(d)
	}
	if s.Word(0) != MakeSlotWord(math.MaxUint32, SlotDrain) {
		t.Errorf("word %#x", s.Word(0))
	}
}

// TestBusyRefuses leaves out what no span can be.
func TestBusyRefuses(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	s := newSlots(t, w, 2)
	for _, f := range []func(*Slot){
		func(v *Slot) { v.Kind = 0 },
		func(v *Slot) { v.Kind = KindStepBegin },
		func(v *Slot) { v.Kind = 99 },
		func(v *Slot) { v.Context = MaxContexts },
	} {
		v := fullSlot
		f(&v)
		s.Store(0, MakeSlotWord(1, SlotOpen))
		s.Put(0, &v)
		if b, err := r.Busy(); len(b) != 0 || err != nil {
			t.Errorf("%+v shown: %v, %v", v, b, err)
		}
	}
}

// TestBusyWhileChanging takes and frees slots as fast as it can: every slot seen
// from outside holds one span's contents, and those of its own generation.
func TestBusyWhileChanging(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	s := newSlots(t, w, 2)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range s.Len() {
		wg.Go(func() {
			for gen := uint32(1); ; gen++ {
				select {
				case <-stop:
					return
				default:
				}
				s.Store(i, MakeSlotWord(gen, SlotOpen))
				s.Put(i, &Slot{Kind: KindLane, Step: uint64(gen), Ordinal: gen, Parent: gen, Name: NameID(gen), EnqueueMonoNS: int64(gen), Graph: uint64(gen)})
				s.SetClosed(i, int64(gen), GapQueued)
				s.Store(i, MakeSlotWord(gen, SlotClosed))
				linger()
				s.Store(i, MakeSlotWord(gen, SlotFree))
			}
		})
	}
	seen := 0
	for end := time.Now().Add(time.Minute); seen < 100000; {
		if time.Now().After(end) {
			t.Fatalf("%d slots seen busy within a minute", seen)
		}
		b, err := r.Busy()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range b {
			v := e.Slot
			if g := v.Step; v.Ordinal != uint32(g) || v.Parent != uint32(g) || v.Name != NameID(g) || v.EnqueueMonoNS != int64(g) || v.Graph != g ||
				(v.ClosedMonoNS != 0 && v.ClosedMonoNS != int64(g)) {
				t.Fatalf("a mixture: %+v", e)
			}
			seen++
		}
	}
	close(stop)
	wg.Wait()
}

// linger leaves a reader on another core the time to read a record that is about
// to change again; without it, all of the time is changing.
func linger() {
	for range 50 {
		MonoNS()
	}
}

func TestContexts(t *testing.T) {
	w := newHeap(t, Geometry{LogEntries: 64, Slots: 20, NameBytes: 4096, Allocs: 1})
	r := heapReader(t, w, ReaderOptions{})
	contexts := func() []ContextState {
		t.Helper()
		cs, err := r.Contexts()
		if err != nil {
			t.Fatal(err)
		}
		return cs
	}
	if cs := contexts(); len(cs) != 0 {
		t.Errorf("%+v", cs)
	}
	w.SetContext(&ContextState{Index: 0})
	w.SetContext(&ContextState{Index: 200})
	if cs := contexts(); len(cs) != 0 {
		t.Errorf("a context that was never made: %+v", cs)
	}
	a := ContextState{Index: 9, UUID: [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, Device: -1, Capability: 90, FirstSlot: 99, Slots: 99}
	if _, err := w.NewContext(&a, 12); err != nil {
		t.Fatal(err)
	}
	b := ContextState{
		MIG: true, Device: math.MaxInt32, Capability: math.MaxUint16, Calibration: CalibrationAssumed, ConstantNS: math.MaxUint32, SpreadNS: math.MaxUint32,
		GPURefNS: math.MinInt64, HostRefNS: math.MaxInt64, RatePPB: -1, UpdatedMonoNS: math.MaxInt64, UncertaintyNS: math.MaxUint64,
	}
	if _, err := w.NewContext(&b, 7); err != nil {
		t.Fatal(err)
	}
	a.RatePPB = 11800
	w.SetContext(&a)
	if a.Index != 0 || a.FirstSlot != 0 || a.Slots != 12 || b.Index != 1 || b.FirstSlot != 12 || b.Slots != 7 {
		t.Errorf("reserved %+v and %+v", a, b)
	}
	if d := cmp.Diff([]ContextState{a, b}, contexts()); d != "" {
		t.Error(d)
	}
	if a.UUIDText() != "GPU-01020304-0506-0708-090a-0b0c0d0e0f10" || b.UUIDText() != "MIG-00000000-0000-0000-0000-000000000000" {
		t.Errorf("%s, %s", a.UUIDText(), b.UUIDText())
	}
	for _, n := range []int{-1, 0, 2} {
		if _, err := w.NewContext(&ContextState{}, n); !errors.Is(err, ErrFull) {
			t.Errorf("%d of one slot left: %v", n, err)
		}
	}
	if _, err := w.NewContext(&ContextState{}, 1); err != nil {
		t.Error(err)
	}

	// A hostile record: slots beyond the table, arithmetic that would wrap, a
	// calibration that does not exist.
	off := int64(offContexts)
	for _, v := range []uint64{9 | 12<<32, 20 | 1<<32, math.MaxUint32 - 5 | 10<<32, math.MaxUint32 | math.MaxUint32<<32} {
		w.m.store(off+8+4*8, v)
		if cs := contexts(); len(cs) != 2 {
			t.Errorf("slots %#x: %+v", v, cs)
		}
	}
	w.m.store(off+8+4*8, 20)
	w.m.store(off+8+2*8, ctxUsed|0xff<<8)
	if cs := contexts(); len(cs) != 3 || cs[0].Calibration != CalibrationAssumed {
		t.Errorf("%+v", cs)
	}
	// Its writer died in the middle of a change.
	w.m.store(off, w.m.load(off)|1)
	if cs := contexts(); len(cs) != 2 {
		t.Errorf("%+v", cs)
	}
}

func TestTooManyContexts(t *testing.T) {
	w := newHeap(t, Geometry{LogEntries: 64, Slots: 20, NameBytes: 4096, Allocs: 1})
	for range MaxContexts {
		newSlots(t, w, 1)
	}
	if _, err := w.NewContext(&ContextState{}, 1); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
}

// TestContextWhileChanging: a record read while it is published again and again
// is one of those published.
func TestContextWhileChanging(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	newSlots(t, w, 1)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for n := int64(1); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				w.SetContext(&ContextState{GPURefNS: n, HostRefNS: n, RatePPB: n, UpdatedMonoNS: n, UncertaintyNS: uint64(n)})
				linger()
			}
		})
	}
	// A busy machine reads fewer: a thousand are enough to mean something.
	seen := 0
	for soon, end := time.Now().Add(2*time.Second), time.Now().Add(30*time.Second); seen < 100000; {
		if now := time.Now(); seen >= 1000 && now.After(soon) {
			break
		} else if now.After(end) {
			t.Fatalf("%d records read within 30 s", seen)
		}
		cs, err := r.Contexts()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cs {
			if n := c.GPURefNS; c.HostRefNS != n || c.RatePPB != n || c.UpdatedMonoNS != n || c.UncertaintyNS != uint64(n) {
				t.Fatalf("a mixture: %+v", c)
			}
			seen++
		}
	}
	close(stop)
	wg.Wait()
}
