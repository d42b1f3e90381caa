package recording

import (
	"encoding/binary"
	"math"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// state is everything about a run but its entries and names, at one moment.
type state struct {
	// monoNS is the source's time, wallOffsetNS what makes Unix time of it.
	monoNS, wallOffsetNS int64
	alive                bool
	info                 spanring.Info
	account              spanring.Account
	counters             spanring.Counters
	contexts             []spanring.ContextState
	// busy are the slots in flight, in the state that ends a run only.
	busy []spanring.SlotEntry
}

// read takes the state of src. What cannot be had any more keeps its value.
func (s *state) read(src collector.Source) {
	s.monoNS, s.wallOffsetNS = src.NowMonoNS(), src.WallOffsetNS()
	alive, err := src.Alive()
	s.alive = alive && err == nil
	if i, err := src.Info(); err == nil {
		s.info = i
	}
	s.account = src.Account()
	if c, err := src.Counters(); err == nil {
		s.counters = c
	}
	if c, err := src.Contexts(); err == nil {
		s.contexts = c
	}
}

const (
	flagAlive = 1 << 0
	flagClean = 1 << 1

	maxInfoText = 256
	maxBusy     = 1 << 20
)

func (s *state) append(b []byte) []byte {
	var fl uint64
	if s.alive {
		fl |= flagAlive
	}
	if s.info.Clean {
		fl |= flagClean
	}
	b = binary.AppendUvarint(b, fl)
	b = appendInt(b, s.monoNS)
	b = appendInt(b, s.wallOffsetNS)

	i := &s.info
	b = append(b, i.RunID[:]...)
	for _, v := range []uint64{uint64(i.PID), i.PIDNamespace, i.StartTicks, uint64(i.Level), uint64(i.KernelEvery) | uint64(i.LaneEvery)<<32, uint64(i.ArmedRequested)} {
		b = binary.AppendUvarint(b, v)
	}
	for _, v := range []int64{i.CreatedUnixNS, i.CreatedMonoNS, int64(i.Rank.Data), int64(i.Rank.Tensor), int64(i.Rank.Pipeline), int64(i.Rank.Expert)} {
		b = appendInt(b, v)
	}
	for _, t := range []string{i.Executable, i.Service, i.GPUUUID, i.GPUName, i.Producer} {
		b = appendText(b, t[:min(len(t), maxInfoText)])
	}

	a := &s.account
	for _, v := range []uint64{a.Published, a.Received, a.Missed, a.Pending, a.Overwritten, a.Holes} {
		b = binary.AppendUvarint(b, v)
	}

	set := 0
	for _, v := range s.counters {
		if v != 0 {
			set++
		}
	}
	b = binary.AppendUvarint(b, uint64(set))
	for c, v := range s.counters {
		if v != 0 {
			b = binary.AppendUvarint(b, uint64(c))
			b = binary.AppendUvarint(b, v)
		}
	}

	b = binary.AppendUvarint(b, uint64(len(s.contexts)))
	for j := range s.contexts {
		b = appendContext(b, &s.contexts[j])
	}

	b = binary.AppendUvarint(b, uint64(len(s.busy)))
	for j := range s.busy {
		b = appendBusy(b, &s.busy[j])
	}
	b = appendText(b, i.Model[:min(len(i.Model), spanring.MaxNameBytes)])
	return binary.AppendUvarint(b, a.Unreadable)
}

// parse reverses append. It reports whether b can be a state.
func (s *state) parse(b []byte) bool {
	f := fields{b: b}
	*s = state{}
	fl := f.uint()
	s.alive, s.info.Clean = fl&flagAlive != 0, fl&flagClean != 0
	s.monoNS, s.wallOffsetNS = f.int(), f.int()

	i := &s.info
	copy(i.RunID[:], f.bytes(uint64(len(i.RunID))))
	i.PID, i.PIDNamespace, i.StartTicks = uint32(f.uint()), f.uint(), f.uint()
	i.Level = uint8(f.uint())
	// The strides share a number: who knows of one alone reads its half.
	strides := f.uint()
	i.KernelEvery, i.LaneEvery, i.ArmedRequested = uint32(strides), uint32(strides>>32), uint32(f.uint())
	i.CreatedUnixNS, i.CreatedMonoNS = f.int(), f.int()
	i.Rank = spanring.Rank{Data: int32(f.int()), Tensor: int32(f.int()), Pipeline: int32(f.int()), Expert: int32(f.int())}
	for _, t := range []*string{&i.Executable, &i.Service, &i.GPUUUID, &i.GPUName, &i.Producer} {
		*t = f.text(maxInfoText)
	}

	a := &s.account
	for _, v := range []*uint64{&a.Published, &a.Received, &a.Missed, &a.Pending, &a.Overwritten, &a.Holes} {
		*v = f.uint()
	}

	n := f.uint()
	if n > 1<<16 {
		return false
	}
	for range n {
		c, v := f.uint(), f.uint()
		// A later version may know more counters.
		if c < uint64(spanring.NumCounters) {
			s.counters[c] = v
		}
	}

	n = f.uint()
	if n > spanring.MaxContexts {
		return false
	}
	for range n {
		s.contexts = append(s.contexts, parseContext(&f))
	}

	n = f.uint()
	if n > maxBusy || n > uint64(len(f.b)) {
		return false
	}
	for range n {
		if f.bad {
			return false
		}
		s.busy = append(s.busy, parseBusy(&f))
	}
	// The first recordings end here, and others behind the model.
	if len(f.b) > 0 {
		i.Model = f.text(spanring.MaxNameBytes)
	}
	if len(f.b) > 0 {
		a.Unreadable = f.uint()
	}
	a.Lost = a.Overwritten + a.Holes + a.Unreadable
	return !f.bad && s.monoNS >= 0 && saneNS(s.monoNS) && saneNS(s.wallOffsetNS)
}

// saneNS refuses clocks that cannot be: they would overflow in sums further on.
func saneNS(v int64) bool { return v > math.MinInt64/4 && v < math.MaxInt64/4 }

func appendContext(b []byte, c *spanring.ContextState) []byte {
	mig := uint64(0)
	if c.MIG {
		mig = 1
	}
	b = append(b, c.UUID[:]...)
	for _, v := range []uint64{uint64(c.Index), mig, uint64(c.Capability), uint64(c.Calibration), uint64(c.ConstantNS), uint64(c.SpreadNS), uint64(c.FirstSlot), uint64(c.Slots), c.UncertaintyNS} {
		b = binary.AppendUvarint(b, v)
	}
	for _, v := range []int64{int64(c.Device), c.GPURefNS, c.HostRefNS, c.RatePPB, c.UpdatedMonoNS} {
		b = appendInt(b, v)
	}
	return b
}

func parseContext(f *fields) (c spanring.ContextState) {
	copy(c.UUID[:], f.bytes(uint64(len(c.UUID))))
	c.Index, c.MIG, c.Capability = uint8(f.uint()), f.uint() != 0, uint16(f.uint())
	c.Calibration = min(spanring.Calibration(f.uint()), spanring.CalibrationAssumed)
	c.ConstantNS, c.SpreadNS = uint32(f.uint()), uint32(f.uint())
	c.FirstSlot, c.Slots, c.UncertaintyNS = uint32(f.uint()), uint32(f.uint()), f.uint()
	c.Device, c.GPURefNS, c.HostRefNS, c.RatePPB, c.UpdatedMonoNS = int32(f.int()), f.int(), f.int(), f.int(), f.int()
	if c.Index >= spanring.MaxContexts {
		f.bad = true
	}
	return c
}

const (
	slotArmed       = 1 << 0
	slotSharedStart = 1 << 1
)

func appendBusy(b []byte, e *spanring.SlotEntry) []byte {
	s := &e.Slot
	var fl uint64
	if s.Armed {
		fl |= slotArmed
	}
	if s.SharedStart {
		fl |= slotSharedStart
	}
	for _, v := range []uint64{
		uint64(e.Index), uint64(e.State), uint64(s.Kind), fl, uint64(s.Gap), uint64(s.Context), uint64(s.Lane),
		uint64(s.Stream), s.Step, uint64(s.Name), uint64(s.Ordinal), uint64(s.Parent), s.Graph,
	} {
		b = binary.AppendUvarint(b, v)
	}
	b = appendInt(b, s.EnqueueMonoNS)
	return appendInt(b, s.ClosedMonoNS)
}

func parseBusy(f *fields) (e spanring.SlotEntry) {
	e.Index, e.State = int(f.uint()&math.MaxInt32), min(spanring.SlotState(f.uint()), spanring.SlotDrain)
	s := &e.Slot
	s.Kind = spanring.Kind(f.uint())
	fl := f.uint()
	s.Armed, s.SharedStart = fl&slotArmed != 0, fl&slotSharedStart != 0
	s.Gap, s.Context, s.Lane, s.Stream = min(spanring.Gap(f.uint()), spanring.GapStarved), uint8(f.uint()), uint16(f.uint()), uint16(f.uint())
	s.Step, s.Name, s.Ordinal, s.Parent, s.Graph = f.uint(), spanring.NameID(f.uint()), uint32(f.uint()), uint32(f.uint()), f.uint()
	s.EnqueueMonoNS, s.ClosedMonoNS = f.int(), f.int()
	return e
}

// appendName and parseName code one name of a run's table.
func appendName(b []byte, id spanring.NameID, n *spanring.Name) []byte {
	b = binary.AppendUvarint(b, uint64(id))
	b = binary.AppendUvarint(b, uint64(n.Kind))
	b = binary.AppendUvarint(b, n.GraphID)
	b = binary.AppendUvarint(b, uint64(n.GraphNodes))
	return appendText(b, n.Text)
}

func parseName(f *fields) (id spanring.NameID, n spanring.Name) {
	id = spanring.NameID(f.uint())
	n.Kind, n.GraphID, n.GraphNodes = spanring.NameKind(f.uint()), f.uint(), uint32(f.uint())
	n.Text = f.text(spanring.MaxNameBytes)
	return id, n
}

// nameOf is the name that an entry refers to, 0 for none.
func nameOf(w *spanring.Words) spanring.NameID {
	switch k := w.Kind(); {
	case k.IsSpan() || k == spanring.KindSpanFailed || k == spanring.KindLaunchDiff:
		return spanring.NameID(w[5])
	case k == spanring.KindAlloc || k == spanring.KindFree || k == spanring.KindViolation:
		return spanring.NameID(w[3] >> 32)
	}
	return 0
}
