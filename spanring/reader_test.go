package spanring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func appendSealed(w *Writer, from, n uint64) {
	for i := from; i < from+n; i++ {
		e := sealed(1, i)
		w.Append(&e)
	}
}

func seqs(es []Entry) (s []uint64) {
	for _, e := range es {
		s = append(s, e.Seq)
	}
	return s
}

func upTo(from, to uint64) (s []uint64) {
	for ; from < to; from++ {
		s = append(s, from)
	}
	return s
}

// ringBytes is a valid ring file of the smallest geometry.
func ringBytes(t testing.TB) []byte {
	t.Helper()
	w := newHeap(t, smallGeometry)
	appendSealed(w, 0, 70)
	w.Name(NameKernel, "gemm")
	w.GraphName(1, 200, "decode")
	s, err := w.NewContext(&ContextState{Capability: 90, RatePPB: 11800}, 4)
	if err != nil {
		t.Fatal(err)
	}
	s.Store(1, MakeSlotWord(1, SlotOpen))
	s.Put(1, &Slot{Kind: KindLane, Step: 3, Ordinal: 1})
	w.Add(CtrBegun, 9)
	at := w.Allocs()
	at.Lock()
	at.Track(1, 1)
	a := fullAlloc
	at.Put(&a)
	at.Add(CtrMemLiveCount, 1)
	at.Unlock()
	return bytes.Clone(w.m.b)
}

func TestOpenRefuses(t *testing.T) {
	d := privateDir(t)
	good := ringBytes(t)
	edit := func(off int, v uint64) []byte {
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint64(b[off:], v)
		return b
	}
	size := uint64(len(good))
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, ErrNotRing},
		{"short", good[:HeaderSize-1], ErrNotRing},
		{"no magic", edit(offMagic, 0), ErrNotRing},
		{"other magic", edit(offMagic, magic+1), ErrNotRing},
		{"text", bytes.Repeat([]byte("no ring\n"), 2000), ErrNotRing},
		{"version 0", edit(offVersion, 0), ErrVersion},
		{"version 2", edit(offVersion, 2|HeaderSize<<32), ErrVersion},
		{"header size", edit(offVersion, 1|8192<<32), ErrCorrupt},
		{"header only", good[:HeaderSize], ErrCorrupt},
		{"cut", good[:len(good)-1], ErrCorrupt},
		{"file bytes", edit(offFileBytes, size-1), ErrCorrupt},
		{"log offset", edit(offLogOff, 4097), ErrCorrupt},
		{"no log entries", edit(offLogEntries, 0), ErrCorrupt},
		{"odd log entries", edit(offLogEntries, 65), ErrCorrupt},
		{"more log entries", edit(offLogEntries, 128), ErrCorrupt},
		{"log entries that wrap", edit(offLogEntries, 1<<63|64), ErrCorrupt},
		{"log entries that wrap when multiplied", edit(offLogEntries, 1<<58), ErrCorrupt},
		{"slot offset", edit(offSlotOff, 0), ErrCorrupt},
		{"no slots", edit(offSlotCount, 0), ErrCorrupt},
		{"more slots", edit(offSlotCount, 9), ErrCorrupt},
		{"name offset", edit(offNameOff, 1<<40), ErrCorrupt},
		{"name bytes", edit(offNameBytes, 1<<20), ErrCorrupt},
		{"allocation offset", edit(offAllocOff, 8), ErrCorrupt},
		{"allocations", edit(offAllocCount, 1<<40), ErrCorrupt},
		{"head nobody reaches", edit(offHead, 1<<62+1), ErrCorrupt},
		{"head of all ones", edit(offHead, math.MaxUint64), ErrCorrupt},
	} {
		p := filepath.Join(d.Path, "x.ring")
		if err := os.WriteFile(p, c.b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Open(p, ReaderOptions{})
		if !errors.Is(err, c.want) || r != nil || !strings.Contains(err.Error(), p) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: opened as %v", c.name, err)
		}
		if r, err := NewBytesReader(c.b, ReaderOptions{}); !errors.Is(err, c.want) || r != nil {
			t.Errorf("%s: read as %v", c.name, err)
		}
	}
	var ve *VersionError
	if _, err := NewBytesReader(edit(offVersion, 7), ReaderOptions{}); !errors.As(err, &ve) || ve.Version != 7 {
		t.Errorf("version 7: %v", err)
	}
	// What follows the ring is no harm.
	if _, err := NewBytesReader(append(bytes.Clone(good), 1, 2, 3), ReaderOptions{}); err != nil {
		t.Error(err)
	}
}

func TestOpenRefusesOtherFiles(t *testing.T) {
	d := privateDir(t)
	in := func(name string) string { return filepath.Join(d.Path, name) }
	w := create(t, d, smallGeometry)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Symlink(w.Path(), in("link.ring")))
	must(os.Mkdir(in("dir.ring"), 0o700))
	must(unix.Mkfifo(in("fifo.ring"), 0o600))
	must(os.WriteFile(in("big.ring"), nil, 0o600))
	must(os.Truncate(in("big.ring"), MaxFileBytes+1))
	for name, want := range map[string]error{
		"link.ring": unix.ELOOP, "dir.ring": ErrNotRing, "fifo.ring": ErrNotRing, "big.ring": ErrCorrupt, "none.ring": unix.ENOENT,
	} {
		if r, err := Open(in(name), ReaderOptions{}); !errors.Is(err, want) {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}

func TestInfo(t *testing.T) {
	want := Info{
		Executable: "engine", Service: "chat", GPUUUID: "GPU-1", GPUName: "H200", Rank: Rank{0, 1, 2, 3}, Producer: "lanetrace 0.1",
		Model: "org/model", Level: 2, KernelEvery: 64, ArmedRequested: 3,
	}
	w, err := NewHeap(Options{Geometry: smallGeometry, Info: want})
	if err != nil {
		t.Fatal(err)
	}
	r := heapReader(t, w, ReaderOptions{})
	info := func() Info {
		t.Helper()
		i, err := r.Info()
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	got := info()
	if d := cmp.Diff(w.Info(), got); d != "" {
		t.Error(d)
	}
	if got.RunID == (RunID{}) || got.PID != uint32(os.Getpid()) || got.StartTicks == 0 || got.PIDNamespace == 0 ||
		got.CreatedMonoNS <= 0 || MonoNS()-got.CreatedMonoNS > int64(time.Minute) || time.Now().UnixNano()-got.CreatedUnixNS > int64(time.Minute) {
		t.Errorf("identity %+v", got)
	}
	if w2 := newHeap(t, smallGeometry); w2.Info().RunID == got.RunID || w2.Info().Executable == "" {
		t.Errorf("second ring %+v", w2.Info())
	}
	w.SetLevel(3)
	w.SetArming(128, 0)
	w.SetGPU("GPU-2", strings.Repeat("é", 40)) // 80 bytes, of which 64 are kept
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want = got
	want.Level, want.KernelEvery, want.ArmedRequested, want.GPUUUID, want.GPUName, want.Clean = 3, 128, 0, "GPU-2", strings.Repeat("é", 32), true
	if d := cmp.Diff(want, info()); d != "" {
		t.Error(d)
	}
	// A text that its writer did not keep to UTF-8, over the whole field.
	w.SetGPU("GPU\xff\xfe", string(bytes.Repeat([]byte{'a', 0xff}, 32)))
	if got := info(); got.GPUUUID != "GPU\uFFFD" || got.GPUName != strings.Repeat("a\uFFFD", 32) {
		t.Errorf("%q, %q", got.GPUUUID, got.GPUName)
	}
	if s := got.RunID.String(); len(s) != 32 || strings.Trim(s, "0123456789abcdef") != "" {
		t.Errorf("run id %q", s)
	}
}

// TestPollFrom begins at every kind of place, a lap after the ring's first entry.
func TestPollFrom(t *testing.T) {
	w := newHeap(t, smallGeometry)
	appendSealed(w, 0, 100)
	for _, c := range []struct {
		name string
		o    ReaderOptions
		from uint64
	}{
		{"all there is", ReaderOptions{}, 36},
		{"overwritten already", ReaderOptions{FromSeq: 10}, 36},
		{"the oldest", ReaderOptions{FromSeq: 36}, 36},
		{"in the middle", ReaderOptions{FromSeq: 50}, 50},
		{"the next one", ReaderOptions{FromSeq: 100}, 100},
		{"beyond the head", ReaderOptions{FromSeq: 1 << 63}, 100},
		{"now", ReaderOptions{FromNow: true, FromSeq: 50}, 100},
	} {
		r := heapReader(t, w, c.o)
		if a := r.Account(); a != (Account{Published: 100, Missed: c.from, Pending: 100 - c.from}) {
			t.Errorf("%s: before the first poll %+v", c.name, a)
		}
		if d := cmp.Diff(upTo(c.from, 100), seqs(pollAll(t, r, 0))); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
		if a := r.Account(); a != (Account{Published: 100, Received: 100 - c.from, Missed: c.from}) || r.NextSeq() != 100 {
			t.Errorf("%s: %+v, next %d", c.name, a, r.NextSeq())
		}
	}
}

func TestPollLapped(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	appendSealed(w, 0, 30)
	if n, err := r.Poll(nil, 0); n != 0 || err != nil {
		t.Errorf("into nothing: %d, %v", n, err)
	}
	buf := make([]Entry, 10)
	if n, err := r.Poll(buf, 0); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	if a := r.Account(); a != (Account{Published: 30, Received: 10, Pending: 20}) || r.NextSeq() != 10 {
		t.Errorf("%+v", a)
	}
	appendSealed(w, 30, 1000)
	got := pollAll(t, r, 0)
	if d := cmp.Diff(upTo(966, 1030), seqs(got)); d != "" {
		t.Error(d)
	}
	for _, e := range got {
		if e.Words != sealed(1, e.Seq) {
			t.Errorf("entry %d: %+v", e.Seq, e)
		}
	}
	if a := r.Account(); a != (Account{Published: 1030, Received: 74, Lost: 956, Overwritten: 956}) {
		t.Errorf("%+v", a)
	}
}

// TestHoles: a reader reads past what is not published, and comes back to it.
func TestHoles(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	const sec = int64(time.Second)
	first, second := stall(w, 0), stall(w, 1)
	appendSealed(w, 2, 2)
	if d := cmp.Diff([]uint64{2, 3}, seqs(pollAll(t, r, 0))); d != "" {
		t.Error(d)
	}
	first()
	if d := cmp.Diff([]uint64{0}, seqs(pollAll(t, r, sec-1))); d != "" {
		t.Error(d)
	}
	if a := r.Account(); a != (Account{Published: 4, Received: 3, Pending: 1}) {
		t.Errorf("%+v", a)
	}
	// The clock goes back by an hour: the second begins anew.
	pollAll(t, r, -3600*sec)
	pollAll(t, r, -3600*sec+sec-1)
	if a := r.Account(); a.Pending != 1 {
		t.Errorf("a clock that went back: %+v", a)
	}
	pollAll(t, r, -3600*sec+sec)
	if a := r.Account(); a != (Account{Published: 4, Received: 3, Lost: 1, Holes: 1}) {
		t.Errorf("%+v", a)
	}
	second() // too late: it was counted lost
	if got := pollAll(t, r, -3600*sec+sec); len(got) != 0 {
		t.Errorf("%v came after they had been counted lost", seqs(got))
	}
	// From one end of the clock to the other is more than a second.
	stall(w, 4)
	pollAll(t, r, math.MinInt64)
	pollAll(t, r, math.MaxInt64)
	if a := r.Account(); a != (Account{Published: 5, Received: 3, Lost: 2, Holes: 2}) {
		t.Errorf("%+v", a)
	}
}

// TestStalledForLaps: a writer that stalls costs its place and no other, and what
// it writes when it goes on, long overtaken, is taken for nothing else.
func TestStalledForLaps(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	finish := stall(w, 0)
	for lap := range uint64(5) {
		appendSealed(w, 1+64*lap, 64)
		want := upTo(1+64*lap, 1+64*lap+63) // all but the one at the stalled place
		if d := cmp.Diff(want, seqs(pollAll(t, r, int64(lap)))); d != "" {
			t.Errorf("lap %d: %s", lap, d)
		}
		// The newest hole is waited for, those of earlier laps are overtaken.
		if a := r.Account(); a != (Account{Published: 65 + 64*lap, Received: 63 * (lap + 1), Lost: lap + 1, Overwritten: lap + 1, Pending: 1}) {
			t.Errorf("lap %d: %+v", lap, a)
		}
	}
	if n := w.Counter(CtrGivenUp); n != 5 {
		t.Errorf("%d given up", n)
	}
	finish()
	if got := pollAll(t, r, 5); len(got) != 0 {
		t.Errorf("received %v", seqs(got))
	}
	appendSealed(w, 321, 64)
	if d := cmp.Diff(upTo(321, 385), seqs(pollAll(t, r, int64(time.Second)+4))); d != "" {
		t.Error(d)
	}
	if a := r.Account(); a != (Account{Published: 385, Received: 63*5 + 64, Lost: 6, Overwritten: 6}) {
		t.Errorf("%+v", a)
	}
}

// TestTookNumberOnly: a writer that stalls before its claim writes if its place
// is still older, and gives up if it is later.
func TestTookNumberOnly(t *testing.T) {
	w := newHeap(t, smallGeometry)
	appendSealed(w, 0, 128)
	late := w.Published()
	*w.head += 1 // a number handed out
	appendSealed(w, 129, 10)
	if w.claim(late) == nil {
		t.Error("a place of an earlier lap was not given")
	}
	w = newHeap(t, smallGeometry)
	*w.head += 1
	appendSealed(w, 1, 64)
	if w.claim(0) != nil {
		t.Error("a place of a later lap was given")
	}
	if n := w.Counter(CtrGivenUp); n != 1 {
		t.Errorf("%d given up", n)
	}
}

// TestTake shows a reader every word that the place of sequence number 200 can
// have.
func TestTake(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	place := w.m.word(w.log + 200%64*EntrySize)
	for _, c := range []struct {
		what string
		word uint64
		want outcome
	}{
		{"never used", 0, absent},
		{"claimed a lap before", published(136) | wordClaimed, absent},
		{"published a lap before", published(136), absent},
		{"claimed", published(200) | wordClaimed, absent},
		{"published", published(200), taken},
		{"claimed a lap later", published(264) | wordClaimed, overtaken},
		{"published a lap later", published(264), overtaken},
		{"published long after", published(200 + 64<<40), overtaken},
		{"all ones", math.MaxUint64, overtaken},
	} {
		*place = c.word
		var e Entry
		if got := r.take(200, &e); got != c.want || (got == taken) != (e.Seq == 200) {
			t.Errorf("%s: %d, %+v", c.what, got, e)
		}
	}
	// The last number that there can be.
	w = newHeap(t, smallGeometry)
	*w.head = maxSeq - 1
	appendSealed(w, maxSeq-1, 1)
	r = heapReader(t, w, ReaderOptions{FromSeq: maxSeq - 1})
	if d := cmp.Diff([]uint64{maxSeq - 1}, seqs(pollAll(t, r, 0))); d != "" {
		t.Error(d)
	}
}

// TestHolesBounded: a head that runs away without entries costs neither memory
// nor time.
func TestHolesBounded(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	buf := make([]Entry, 8)
	for i := range uint64(1000) {
		w.m.store(offHead, (i+1)<<40)
		if n, err := r.Poll(buf, 0); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		if len(r.holes) > 64 {
			t.Fatalf("%d holes", len(r.holes))
		}
		balanced(t, r.Account())
	}
	if a := r.Account(); a.Pending != 64 || a.Overwritten != 1000<<40-64 {
		t.Errorf("%+v", a)
	}
	w.m.store(offHead, 1000<<40-1)
	if n, err := r.Poll(buf, 0); n != 0 || !errors.Is(err, ErrCorrupt) {
		t.Errorf("a head that goes back: %d, %v", n, err)
	}
	if a := r.Account(); a.Pending != 0 || a.Unreadable != 64 || a.Published != 1000<<40 {
		t.Errorf("%+v", a)
	}

	// A log with more places than holes are waited for.
	w = newHeap(t, Geometry{LogEntries: 2 * maxHoles, Slots: 1, NameBytes: 4096, Allocs: 1})
	r = heapReader(t, w, ReaderOptions{})
	w.m.store(offHead, 2*maxHoles)
	if n, err := r.Poll(buf, 0); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if a := r.Account(); a != (Account{Published: 2 * maxHoles, Lost: maxHoles, Holes: maxHoles, Pending: maxHoles}) {
		t.Errorf("%+v", a)
	}
	w.m.store(offHead, maxSeq+1)
	if _, err := r.Poll(buf, 0); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a head nobody reaches: %v", err)
	}
	if _, err := r.Info(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a corrupt ring gives %v", err)
	}
	balanced(t, r.Account())
}

func TestAliveAndDead(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	stall(w, 0)
	pollAll(t, r, 0)
	if alive, err := r.Alive(); !alive || err != nil {
		t.Errorf("%v, %v", alive, err)
	}
	r.MarkDead()
	if alive, err := r.Alive(); alive || err != nil {
		t.Errorf("%v, %v", alive, err)
	}
	stall(w, 1)
	pollAll(t, r, 0)
	if a := r.Account(); a != (Account{Published: 2, Lost: 2, Holes: 2}) {
		t.Errorf("%+v", a)
	}

	fw := create(t, privateDir(t), smallGeometry)
	fr := open(t, fw.Path())
	stall(fw, 0)
	pollAll(t, fr, 0)
	if alive, err := fr.Alive(); !alive || err != nil || fw.FD() < 0 {
		t.Errorf("%v, %v", alive, err)
	}
	if err := fw.Close(); err != nil {
		t.Fatal(err)
	}
	if alive, err := fr.Alive(); alive || err != nil || fw.FD() != -1 {
		t.Errorf("%v, %v", alive, err)
	}
	// Alive has seen to it that the hole is waited for no more.
	pollAll(t, fr, 0)
	if a := fr.Account(); a != (Account{Published: 1, Lost: 1, Holes: 1}) {
		t.Errorf("%+v", a)
	}
	// A goroutine that writes late does no harm.
	appendSealed(fw, 1, 1)
	if err := fw.Close(); err != nil {
		t.Error(err)
	}
	if !fr.Exists() {
		t.Error("the ring is gone")
	}
	if err := WriteControl(fw.Path(), Control{ID: "1"}); err != nil {
		t.Error(err)
	}
	if err := errors.Join(fw.Remove(), fw.Remove()); err != nil {
		t.Error(err)
	}
	if fr.Exists() {
		t.Error("the ring is there")
	}
	if left, err := os.ReadDir(filepath.Dir(fw.Path())); len(left) != 0 || err != nil {
		t.Errorf("%v left, %v", left, err)
	}
	// Its readers have it until they close.
	if d := cmp.Diff([]uint64{1}, seqs(pollAll(t, fr, 0))); d != "" {
		t.Error(d)
	}
}

func TestReaderClosed(t *testing.T) {
	w := create(t, privateDir(t), smallGeometry)
	appendSealed(w, 0, 3)
	r := open(t, w.Path())
	pollAll(t, r, 0)
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	errs := map[string]error{}
	_, errs["Poll"] = r.Poll(make([]Entry, 1), 0)
	_, errs["Info"] = r.Info()
	_, errs["Alive"] = r.Alive()
	_, errs["Counters"] = r.Counters()
	_, errs["Contexts"] = r.Contexts()
	_, errs["Busy"] = r.Busy()
	_, errs["Snapshot"] = r.Snapshot()
	for m, err := range errs {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", m, err)
		}
	}
	if _, ok := r.Name(1); ok {
		t.Error("a name after Close")
	}
	if a := r.Account(); a != (Account{Published: 3, Received: 3}) || r.NextSeq() != 3 || r.Path() != w.Path() || r.Geometry() != smallGeometry {
		t.Errorf("%+v", a)
	}
	hr := heapReader(t, newHeap(t, smallGeometry), ReaderOptions{})
	if err := hr.Close(); err != nil || !hr.Exists() {
		t.Error(err)
	}
}

// TestTruncated cuts a ring under two of three readers.
func TestTruncated(t *testing.T) {
	d := privateDir(t)
	geo := Geometry{LogEntries: 256, Slots: 64, NameBytes: 4096, Allocs: 8}
	cut, other := create(t, d, geo), create(t, d, geo)
	for _, w := range []*Writer{cut, other} {
		appendSealed(w, 0, 200)
		w.Name(NameKernel, "gemm")
	}
	r1, r2, unaffected := open(t, cut.Path()), open(t, cut.Path()), open(t, other.Path())
	if err := cut.Close(); err != nil {
		t.Fatal(err)
	}
	buf := make([]Entry, 100)
	if n, err := r2.Poll(buf[:10], 0); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	// The header and 64 entries stay.
	if err := os.Truncate(cut.Path(), 8192); err != nil {
		t.Fatal(err)
	}
	if n, err := r1.Poll(buf, 0); n != 64 || err != nil {
		t.Errorf("what was still there: %d, %v", n, err)
	}
	for i, e := range buf[:64] {
		if e.Words != sealed(1, uint64(i)) {
			t.Errorf("entry %d: %+v", i, e)
		}
	}
	if n, err := r1.Poll(buf, 0); n != 0 || !errors.Is(err, ErrTruncated) || !strings.Contains(err.Error(), cut.Path()) {
		t.Errorf("%d, %v", n, err)
	}
	if a := r1.Account(); a != (Account{Published: 200, Received: 64, Lost: 136, Unreadable: 136}) {
		t.Errorf("%+v", a)
	}
	if _, ok := r2.Name(1); ok {
		t.Error("a name from pages that are gone")
	}
	errs := map[string]error{}
	_, errs["Poll"] = r2.Poll(buf, 0)
	_, errs["Info"] = r2.Info()
	_, errs["Alive"] = r2.Alive()
	_, errs["Counters"] = r2.Counters()
	_, errs["Contexts"] = r2.Contexts()
	_, errs["Busy"] = r2.Busy()
	_, errs["Snapshot"] = r2.Snapshot()
	for m, err := range errs {
		if !errors.Is(err, ErrTruncated) {
			t.Errorf("%s: %v", m, err)
		}
	}
	if a := r2.Account(); a != (Account{Published: 200, Received: 10, Lost: 190, Unreadable: 190}) {
		t.Errorf("%+v", a)
	}
	if r, err := Open(cut.Path(), ReaderOptions{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("%v, %v", r, err)
	}

	appendSealed(other, 200, 10)
	if d := cmp.Diff(upTo(0, 210), seqs(pollAll(t, unaffected, 0))); d != "" {
		t.Error(d)
	}
	if n, ok := unaffected.Name(1); !ok || n.Text != "gemm" {
		t.Errorf("%+v, %v", n, ok)
	}

	// Each method is the first to find the file gone.
	for m, f := range map[string]func(r *Reader) error{
		"Poll":     func(r *Reader) error { _, err := r.Poll(buf, 0); return err },
		"Info":     func(r *Reader) error { _, err := r.Info(); return err },
		"Counters": func(r *Reader) error { _, err := r.Counters(); return err },
		"Contexts": func(r *Reader) error { _, err := r.Contexts(); return err },
		"Busy":     func(r *Reader) error { _, err := r.Busy(); return err },
		"Snapshot": func(r *Reader) error { _, err := r.Snapshot(); return err },
	} {
		w := create(t, d, smallGeometry)
		r := open(t, w.Path())
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(w.Path(), 0); err != nil {
			t.Fatal(err)
		}
		if err := f(r); !errors.Is(err, ErrTruncated) {
			t.Errorf("%s: %v", m, err)
		}
		if err := r.Close(); err != nil {
			t.Errorf("%s, closed: %v", m, err)
		}
	}
}

// faults runs f and reports whether it touched memory that it may not.
func faults(f func()) (faulted bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			_, faulted = p.(interface{ Addr() uintptr })
		}
	}()
	f()
	return false
}

// TestReadOnly tries to write through a reader's mapping.
func TestReadOnly(t *testing.T) {
	w := create(t, privateDir(t), smallGeometry)
	r := open(t, w.Path())
	for _, off := range []int64{0, offHead, offCounters, r.geo.logOff(), r.geo.slotOff(), r.geo.nameOff(), r.geo.FileBytes() - 8} {
		// A plain store: an atomic one happens in C under the race detector, where
		// no fault can be recovered.
		if !faults(func() { *r.m.word(off) = 1 }) {
			t.Errorf("a reader wrote at %d", off)
		}
	}
	if faults(func() { *w.m.word(offHead) = 0 }) {
		t.Error("the writer cannot write")
	}
	fl, err := unix.FcntlInt(uintptr(r.fd), unix.F_GETFL, 0)
	if err != nil || fl&unix.O_ACCMODE != unix.O_RDONLY {
		t.Errorf("the reader's descriptor has flags %#x, %v", fl, err)
	}
}

// TestGuard lets nothing but the file's own faults become its error.
func TestGuard(t *testing.T) {
	r := heapReader(t, newHeap(t, smallGeometry), ReaderOptions{})
	forbidden, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(forbidden)
	var sink byte
	for name, f := range map[string]func() error{
		"a fault elsewhere": func() error { sink = forbidden[0]; return nil },
		"panic":             func() error { panic("no fault") },
		"nil":               func() error { var p *int; *p = 1; return nil },
		"another place":     func() error { var s []int; i := 3; s[i] = 1; return nil },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: swallowed", name)
				}
			}()
			_ = r.locked(f)
		}()
	}
	// The lock was let go each time, and the ring is not broken.
	if _, err := r.Info(); err != nil {
		t.Error(err)
	}
	_ = sink
	err = r.locked(func() error { r.m.load(int64(len(r.m.b))); return nil })
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("an offset outside: %v", err)
	}
}

func TestSnapshot(t *testing.T) {
	w := create(t, privateDir(t), smallGeometry)
	r := open(t, w.Path())
	appendSealed(w, 0, 100)
	stall(w, 100)
	w.Name(NameKernel, "gemm")
	s := newSlots(t, w, 3)
	s.Store(2, MakeSlotWord(5, SlotOpen))
	s.Put(2, &fullSlot)
	w.Add(CtrBegun, 3)
	b, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, file) {
		t.Error("at rest, the snapshot is not the file")
	}
	br, err := NewBytesReader(b, ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if alive, err := br.Alive(); alive || err != nil {
		t.Errorf("%v, %v", alive, err)
	}
	if d := cmp.Diff(upTo(37, 100), seqs(pollAll(t, br, 0))); d != "" {
		t.Error(d)
	}
	if a := br.Account(); a != (Account{Published: 101, Received: 63, Lost: 1, Holes: 1, Missed: 37}) {
		t.Errorf("%+v", a)
	}
	if n, ok := br.Name(1); !ok || n.Text != "gemm" {
		t.Errorf("%+v", n)
	}
	if bs, err := br.Busy(); err != nil || cmp.Diff([]SlotEntry{{2, SlotOpen, fullSlot}}, bs) != "" {
		t.Errorf("%+v, %v", bs, err)
	}
}

// TestSnapshotWhileWriting: no entry of a snapshot is a mixture.
func TestSnapshotWhileWriting(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	newSlots(t, w, 1)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := uint64(0); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			appendSealed(w, n, 1)
			for k := range uint64(20) { // hardly ever at rest
				w.SetContext(&ContextState{GPURefNS: int64(20*n + k), UncertaintyNS: 20*n + k})
			}
		}
	}()
	defer func() { close(stop); <-done }()
	eventually(t, "a lap", func() bool { return w.Published() > 64 })
	seen := 0
	for range 2000 {
		b, err := r.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		br, err := NewBytesReader(b, ReaderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range pollAll(t, br, 0) {
			if e.Words != sealed(1, e.Seq) {
				t.Fatalf("entry %d: %+v", e.Seq, e)
			}
			seen++
		}
		a := br.Account()
		balanced(t, a)
		if a.Pending != 0 {
			t.Fatalf("%+v", a)
		}
		cs, err := br.Contexts()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cs {
			if uint64(c.GPURefNS) != c.UncertaintyNS {
				t.Fatalf("context %+v", c)
			}
		}
	}
	if seen == 0 {
		t.Error("no snapshot holds an entry")
	}
}
