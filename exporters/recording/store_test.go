package recording

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

func newStore(t *testing.T, o StoreOptions) *Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = filepath.Join(t.TempDir(), "keep")
	}
	s, err := NewStore(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeStore(t, s) })
	return s
}

func closeStore(t *testing.T, s *Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
}

// until polls cond until it holds.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(2 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("not within a minute: %s", what)
}

// stepText is a step in words, to compare.
func stepText(s *collector.Step) string {
	var b strings.Builder
	a, e := s.Bounds()
	fmt.Fprintf(&b, "%d %v %d %d", s.Number, s.Incomplete, s.UnixNS(a), s.UnixNS(e))
	for i := range s.Spans {
		fmt.Fprintf(&b, " %s:%d+%d", s.Spans[i].Text.Text, s.Spans[i].StartMonoNS, s.Spans[i].DurationNS())
	}
	return b.String()
}

// engine is a synthetic one that answers while it is polled, as a ring does.
type engine struct {
	mu sync.Mutex
	e  *synth.Engine
}

func newSynth(o synth.Options) *engine { return &engine{e: synth.New(o)} }

func (e *engine) locked() func() { e.mu.Lock(); return e.mu.Unlock }

func (e *engine) Info() (spanring.Info, error) { defer e.locked()(); return e.e.Info() }
func (e *engine) Poll(dst []spanring.Entry) (int, bool, error) {
	defer e.locked()()
	return e.e.Poll(dst)
}
func (e *engine) NowMonoNS() int64    { defer e.locked()(); return e.e.NowMonoNS() }
func (e *engine) WallOffsetNS() int64 { defer e.locked()(); return e.e.WallOffsetNS() }
func (e *engine) Name(i spanring.NameID) (spanring.Name, bool) {
	defer e.locked()()
	return e.e.Name(i)
}
func (e *engine) Counters() (spanring.Counters, error) { defer e.locked()(); return e.e.Counters() }
func (e *engine) Contexts() ([]spanring.ContextState, error) {
	defer e.locked()()
	return e.e.Contexts()
}
func (e *engine) Account() spanring.Account           { defer e.locked()(); return e.e.Account() }
func (e *engine) Busy() ([]spanring.SlotEntry, error) { defer e.locked()(); return e.e.Busy() }
func (e *engine) Alive() (bool, error)                { defer e.locked()(); return e.e.Alive() }
func (e *engine) Close() error                        { defer e.locked()(); return e.e.Close() }
func (e *engine) Allocs(dst []spanring.Alloc) ([]spanring.Alloc, spanring.AllocScan, error) {
	defer e.locked()()
	return e.e.Allocs(dst)
}

// process reads src to its end, entries going to taps, and returns its steps.
func process(t *testing.T, src collector.Source, taps ...collector.Tap) (steps []string) {
	t.Helper()
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Taps: taps, Observers: []collector.Observer{
		collector.ObserverFunc(func(s *collector.Step) { steps = append(steps, stepText(s)) }),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Drain(), p.Close()); err != nil {
		t.Fatal(err)
	}
	return steps
}

func openKept(t *testing.T, dir string) *Kept {
	t.Helper()
	k, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Damage(); err != nil {
		t.Fatal(err)
	}
	return k
}

func seriesOf(t *testing.T, r KeptRun) *Series {
	t.Helper()
	s, err := r.Source()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var twoEngines = []synth.Options{{Duration: 3 * time.Second, FailEvery: 50}, {Duration: 2 * time.Second, Seed: 7, Service: "other", Memory: true}}

// TestStoreKeepsStepsWhole: many segments of two engines come back as the steps
// that were recorded, those that straddle segments among them.
func TestStoreKeepsStepsWhole(t *testing.T) {
	s := newStore(t, StoreOptions{SegmentBytes: 20_000, flushEntries: 500})
	want := make(map[string][]string)
	entries := uint64(0)
	for _, o := range twoEngines {
		src := newSynth(o)
		info, err := src.Info()
		if err != nil {
			t.Fatal(err)
		}
		want[info.RunID.String()] = process(t, src, s)
		entries += src.Account().Received
	}
	closeStore(t, s)
	if st := s.Stats(); st.Written != entries || st.Lost != 0 || st.Segments < 8 || st.Failing {
		t.Errorf("stats %+v of %d entries", st, entries)
	}
	got := make(map[string][]string)
	for _, r := range openKept(t, s.o.Dir).Runs(0, 0) {
		if len(r.parts) < 4 {
			t.Errorf("run %v has %d segments", r.Info.RunID, len(r.parts))
		}
		got[r.Info.RunID.String()] = process(t, seriesOf(t, r))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("steps (-recorded +played):\n%s", d)
	}
}

// TestStoreAfterACrash: nothing was ended or closed, and the last block is torn.
func TestStoreAfterACrash(t *testing.T) {
	s := newStore(t, StoreOptions{SegmentBytes: 10_000, FlushEvery: 5 * time.Millisecond, flushEntries: 500})
	src := newSynth(twoEngines[0])
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Taps: []collector.Tap{s}})
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if _, _, err := p.Poll(); err != nil {
			t.Fatal(err)
		}
	}
	entries := src.Account().Received
	until(t, "everything received is on disk", func() bool { return s.Stats().Written == entries })
	crashed := filepath.Join(t.TempDir(), "crashed")
	if err := os.CopyFS(crashed, os.DirFS(s.o.Dir)); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(crashed, "*"+Suffix))
	if err != nil || len(names) < 2 {
		t.Fatalf("segments %v, %v", names, err)
	}
	read := func() (n uint64) {
		for _, r := range openKept(t, crashed).Runs(0, 0) {
			src := seriesOf(t, r)
			for buf := make([]spanring.Entry, 100); ; {
				k, done, err := src.Poll(buf)
				if err != nil {
					t.Fatal(err)
				}
				if n += uint64(k); done {
					break
				}
			}
			src.Close()
		}
		return n
	}
	if n := read(); n != entries {
		t.Errorf("%d entries after a crash, want %d", n, entries)
	}
	last := names[len(names)-1]
	f, err := os.OpenFile(last, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte{100, 0, 0, 0, byte(blockEntries), 0, 1}); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if n := read(); n != entries {
		t.Errorf("%d entries before a torn block, want %d", n, entries)
	}
}

// TestStoreIsBounded by size, by age, and by what is its own.
func TestStoreIsBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keep")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := func(name string, size int, age time.Duration) {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(p, at, at); err != nil {
			t.Fatal(err)
		}
	}
	const run = "-00000000000000000000000000000001"
	file("20260101T000000.000000000Z"+run+Suffix, 100, 2*time.Hour)
	file("20260101T000001.000000000Z"+run+Suffix, 600_000, 30*time.Minute)
	file("20260101T000002.000000000Z"+run+Suffix, 300_000, 20*time.Minute)
	file("mine"+Suffix, 5_000_000, 100*time.Hour)
	file("20260101T000001.000000000Z"+run+Suffix+".bak", 10, 100*time.Hour)

	s := newStore(t, StoreOptions{Dir: dir, MaxBytes: 1 << 20, MaxAge: time.Hour, SegmentBytes: 50_000, FlushEvery: 2 * time.Millisecond, flushEntries: 1000})
	until(t, "what is too old is gone", func() bool { return s.Stats().Segments == 2 && s.Stats().Bytes == 900_000 })
	for i := range 3 {
		process(t, newSynth(synth.Options{Seed: uint64(i), Duration: 10 * time.Second, KernelEvery: 2}), s)
	}
	until(t, "the directory is within its bound", func() bool {
		st := s.Stats()
		return st.Bytes <= 1<<20 && st.Segments > 2 && st.Written > 100_000
	})
	closeStore(t, s)
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	total, mine := int64(0), 0
	for _, e := range es {
		fi, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if segmentPattern.MatchString(e.Name()) {
			total += fi.Size()
		} else {
			mine++
		}
		if strings.HasPrefix(e.Name(), "20260101T00000") && segmentPattern.MatchString(e.Name()) {
			t.Errorf("%s is still there", e.Name())
		}
	}
	if total > 1<<20 || total < 1<<19 || mine != 3 { // the lock is the third
		t.Errorf("%d bytes kept, %d files of others", total, mine)
	}
	if st := s.Stats(); st.Lost != 0 || st.Bytes != total {
		t.Errorf("stats %+v, %d bytes", st, total)
	}
}

// disk is one that a test fills or stops.
type disk struct {
	mu    sync.Mutex
	full  bool
	stuck chan struct{} // not nil: writes wait for it
}

type diskFile struct {
	d *disk
	f io.WriteCloser
}

func (f diskFile) Close() error { return f.f.Close() }
func (f diskFile) Write(b []byte) (int, error) {
	f.d.mu.Lock()
	full, stuck := f.d.full, f.d.stuck
	f.d.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	if full {
		n, _ := f.f.Write(b[:len(b)/2])
		return n, syscall.ENOSPC
	}
	return f.f.Write(b)
}

func (d *disk) set(full bool, stuck chan struct{}) {
	d.mu.Lock()
	d.full, d.stuck = full, stuck
	d.mu.Unlock()
}

// TestStoreFailures: a disk that is full, one that is stuck, a directory that
// cannot be made. Each costs one warning; what is lost is counted; reading goes on
// at once; and it works again by itself.
func TestStoreFailures(t *testing.T) {
	for _, what := range []string{"full disk", "stuck disk", "no directory"} {
		t.Run(what, func(t *testing.T) {
			var log bytes.Buffer
			var d disk
			top := t.TempDir()
			block := filepath.Join(top, "parent")
			o := StoreOptions{
				Dir: filepath.Join(block, "keep"), RetryEvery: 20 * time.Millisecond, FlushEvery: time.Millisecond,
				QueueBytes: 30_000, flushEntries: 200, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			}
			var stuck chan struct{}
			switch what {
			case "no directory":
				if err := os.WriteFile(block, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			case "full disk":
				d.set(true, nil)
			case "stuck disk":
				stuck = make(chan struct{})
				d.set(false, stuck)
			}
			if what != "no directory" {
				if err := os.Mkdir(block, 0o700); err != nil {
					t.Fatal(err)
				}
				dir := &segmentDir{path: o.Dir}
				defer dir.close()
				o.create = func(name string) (io.WriteCloser, error) {
					f, err := os.OpenFile(filepath.Join(o.Dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
					return diskFile{&d, f}, err
				}
			}
			s := newStore(t, o)
			total := uint64(0)
			began := time.Now()
			run := func(seed uint64, d time.Duration) {
				src := newSynth(synth.Options{Seed: seed, Duration: d, KernelEvery: 4})
				process(t, src, s)
				total += src.Account().Received
			}
			for i := range uint64(5) {
				run(i, 2*time.Second)
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("reading took %v", took)
			}
			until(t, "entries are counted as lost", func() bool { st := s.Stats(); return st.Failing && st.Lost > 0 })

			d.set(false, nil)
			if stuck != nil {
				close(stuck)
			}
			if what == "no directory" {
				if err := errors.Join(os.Remove(block), os.Mkdir(block, 0o700)); err != nil {
					t.Fatal(err)
				}
			}
			seed := uint64(100)
			until(t, "it works again", func() bool {
				seed++
				run(seed, 20*time.Millisecond)
				st := s.Stats()
				return !st.Failing && st.Written > 0
			})
			closeStore(t, s)
			if st := s.Stats(); st.Written+st.Lost != total {
				t.Errorf("%+v: %d entries received", st, total)
			}
			if l := log.String(); strings.Count(l, "level=WARN") != 1 || strings.Count(l, "kept again") != 1 {
				t.Errorf("log: %s", l)
			}
			// What was written before and after is readable.
			entries := uint64(0)
			for _, r := range openKept(t, o.Dir).Runs(0, 0) {
				p, err := play(t, seriesOf(t, r), 100, nil)
				if err != nil {
					t.Fatal(err)
				}
				entries += uint64(len(p.Entries))
			}
			if w := s.Stats().Written; entries != w {
				t.Errorf("%d entries can be read, %d were written", entries, w)
			}
		})
	}
}

// TestStoresShareNoDirectory: the second one waits for the first to go. Each is told when
// the directory is its own, and again when it could do nothing with that, which costs a
// warning.
func TestStoresShareNoDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keep")
	var opened [2]atomic.Int64
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	options := func(i int, fails int64) StoreOptions {
		return StoreOptions{Dir: dir, RetryEvery: time.Millisecond, FlushEvery: time.Millisecond, Logger: logger, Opened: func(d string) error {
			if d != dir {
				t.Errorf("opened as %s", d)
			}
			if opened[i].Add(1) <= fails {
				return errors.New("disk full")
			}
			return nil
		}}
	}
	a := newStore(t, options(0, 0))
	process(t, newSynth(synth.Options{Duration: 100 * time.Millisecond}), a)
	until(t, "the first writes", func() bool { return a.Stats().Written > 0 })
	b := newStore(t, options(1, 2))
	until(t, "the second cannot", func() bool { return b.Stats().Failing })
	if n := opened[1].Load(); n != 0 {
		t.Errorf("the second was told %d times that the directory is its own", n)
	}
	closeStore(t, a)
	until(t, "the second can", func() bool {
		process(t, newSynth(synth.Options{Seed: 3, Duration: 10 * time.Millisecond}), b)
		return b.Stats().Written > 0
	})
	until(t, "the second has taken it", func() bool { return opened[1].Load() == 3 })
	closeStore(t, b)
	if a, b := opened[0].Load(), opened[1].Load(); a != 1 || b != 3 {
		t.Errorf("told %d and %d times, want 1 and 3", a, b)
	}
	if n := strings.Count(log.String(), "something is missing"); n != 1 {
		t.Errorf("%d warnings in %s", n, log.String())
	}
}

func TestStoreOptions(t *testing.T) {
	for _, o := range []StoreOptions{{}, {Dir: "d", MaxBytes: 1000}, {Dir: "d", MaxAge: time.Millisecond}, {Dir: "d", SegmentBytes: -1}} {
		if s, err := NewStore(o); err == nil {
			t.Errorf("%+v: no error", o)
			closeStore(t, s)
		}
	}
}

// repeat is a source of entries that were read before.
type repeat struct {
	collector.Source
	entries []spanring.Entry
}

func (r *repeat) Poll(dst []spanring.Entry) (int, bool, error) {
	n := copy(dst, r.entries)
	r.entries = r.entries[n:]
	return n, n == 0, nil
}

// TestSeriesDeliversOnce: a collector that began anew read part of a ring again.
func TestSeriesDeliversOnce(t *testing.T) {
	src := newSynth(synth.Options{Duration: time.Second})
	all, err := play(t, src, 100, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	n := len(all.Entries)
	for i, part := range [][]spanring.Entry{all.Entries[:n/2], all.Entries[n/4 : n/2+n/4], all.Entries[n/4:]} {
		w, err := Create(filepath.Join(dir, fmt.Sprint(i)+Suffix), Options{FlushEntries: 300})
		if err != nil {
			t.Fatal(err)
		}
		process(t, &repeat{src, part}, w)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	runs := openKept(t, dir).Runs(0, 0)
	if len(runs) != 1 {
		t.Fatalf("%d runs", len(runs))
	}
	got, err := play(t, seriesOf(t, runs[0]), 64, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(all.Entries, got.Entries); d != "" {
		t.Errorf("entries (-once +got):\n%s", d)
	}
}

func TestSequences(t *testing.T) {
	var s sequences
	for _, x := range []struct {
		n     uint64
		fresh bool
	}{
		{100, true}, {100, false}, {99, true}, {99, false}, {103, true}, {101, true}, {102, true}, {102, false},
		{103 + window/2, true}, {103, false}, {104, true}, {200 + window, true}, {103, false}, {201, true},
		{900 + 3*window, true}, {899 + 3*window, true}, {900 + 2*window, false}, {901 + 2*window, true}, {901 + 2*window, false},
	} {
		if got := s.add(x.n); got != x.fresh {
			t.Errorf("%d: new %v, want %v", x.n, got, x.fresh)
		}
	}
}

// TestKeptByTime: which runs and recordings a span of time needs.
func TestKeptByTime(t *testing.T) {
	at := func(minutes int) int64 { return int64(minutes) * int64(time.Minute) }
	k := &Kept{runs: []KeptRun{
		{StartUnixNS: at(10), EndUnixNS: at(40), parts: []keptPart{{"a", 0, at(10), at(20)}, {"b", 0, at(20), at(30)}, {"c", 0, at(30), at(40)}}},
		{StartUnixNS: at(35), EndUnixNS: at(50), parts: []keptPart{{"d", 0, at(35), at(50)}}},
	}}
	for _, x := range []struct {
		since, until int
		want         string
	}{
		{0, 0, "a b c | d"}, {25, 0, "b c | d"}, {21, 0, "a b c | d"}, {22, 0, "b c | d"}, {45, 0, "d"}, {60, 0, ""}, {0, 25, "a b"}, {0, 5, ""},
		{31, 33, "b c"}, {33, 34, "c | d"},
	} {
		var runs []string
		for _, r := range k.Runs(at(x.since), at(x.until)) {
			var parts []string
			for _, p := range r.parts {
				parts = append(parts, p.path)
			}
			if r.StartUnixNS != r.parts[0].startUnixNS {
				t.Errorf("%d to %d: run begins at %d, its first recording at %d", x.since, x.until, r.StartUnixNS, r.parts[0].startUnixNS)
			}
			runs = append(runs, strings.Join(parts, " "))
		}
		if got := strings.Join(runs, " | "); got != x.want {
			t.Errorf("%d to %d: %q, want %q", x.since, x.until, got, x.want)
		}
	}
}

func TestOpenDirErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenDir(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := OpenDir(dir); err == nil || !strings.Contains(err.Error(), "no recordings") {
		t.Errorf("empty: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "x"+Suffix), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(k.Damage(), ErrNotRecording) || len(k.Runs(0, 0)) != 0 {
		t.Errorf("damage %v", k.Damage())
	}
}
