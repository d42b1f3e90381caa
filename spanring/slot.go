package spanring

import "sync/atomic"

// SlotState is the state of a pair slot.
type SlotState uint8

// A slot's states. The word that holds state and generation is changed by one
// atomic operation; the generation grows each time the slot is taken.
const (
	SlotFree   SlotState = 0 // both events are known complete or never recorded
	SlotOpen   SlotState = 1 // taken; its start was or is being recorded
	SlotClosed SlotState = 2 // its end was recorded too
	SlotDrain  SlotState = 3 // its span is accounted for, an event may be pending
)

// String is the state's name.
func (s SlotState) String() string {
	switch s {
	case SlotFree:
		return "free"
	case SlotOpen:
		return "open"
	case SlotClosed:
		return "closed"
	case SlotDrain:
		return "drain"
	}
	return "unknown"
}

// Slot is what a slot's owner writes into it, so that what is in flight can be
// seen from outside.
type Slot struct {
	Kind          Kind // of the span
	Armed         bool
	Gap           Gap
	Context       uint8
	Lane          uint16
	Stream        uint16
	Step          uint64
	EnqueueMonoNS int64 // when the start was enqueued
	ClosedMonoNS  int64 // when the end was enqueued, 0 while open
	Name          NameID
	Ordinal       uint32
	Parent        uint32
	Graph         uint64 // free for the owner
	SharedStart   bool
}

// SlotWord is generation and state of a slot.
type SlotWord uint64

// State is the slot's state.
func (w SlotWord) State() SlotState { return SlotState(w & 3) }

// Generation counts how often the slot was taken, modulo 1<<32.
func (w SlotWord) Generation() uint32 { return uint32(w >> 2) }

// MakeSlotWord packs a generation and a state.
func MakeSlotWord(gen uint32, s SlotState) SlotWord { return SlotWord(gen)<<2 | SlotWord(s&3) }

// Slots is a writer's view of a part of the slot table.
type Slots struct {
	m     memory
	off   int64
	count int
}

// Len is the number of slots.
func (s Slots) Len() int { return s.count }

func (s Slots) rec(i int) *[8]uint64 {
	if uint(i) >= uint(s.count) {
		panic("spanring: no such slot")
	}
	return s.m.words8(s.off + int64(i)*SlotSize)
}

// Word loads the word of slot i.
func (s Slots) Word(i int) SlotWord { return SlotWord(atomic.LoadUint64(&s.rec(i)[0])) }

// CompareAndSwap changes the word of slot i from old to new.
func (s Slots) CompareAndSwap(i int, old, new SlotWord) bool {
	return atomic.CompareAndSwapUint64(&s.rec(i)[0], uint64(old), uint64(new))
}

// Store sets the word of slot i. Only the slot's owner may call it.
func (s Slots) Store(i int, w SlotWord) { atomic.StoreUint64(&s.rec(i)[0], uint64(w)) }

// Put writes what slot i holds. Only the slot's owner may call it, once it has
// taken the slot: the contents carry the generation that the slot's word has
// now, stored last, so that no reader takes those of an earlier span for them.
func (s Slots) Put(i int, v *Slot) {
	p := s.rec(i)
	w := v.words(atomic.LoadUint64(&p[slotMark+1]))
	putWords(p, &w)
	gen := SlotWord(atomic.LoadUint64(&p[0])).Generation()
	atomic.StoreUint64(&p[slotMark+1], v.mark(gen))
}

// words is what v looks like as a slot's payload, with another word in the place
// of the mark.
func (v *Slot) words(mark uint64) Words {
	return Words{
		v.Step, uint64(v.EnqueueMonoNS), uint64(v.ClosedMonoNS),
		uint64(v.Name) | uint64(v.Ordinal)<<32,
		uint64(v.Parent) | uint64(v.Lane)<<32 | uint64(v.Stream)<<48,
		mark,
		v.Graph,
	}
}

// mark is the mark that says that v are the contents of generation gen.
func (v *Slot) mark(gen uint32) uint64 {
	var fl uint64
	if v.Armed {
		fl |= flagArmed
	}
	if v.SharedStart {
		fl |= flagSharedStart
	}
	fl |= uint64(v.Gap & flagGapMask)
	return uint64(v.Kind) | fl<<8 | uint64(v.Context)<<16 | uint64(gen)<<32
}

// slotMark is the payload word that holds kind, flags, context and, in its upper
// half, the generation whose contents these are.
const slotMark = 5

// SetClosed writes when the end of slot i was enqueued and what is known of the
// gap. Only the slot's owner may call it.
func (s Slots) SetClosed(i int, closedMonoNS int64, gap Gap) {
	p := s.rec(i)
	atomic.StoreUint64(&p[3], uint64(closedMonoNS))
	if gap != GapUnknown {
		m := &p[slotMark+1]
		atomic.StoreUint64(m, atomic.LoadUint64(m)&^(flagGapMask<<8)|uint64(gap&flagGapMask)<<8)
	}
}

// Get reads what slot i holds. Only the slot's owner may call it; others look
// through Reader.Busy, which tells contents that are being written.
func (s Slots) Get(i int) Slot {
	v, _ := parseSlot(s.rec(i))
	return v
}

// parseSlot reads a slot's contents and the generation that they belong to. The
// mark is loaded first: once it shows a generation, the rest of it is there.
func parseSlot(p *[8]uint64) (Slot, uint32) {
	mark := atomic.LoadUint64(&p[slotMark+1])
	var w Words
	for i := range w {
		w[i] = atomic.LoadUint64(&p[i+1])
	}
	w[slotMark] = mark
	fl := uint8(mark >> 8)
	return Slot{
		Step: w[0], EnqueueMonoNS: int64(w[1]), ClosedMonoNS: int64(w[2]),
		Name: NameID(w[3]), Ordinal: uint32(w[3] >> 32),
		Parent: uint32(w[4]), Lane: uint16(w[4] >> 32), Stream: uint16(w[4] >> 48),
		Kind: Kind(w[5]), Armed: fl&flagArmed != 0, SharedStart: fl&flagSharedStart != 0, Gap: min(Gap(fl&flagGapMask), GapStarved),
		Context: uint8(w[5] >> 16), Graph: w[6],
	}, uint32(mark >> 32)
}
