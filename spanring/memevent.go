package spanring

import "fmt"

// MemEvent is an allocation made or freed, as the log has it.
type MemEvent struct {
	Kind Kind // KindAlloc or KindFree
	// Alloc is the allocation. Of a free, MonoNS is when it was freed; of one by
	// the sweep, still when it was made.
	Alloc Alloc
	// LiveBytes is what was live in its context's ledger afterwards.
	LiveBytes uint64
	// Swept: the engine never freed it; the sweep at the end did.
	Swept bool
}

// memSwept, in the place of a reason, marks a free by a sweep.
const memSwept = 1

// Words encodes e.
func (e *MemEvent) Words() Words {
	a := &e.Alloc
	var how uint8
	if e.Swept {
		how = memSwept
	}
	return Words{
		head(e.Kind, uint8(a.Kind), how, a.Context, 0, 0),
		a.Addr, min(a.Bytes, MaxAllocBytes), uint64(a.GuardBytes) | uint64(a.Site)<<32, a.Index, uint64(a.MonoNS), e.LiveBytes,
	}
}

// MemEvent decodes an allocation or free.
func (w *Words) MemEvent() (MemEvent, error) {
	e := MemEvent{
		Kind: w.Kind(),
		Alloc: Alloc{
			Addr: w[1], Bytes: w[2], GuardBytes: uint32(w[3]), Site: NameID(w[3] >> 32), Index: w[4], MonoNS: int64(w[5]),
			Kind: AllocKind(w.flags()), Context: w.context(),
		},
		LiveBytes: w[6], Swept: w.reason() == memSwept,
	}
	if e.Kind != KindAlloc && e.Kind != KindFree {
		return e, fmt.Errorf("%w: %v is neither allocation nor free", ErrEntry, e.Kind)
	}
	if how := w.reason(); how > memSwept || how != 0 && e.Kind != KindFree {
		return e, fmt.Errorf("%w: %v with mark %d", ErrEntry, e.Kind, how)
	}
	return e, e.Alloc.Check()
}

// Violation says that an allocation's guard band was found changed.
type Violation struct {
	Context    uint8
	Addr       uint64 // of the allocation
	Bytes      uint64 // of the allocation, which the band follows
	GuardBytes uint32
	Site       NameID
	Index      uint64
	MonoNS     int64 // when it was found, host, CLOCK_MONOTONIC
	// First and Last are the offsets in the band of its first and last changed
	// byte, Changed is how many changed. The first one was Fill and is Value.
	First, Last, Changed uint32
	Fill, Value          uint8
}

// Words encodes v.
func (v *Violation) Words() Words {
	return Words{
		head(KindViolation, v.Value, v.Fill, v.Context, uint16(v.Changed), uint16(v.Changed>>16)),
		v.Addr, min(v.Bytes, MaxAllocBytes), uint64(v.GuardBytes) | uint64(v.Site)<<32, v.Index, uint64(v.MonoNS),
		uint64(v.First) | uint64(v.Last)<<32,
	}
}

// Violation decodes a guard band's violation.
func (w *Words) Violation() (Violation, error) {
	v := Violation{
		Context: w.context(), Addr: w[1], Bytes: w[2], GuardBytes: uint32(w[3]), Site: NameID(w[3] >> 32), Index: w[4], MonoNS: int64(w[5]),
		First: uint32(w[6]), Last: uint32(w[6] >> 32), Changed: uint32(w.lane()) | uint32(w.stream())<<16,
		Fill: w.reason(), Value: w.flags(),
	}
	if w.Kind() != KindViolation {
		return v, fmt.Errorf("%w: %v is no violation", ErrEntry, w.Kind())
	}
	a := Alloc{Addr: v.Addr, Bytes: v.Bytes, GuardBytes: v.GuardBytes, Kind: AllocDevice, Context: v.Context, MonoNS: v.MonoNS}
	if err := a.Check(); err != nil {
		return v, err
	}
	if v.First > v.Last || v.Last >= v.GuardBytes || v.Changed == 0 || v.Changed > v.Last-v.First+1 || v.Value == v.Fill ||
		v.Changed == 1 && v.First != v.Last {
		return v, fmt.Errorf("%w: violation of %d bytes from %d to %d of a guard band of %d, %#x for %#x", ErrEntry, v.Changed, v.First, v.Last, v.GuardBytes, v.Value, v.Fill)
	}
	return v, nil
}
