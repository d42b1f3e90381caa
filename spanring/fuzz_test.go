package spanring

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// decodeAll runs every decoder over w. What one accepts must survive another
// round of encoding.
func decodeAll(t *testing.T, w Words) {
	t.Helper()
	again := func(what string, in, out any, err error) {
		t.Helper()
		if d := cmp.Diff(in, out, readings); d != "" || err != nil {
			t.Fatalf("%x as %s, encoded and decoded again: %v\n%s", w, what, err, d)
		}
	}
	accepted := 0
	refused := func(err error) bool {
		t.Helper()
		if err != nil && !errors.Is(err, ErrEntry) {
			t.Fatalf("%x: %v", w, err)
		}
		if err == nil {
			accepted++
		}
		return err != nil
	}
	if s, err := w.Span(); !refused(err) {
		if s.EndMonoNS() < s.StartMonoNS || s.DurationNS() > s.RawNS {
			t.Fatalf("%+v ends before it starts", s)
		}
		w := s.Words()
		out, err := w.Span()
		again("span", s, out, err)
	}
	if s, err := w.SpanFailed(); !refused(err) {
		w := s.Words()
		out, err := w.SpanFailed()
		again("failed span", s, out, err)
	}
	if s, err := w.StepBegin(); !refused(err) {
		w := s.Words()
		out, err := w.StepBegin()
		again("step begin", s, out, err)
	}
	if s, err := w.StepEnd(); !refused(err) {
		w := s.Words()
		out, err := w.StepEnd()
		again("step end", s, out, err)
	}
	if s, err := w.StepAttrs(); !refused(err) {
		w := s.Words()
		out, err := w.StepAttrs()
		again("step attributes", s, out, err)
	}
	if s, err := w.Anchor(); !refused(err) {
		w := s.Words()
		out, err := w.Anchor()
		again("anchor", s, out, err)
	}
	if e, err := w.MemEvent(); !refused(err) {
		w := e.Words()
		out, err := w.MemEvent()
		again("allocation", e, out, err)
	}
	if v, err := w.Violation(); !refused(err) {
		w := v.Words()
		out, err := w.Violation()
		again("violation", v, out, err)
	}
	if s, err := w.LaunchDiff(); !refused(err) {
		w := s.Words()
		out, err := w.LaunchDiff()
		again("launch diff", s, out, err)
	}
	if l, err := w.StepLink(); !refused(err) {
		w := l.Words()
		out, err := w.StepLink()
		again("trace context", l, out, err)
	}
	if r, err := w.RequestEnd(); !refused(err) {
		w := r.Words()
		out, err := w.RequestEnd()
		again("request end", r, out, err)
	}
	if r, more, err := w.Device(); !refused(err) {
		ws := r.Append(nil)
		out, _, err := ws[0].Device()
		again("device reading", r, out, err)
		if len(ws) != 1 || int64(w[3]) != r.MonoNS || more && w.Kind() != KindDevice {
			t.Fatalf("%x is an entry of a reading, and %d", w, len(ws))
		}
	}
	if accepted > 1 {
		t.Fatalf("%x is %d kinds at once", w, accepted)
	}
	_ = w.Kind().String()
}

// lookAround calls everything but Poll.
func lookAround(t *testing.T, r *Reader) {
	t.Helper()
	valid := func(texts ...string) {
		for _, s := range texts {
			if !utf8.ValidString(s) {
				t.Fatalf("%q is not UTF-8", s)
			}
		}
	}
	failed := func(err error) bool {
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		return err != nil
	}
	if i, err := r.Info(); !failed(err) {
		valid(i.Executable, i.Service, i.GPUName, i.GPUUUID, i.Producer, i.Model)
	}
	if c, err := r.Counters(); !failed(err) {
		_, _ = c.Failed(), c.InFlight()
	}
	if cs, err := r.Contexts(); !failed(err) {
		for _, c := range cs {
			if c.Index >= MaxContexts || int64(c.FirstSlot)+int64(c.Slots) > int64(r.Geometry().Slots) {
				t.Fatalf("context %+v", c)
			}
			valid(c.UUIDText(), c.Calibration.String())
		}
	}
	if b, err := r.Busy(); !failed(err) {
		for _, s := range b {
			if s.Index >= r.Geometry().Slots || s.State == SlotFree || !s.Slot.Kind.IsSpan() || s.Slot.Context >= MaxContexts || s.Slot.Gap > GapStarved {
				t.Fatalf("slot %+v", s)
			}
		}
	}
	if as, s, err := r.Allocs(nil); !failed(err) {
		sum := uint64(0)
		for _, a := range as {
			if a.Check() != nil {
				t.Fatalf("allocation %+v", a)
			}
			if sum+a.Bytes < sum {
				t.Fatal("the table's bytes overflow")
			}
			sum += a.Bytes
		}
		if len(as) > r.Geometry().Allocs || s.State > AllocsStale || s.State == AllocsNotTracked && (len(as) > 0 || s.Totals != MemoryTotals{}) {
			t.Fatalf("%d allocations, %+v", len(as), s)
		}
		valid(s.State.String())
	}
	for id := NameID(0); id < 300; id++ {
		if n, ok := r.Name(id); ok {
			valid(n.Text)
			if len(n.Text) > 3*MaxNameBytes {
				t.Fatalf("a name of %d bytes", len(n.Text))
			}
		}
	}
	if n, ok := r.Name(1<<32 - 1); ok {
		t.Fatalf("name %+v", n)
	}
	if _, err := r.Alive(); err != nil {
		failed(err)
	}
}

// FuzzBytes takes anything for a ring file.
func FuzzBytes(f *testing.F) {
	good := ringBytes(f)
	f.Add(good)
	f.Add(good[:HeaderSize])
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := NewBytesReader(b, ReaderOptions{})
		if err != nil {
			if !errors.Is(err, ErrNotRing) && !errors.Is(err, ErrVersion) && !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		lookAround(t, r)
		got := uint64(0)
		buf := make([]Entry, 50)
		for {
			n, err := r.Poll(buf, 0)
			if err != nil {
				t.Fatal(err) // what the head is, attaching has seen
			}
			if n == 0 {
				break
			}
			for _, e := range buf[:n] {
				decodeAll(t, e.Words)
			}
			got += uint64(n)
		}
		a := r.Account()
		balanced(t, a)
		if a.Received != got || got > uint64(r.Geometry().LogEntries) || a.Pending != 0 {
			t.Fatalf("%d entries, %+v", got, a)
		}
		// A copy of it is as good.
		s, err := r.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(s, b[:len(s)]) {
			// Context records that were being written stay so, in another way.
			copy(s[offContexts:], b[offContexts:offContexts+MaxContexts*contextSize])
			if !bytes.Equal(s, b[:len(s)]) {
				t.Fatal("a snapshot at rest differs from the file")
			}
		}
	})
}

// FuzzHostile plays a producer that writes any word of its file at any time.
// Each ten bytes are one thing that happens.
func FuzzHostile(f *testing.F) {
	op := func(what byte, at uint16, v uint64) []byte {
		return binary.LittleEndian.AppendUint64([]byte{what, byte(at), byte(at >> 8)}, v)
	}
	const word, poll, write, look, dead, stalled = 0, 1, 2, 3, 4, 5
	for _, s := range [][][]byte{
		{op(write, 100, 0), op(poll, 200, 0)},
		{op(word, offHead/8, 1<<40), op(poll, 10, 0), op(word, offHead/8, 1<<41), op(poll, 10, 0)},
		{op(word, offHead/8, 1<<63), op(poll, 10, 0)},
		{op(write, 50, 0), op(poll, 30, 0), op(word, offHead/8, 3), op(poll, 30, 0), op(look, 0, 0)},
		{op(stalled, 0, 0), op(write, 70, 0), op(poll, 200, 0), op(poll, 200, 1e9), op(dead, 0, 0), op(poll, 200, 0)},
		{op(word, HeaderSize/8, 1<<64-1), op(write, 65, 0), op(poll, 200, 0), op(look, 0, 0)},
		{op(word, offNamesUsed/8, 1<<64-1), op(word, (HeaderSize+64*64+8*64)/8, nameMark<<24|0xffff), op(look, 0, 0)},
		{op(word, offContexts/8, 2), op(word, offContexts/8+3, 1), op(word, offContexts/8+5, 1<<64-1), op(look, 0, 0)},
		{op(word, offAllocUse/8, 1<<64-1-allocStale), op(word, (HeaderSize+64*64+8*64+4096)/8, 1), op(word, (HeaderSize+64*64+8*64+4096)/8+1, 9), op(word, (HeaderSize+64*64+8*64+4096)/8+2, 7), op(word, (HeaderSize+64*64+8*64+4096)/8+6, 1), op(look, 0, 0)},
		{op(word, (HeaderSize+64*64)/8, 1), op(word, (HeaderSize+64*64)/8+6, 3), op(look, 0, 0)},
	} {
		f.Add(bytes.Join(s, nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w := newHeap(t, smallGeometry)
		r := heapReader(t, w, ReaderOptions{})
		words := uint64(len(w.m.b) / 8)
		received := map[uint64]bool{}
		for ; len(b) >= 11; b = b[11:] {
			at, v := binary.LittleEndian.Uint16(b[1:]), binary.LittleEndian.Uint64(b[3:])
			switch b[0] % 6 {
			case word:
				w.m.store(int64(uint64(at)%words*8), v)
			case poll:
				buf := make([]Entry, at%256)
				n, err := r.Poll(buf, int64(v))
				if err != nil && !errors.Is(err, ErrCorrupt) {
					t.Fatal(err)
				}
				for _, e := range buf[:n] {
					decodeAll(t, e.Words)
					if received[e.Seq] {
						t.Fatalf("%d came twice", e.Seq)
					}
					received[e.Seq] = true
				}
				a := r.Account()
				balanced(t, a)
				if a.Received != uint64(len(received)) || len(r.holes) > 64 || a.Pending > a.Published {
					t.Fatalf("%d entries, %d holes, %+v", len(received), len(r.holes), a)
				}
			case write:
				for i := range uint64(at % 256) {
					e := sealed(v, i)
					w.Append(&e)
				}
			case look:
				lookAround(t, r)
				s, err := r.Snapshot()
				if err != nil {
					if !errors.Is(err, ErrCorrupt) {
						t.Fatal(err)
					}
					break
				}
				if _, err := NewBytesReader(s, ReaderOptions{FromSeq: v}); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNotRing) && !errors.Is(err, ErrVersion) {
					t.Fatal(err)
				}
			case dead:
				r.MarkDead()
			case stalled:
				stall(w, v)
			}
		}
	})
}

// FuzzEntry takes any seven words for an entry.
func FuzzEntry(f *testing.F) {
	add := func(w Words) { f.Add(w[0], w[1], w[2], w[3], w[4], w[5], w[6]) }
	add(fullSpan.Words())
	add((&Span{Kind: KindLane, Ordinal: 1, LeadNS: minLead}).Words())
	add((&SpanFailed{SpanKind: KindGraph, Reason: FailMisplaced, Ordinal: 2, Parent: 1}).Words())
	add((&StepBegin{Step: 1, Armed: true}).Words())
	add((&StepEnd{Step: 1, MonoNS: 2, BeginNS: 1, Opened: 3}).Words())
	add((&StepAttrs{Step: 1, BatchSize: 8, GraphMode: GraphReplay}).Words())
	add((&Anchor{Context: 1, GPUNS: -1, RatePPB: -11800}).Words())
	add((&MemEvent{Kind: KindAlloc, Alloc: fullAlloc, LiveBytes: 1}).Words())
	add((&MemEvent{Kind: KindFree, Alloc: Alloc{Addr: 1, Bytes: 1, Kind: AllocDevice}}).Words())
	add(fullViolation.Words())
	add((&Violation{Addr: 1, Bytes: 1, GuardBytes: 1, Changed: 1, Value: 1}).Words())
	add((&StepLink{7, fullContext}).Words())
	add((&RequestEnd{fullContext, 5, 9, 100, 20}).Words())
	add(Words{})
	f.Fuzz(func(t *testing.T, a, b, c, d, e, g, h uint64) {
		decodeAll(t, Words{a, b, c, d, e, g, h})
	})
}

// FuzzControl takes anything for a control file.
func FuzzControl(f *testing.F) {
	for _, s := range []string{"", "null", "{}", `{"id":"1","level":"kernel","arm_steps":10}`, `{"id":"\ud800"}`, `[[[[`, `{"arm_steps":1e99}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseControl(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseControl(again); err != nil || got != c {
			t.Fatalf("%q as %+v, encoded and decoded again: %+v, %v", b, c, got, err)
		}
	})
}

// FuzzName interns any text and reads it back.
func FuzzName(f *testing.F) {
	f.Add(uint8(NameKernel), "gemm", uint64(0), uint32(0))
	f.Add(uint8(NameGraph), "decode", uint64(7), uint32(200))
	f.Add(uint8(NameSite), string(bytes.Repeat([]byte("é"), 700)), uint64(0), uint32(0))
	f.Add(uint8(NameOther), string(bytes.Repeat([]byte{0x80}, 1100)), uint64(0), uint32(0))
	f.Fuzz(func(t *testing.T, kind uint8, text string, graph uint64, nodes uint32) {
		w := newHeap(t, smallGeometry)
		r := heapReader(t, w, ReaderOptions{})
		first := w.Name(NameOther, "before")
		id := w.intern(nameKey{kind: NameKind(kind), text: text, graph: graph, nodes: nodes})
		last := w.Name(NameOther, "after")
		n, ok := r.Name(id)
		if !ok || n.Kind != NameKind(kind) || !utf8.ValidString(n.Text) {
			t.Fatalf("%+v, %v", n, ok)
		}
		if utf8.ValidString(text) && len(text) <= MaxNameBytes && n.Text != text {
			t.Fatalf("%q came back as %q", text, n.Text)
		}
		if n.Kind == NameGraph && (n.GraphID != graph || n.GraphNodes != nodes) {
			t.Fatalf("%+v", n)
		}
		for id, want := range map[NameID]string{first: "before", last: "after"} {
			if n, ok := r.Name(id); !ok || n.Text != want && text != want {
				t.Fatalf("its neighbour: %+v, %v", n, ok)
			}
		}
	})
}
