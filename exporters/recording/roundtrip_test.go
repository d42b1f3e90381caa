package recording

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// played is everything that a source says when it is read to its end.
type played struct {
	Entries  []spanring.Entry
	NowNS    []int64 // after each poll that returned some
	Names    map[spanring.NameID]spanring.Name
	Info     spanring.Info
	Wall     int64
	Counters spanring.Counters
	Contexts []spanring.ContextState
	Account  spanring.Account
	Busy     []spanring.SlotEntry
	Alive    bool
	Allocs   []spanring.Alloc
}

func play(t testing.TB, src collector.Source, size int, each func([]spanring.Entry)) (p played, err error) {
	t.Helper()
	p.Names = make(map[spanring.NameID]spanring.Name)
	buf := make([]spanring.Entry, size)
	for {
		n, done, perr := src.Poll(buf)
		if n > 0 {
			p.Entries = append(p.Entries, buf[:n]...)
			p.NowNS = append(p.NowNS, src.NowMonoNS())
			for i := range buf[:n] {
				if id := nameOf(&buf[i].Words); id != 0 {
					if nm, ok := src.Name(id); ok {
						p.Names[id] = nm
					}
				}
			}
			if each != nil {
				each(buf[:n])
			}
		}
		if done || perr != nil {
			err = perr
			break
		}
	}
	p.Info, _ = src.Info()
	p.Wall = src.WallOffsetNS()
	p.Counters, _ = src.Counters()
	p.Contexts, _ = src.Contexts()
	p.Account = src.Account()
	p.Busy, _ = src.Busy()
	p.Alive, _ = src.Alive()
	if s, ok := src.(collector.AllocSource); ok {
		p.Allocs, _, _ = s.Allocs(nil)
	}
	return p, err
}

// record plays engines round about into a recording and returns what each said.
func record(t testing.TB, w *Writer, engines ...*synth.Engine) []played {
	t.Helper()
	type one struct {
		e   *synth.Engine
		r   *Run
		p   played
		end bool
	}
	var all []*one
	for _, e := range engines {
		r, err := w.Begin(e)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &one{e: e, r: r, p: played{Names: make(map[spanring.NameID]spanring.Name)}})
	}
	buf := make([]spanring.Entry, 256)
	for left := len(all); left > 0; {
		for _, o := range all {
			if o.end {
				continue
			}
			n, done, _ := o.e.Poll(buf)
			if n > 0 {
				o.p.Entries = append(o.p.Entries, buf[:n]...)
				if err := o.r.Append(buf[:n]); err != nil {
					t.Fatal(err)
				}
				for i := range buf[:n] {
					if id := nameOf(&buf[i].Words); id != 0 {
						o.p.Names[id], _ = o.e.Name(id)
					}
				}
			}
			if done {
				if err := o.r.End(); err != nil {
					t.Fatal(err)
				}
				o.end = true
				left--
			}
		}
	}
	var out []played
	for _, o := range all {
		o.p.Info, _ = o.e.Info()
		o.p.Wall = o.e.WallOffsetNS()
		o.p.Counters, _ = o.e.Counters()
		o.p.Contexts, _ = o.e.Contexts()
		o.p.Account = o.e.Account()
		o.p.Alive, _ = o.e.Alive()
		out = append(out, o.p)
	}
	return out
}

func recordBytes(t testing.TB, o Options, engines ...*synth.Engine) ([]byte, []played) {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, o)
	if err != nil {
		t.Fatal(err)
	}
	p := record(t, w, engines...)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), p
}

func openBytes(t testing.TB, b []byte) *File {
	t.Helper()
	f, err := NewReader(bytes.NewReader(b), int64(len(b)), "x.ltrec")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRoundTrip(t *testing.T) {
	for _, tc := range []struct {
		name    string
		o       Options
		poll    int
		engines []synth.Options
	}{
		{"one engine", Options{}, 256, []synth.Options{{Duration: 300 * time.Millisecond, RequestEvery: 4, Model: "org/model"}}},
		{"small blocks", Options{FlushEntries: 7, FlushEvery: time.Nanosecond}, 5, []synth.Options{{Duration: 40 * time.Millisecond, Seed: 2}}},
		{"three engines", Options{FlushEntries: 100}, 64, []synth.Options{
			{Duration: 100 * time.Millisecond, Seed: 3, FailEvery: 9, DropEvery: 11},
			{Duration: 200 * time.Millisecond, Seed: 4, KernelEvery: 3, LaneEvery: 2, DiffEvery: 5},
			{Duration: 10 * time.Millisecond, Seed: 5, KernelEvery: -1, Outlives: true},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var engines []*synth.Engine
			for _, o := range tc.engines {
				engines = append(engines, synth.New(o))
			}
			b, want := recordBytes(t, tc.o, engines...)
			f := openBytes(t, b)
			if err := f.Damage(); err != nil {
				t.Fatal(err)
			}
			if len(f.Runs()) != len(want) {
				t.Fatalf("%d runs, want %d", len(f.Runs()), len(want))
			}
			for i := range want {
				r := f.Runs()[i]
				if !r.Complete || r.EndMonoNS <= r.StartMonoNS {
					t.Errorf("run %d: complete %v from %d to %d", i, r.Complete, r.StartMonoNS, r.EndMonoNS)
				}
				if d := cmp.Diff(want[i].Info, r.Info); d != "" {
					t.Errorf("run %d: info (-want +got):\n%s", i, d)
				}
				s, err := f.Source(i)
				if err != nil {
					t.Fatal(err)
				}
				got, err := play(t, s, tc.poll, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				for j := 1; j < len(got.NowNS); j++ {
					if got.NowNS[j] < got.NowNS[j-1] {
						t.Fatalf("run %d: time goes back from %d to %d", i, got.NowNS[j-1], got.NowNS[j])
					}
				}
				got.NowNS = nil
				if len(want[i].Entries) == 0 {
					t.Fatalf("run %d has no entries", i)
				}
				if d := cmp.Diff(want[i], got); d != "" {
					t.Errorf("run %d (-want +got):\n%s", i, d)
				}
			}
		})
	}
}

// Entries come out at the time at which they were received: not before, and at
// most the grid later.
func TestReceptionTime(t *testing.T) {
	e := synth.New(synth.Options{Duration: 200 * time.Millisecond})
	var out bytes.Buffer
	w, err := NewWriter(&out, Options{FlushEntries: 300})
	if err != nil {
		t.Fatal(err)
	}
	r, err := w.Begin(e)
	if err != nil {
		t.Fatal(err)
	}
	var at []int64
	if _, err := play(t, e, 64, func(es []spanring.Entry) {
		for range es {
			at = append(at, e.NowMonoNS())
		}
		if err := r.Append(es); err != nil {
			t.Fatal(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := openBytes(t, out.Bytes()).Source(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	buf := make([]spanring.Entry, 1)
	for i, want := range at {
		got, ok := s.NextMonoNS()
		if !ok || got < want || got-want >= recvUnitNS {
			t.Fatalf("entry %d received at %d, %v; want %d", i, got, ok, want)
		}
		if n, done, err := s.PollUntil(buf, got-1); n != 0 || done || err != nil {
			t.Fatalf("entry %d before its time: %d, %v, %v", i, n, done, err)
		}
		if n, _, err := s.PollUntil(buf, got); n != 1 || err != nil {
			t.Fatalf("entry %d at its time: %d, %v", i, n, err)
		}
	}
	if _, ok := s.NextMonoNS(); ok {
		t.Error("an entry after the last")
	}
}

// Any words come through, also such as no producer writes.
func TestAnyWords(t *testing.T) {
	word := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 300), rapid.Map(rapid.Uint(), func(u uint) uint64 { return uint64(u) << 32 }))
	entry := rapid.Custom(func(t *rapid.T) spanring.Entry {
		e := spanring.Entry{Seq: word.Draw(t, "seq")}
		for i := range e.Words {
			e.Words[i] = word.Draw(t, "word")
		}
		e.Words[0] = e.Words[0]&^0xff | uint64(rapid.Uint8Range(0, 20).Draw(t, "kind"))
		return e
	})
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(entry, 1, 60).Draw(t, "entries")
		var enc encoder
		enc.reset()
		now := int64(5)
		var recv []int64
		for i := range want {
			e := want[i]
			now += rapid.Int64Range(0, 3*recvUnitNS).Draw(t, "gap")
			recv = append(recv, (now+recvUnitNS-1)/recvUnitNS*recvUnitNS)
			enc.add(&e, now)
			if e != want[i] {
				t.Fatalf("encoding changed entry %d", i)
			}
		}
		var dec decoder
		if err := dec.open(enc.payload(nil)); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if dec.recvMonoNS() != recv[i] {
				t.Fatalf("entry %d received at %d, want %d", i, dec.recvMonoNS(), recv[i])
			}
			var got spanring.Entry
			if err := dec.next(&got); err != nil {
				t.Fatal(err)
			}
			if got != want[i] {
				t.Fatalf("entry %d:\n got %x\nwant %x", i, got, want[i])
			}
		}
		if dec.left != 0 {
			t.Fatalf("%d entries left", dec.left)
		}
	})
}

func TestStateRoundTrip(t *testing.T) {
	want := state{
		monoNS: 123456789, wallOffsetNS: -5, alive: true,
		info: spanring.Info{
			RunID: spanring.RunID{1, 2, 3}, PID: 7, PIDNamespace: 8, StartTicks: 9, CreatedUnixNS: -10, CreatedMonoNS: 11,
			Executable: "exe", Service: "svc", GPUUUID: "GPU-1", GPUName: "H", Rank: spanring.Rank{Data: 0, Tensor: 3, Pipeline: -1, Expert: 2},
			Producer: "p", Model: "org/model", Level: 3, Clean: true, KernelEvery: 64, LaneEvery: 4, ArmedRequested: 5,
		},
		account: spanring.Account{Published: 14, Received: 5, Lost: 7, Missed: 1, Pending: 1, Overwritten: 2, Holes: 1, Unreadable: 4},
		contexts: []spanring.ContextState{{
			Index: 3, UUID: [16]byte{9}, MIG: true, Device: -1, Capability: 90, Calibration: spanring.CalibrationAssumed,
			ConstantNS: 3040, SpreadNS: 60, FirstSlot: 1, Slots: 2, GPURefNS: -1, HostRefNS: 2, RatePPB: -3, UpdatedMonoNS: 4, UncertaintyNS: 5,
		}},
		busy: []spanring.SlotEntry{{Index: 4, State: spanring.SlotClosed, Slot: spanring.Slot{
			Kind: spanring.KindKernel, Armed: true, Gap: spanring.GapQueued, Context: 1, Lane: 2, Stream: 3, Step: 4, EnqueueMonoNS: 5,
			ClosedMonoNS: 6, Name: 7, Ordinal: 8, Parent: 9, Graph: 10, SharedStart: true,
		}}},
	}
	want.counters[spanring.CtrBegun], want.counters[127] = 1<<63, 1
	var got state
	if !got.parse(want.append(nil)) {
		t.Fatal("does not parse")
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(state{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	// What a later version appends is ignored.
	if !got.parse(append(want.append(nil), 1, 2, 3)) {
		t.Error("does not parse with more behind it")
	}
	whole := want.append(nil)
	older := len(whole) - 1                 // what recordings with a model have
	old := older - 1 - len(want.info.Model) // what the first recordings have
	for n := range whole {
		if ends := n == old || n == older; got.parse(whole[:n]) != ends {
			t.Errorf("cut to %d bytes of %d: parses %v", n, len(whole), !ends)
		}
	}
	want.account.Unreadable, want.account.Lost = 0, 3
	if !got.parse(whole[:older]) || !cmp.Equal(want, got, cmp.AllowUnexported(state{})) {
		t.Errorf("a state without what was unreadable: %+v", got)
	}
	if want.info.Model = ""; !got.parse(whole[:old]) || !cmp.Equal(want, got, cmp.AllowUnexported(state{})) {
		t.Errorf("a state without a model: %+v", got)
	}
}

// States are told in order, with the entries before them, and the account of a
// position balances.
func TestStates(t *testing.T) {
	b, want := recordBytes(t, Options{FlushEvery: 50 * time.Millisecond}, synth.New(synth.Options{Duration: 500 * time.Millisecond}))
	s, err := openBytes(t, b).Source(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var got []State
	s.OnState(func(st State) { got = append(got, st) })
	if _, err := play(t, s, 100, func([]spanring.Entry) {
		a := s.Account()
		if a.Published != a.Received+a.Lost+a.Missed+a.Pending {
			t.Fatalf("account does not balance: %+v", a)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if len(got) < 8 {
		t.Fatalf("%d states", len(got))
	}
	for i := range got {
		if got[i].End != (i == len(got)-1) {
			t.Errorf("state %d of %d: end %v", i, len(got), got[i].End)
		}
		if i > 0 && (got[i].MonoNS < got[i-1].MonoNS || got[i].Counters[spanring.CtrBegun] < got[i-1].Counters[spanring.CtrBegun]) {
			t.Errorf("state %d goes back", i)
		}
	}
	if got[0].Counters != (spanring.Counters{}) || got[len(got)-1].Counters != want[0].Counters {
		t.Error("counters of the first or last state are wrong")
	}
}

func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.ltrec")
	w, err := Create(path, Options{Writer: "lanetrace v1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	record(t, w, synth.New(synth.Options{Duration: 50 * time.Millisecond}))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := w.Flush(); err != nil {
		t.Errorf("Flush after Close: %v", err)
	}
	st := w.Stats()
	fi, err := os.Stat(path)
	if err != nil || st.Bytes != fi.Size() || st.Runs != 1 || st.Entries == 0 {
		t.Errorf("stats %+v, file has %d bytes (%v)", st, fi.Size(), err)
	}
	if _, err := Create(path, Options{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("Create over a file: %v", err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if f.Writer() != "lanetrace v1.2.3" || f.Path() != path {
		t.Errorf("writer %q, path %q", f.Writer(), f.Path())
	}
	if _, err := f.Source(1); err == nil {
		t.Error("Source(1) of one run succeeds")
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{FlushEntries: -1}, {FlushEntries: 65537}, {FlushEvery: -1}} {
		if _, err := NewWriter(&bytes.Buffer{}, o); err == nil {
			t.Errorf("%+v accepted", o)
		}
	}
}

// limited fails after so many bytes, as a full disk does.
type limited struct{ left int }

func (l *limited) Write(b []byte) (int, error) {
	if len(b) > l.left {
		n := l.left
		l.left = 0
		return n, errors.New("no space left on device")
	}
	l.left -= len(b)
	return len(b), nil
}

func TestFullDisk(t *testing.T) {
	w, err := NewWriter(&limited{3000}, Options{FlushEntries: 50})
	if err != nil {
		t.Fatal(err)
	}
	e := synth.New(synth.Options{Duration: 300 * time.Millisecond})
	r, err := w.Begin(e)
	if err != nil {
		t.Fatal(err)
	}
	failed := false
	if _, err := play(t, e, 64, func(es []spanring.Entry) {
		failed = failed || r.Append(es) != nil
	}); err != nil {
		t.Fatal(err)
	}
	if !failed || w.Err() == nil {
		t.Fatalf("a full disk goes unnoticed: %v, %v", failed, w.Err())
	}
	for range 2 {
		if err := w.Close(); err == nil || err.Error() != "write recording: no space left on device" {
			t.Errorf("Close: %v", err)
		}
	}
}

// Reader and writer hold one block, however long the recording.
func TestFlatMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes and reads a million entries")
	}
	path := filepath.Join(t.TempDir(), "long.ltrec")
	w, err := Create(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	live := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	// watch returns how much more is live in the second half than in the first.
	watch := func(src collector.Source, each func([]spanring.Entry)) (entries int, grown int64) {
		buf := make([]spanring.Entry, 1024)
		var first, second uint64
		next := 200_000
		for {
			n, done, err := src.Poll(buf)
			if err != nil {
				t.Fatal(err)
			}
			if each != nil && n > 0 {
				each(buf[:n])
			}
			if entries += n; entries >= next {
				if next += 100_000; entries < 600_000 {
					first = max(first, live())
				} else {
					second = max(second, live())
				}
			}
			if done {
				return entries, int64(second) - int64(first)
			}
		}
	}
	e := synth.New(synth.Options{Duration: 110 * time.Second})
	r, err := w.Begin(e)
	if err != nil {
		t.Fatal(err)
	}
	n, grown := watch(e, func(es []spanring.Entry) {
		if err := r.Append(es); err != nil {
			t.Fatal(err)
		}
	})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if n < 1_000_000 || grown > 1<<20 {
		t.Errorf("writing %d entries: %d bytes more are live in the second half", n, grown)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m, grown := watch(s, nil)
	if m != n || grown > 1<<20 {
		t.Errorf("reading %d of %d entries: %d bytes more are live in the second half", m, n, grown)
	}
}
