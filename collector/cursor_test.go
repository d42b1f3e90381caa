package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lanetrace/lanetrace/spanring"
)

// stepExporter notes every step that it is given, as its number and what there is of
// it, and settles it.
type stepExporter struct{ got []string }

func (x *stepExporter) Export(s *Step, _ ExportReason) {
	text := fmt.Sprintf("%d:%d", s.Number, len(s.Spans))
	if s.Incomplete != Complete {
		text += " " + s.Incomplete.String()
	}
	x.got = append(x.got, text)
	s.Engine.Ledger().Export(s.Units())
}

// sorted are the steps in order of their numbers.
func sorted(steps ...string) []string {
	slices.SortFunc(steps, func(a, b string) int {
		return slices.Compare([]int{len(a), strings.Compare(a, b)}, []int{len(b), strings.Compare(b, a)})
	})
	return steps
}

// life is one life of a sidecar that ends when everything there was read.
type life struct {
	steps   []string
	account Account
	lanes   uint64 // lanes in the histograms
}

// live runs a collector of d over what is in its one ring.
func live(t *testing.T, d spanring.Dir, k *Cursors, w *spanring.Writer) life {
	t.Helper()
	x := &stepExporter{}
	c, stop := start(t, Options{
		Dir: d, Cursors: k, NewSelector: func() Selector { return SelectAll{} }, Processor: ProcessorOptions{Exporter: x},
	})
	eventually(t, "everything is read", func() bool {
		as := c.Accounts()
		return len(as) == 1 && as[0].Reader.Published == w.Published() && as[0].Reader.Pending == 0
	})
	stop()
	l := life{steps: x.got, account: c.Accounts()[0]}
	for _, s := range c.Engines()[0].sum.lanes {
		l.lanes += s.duration[0].count
	}
	if u := l.account.Unbalanced(); len(u) > 0 || l.account.Sidecar.Pending != 0 {
		t.Errorf("account %+v, unbalanced %v", l.account, u)
	}
	return l
}

func write(w *spanring.Writer, es ...wordser) {
	for _, e := range es {
		words := e.Words()
		w.Append(&words)
	}
}

// TestRestart: over two lives of the sidecar, every step is exported once and whole,
// whatever was open in between, and the account of each balances.
func TestRestart(t *testing.T) {
	d := ringDir(t)
	w := newRing(t, d, spanring.Info{Service: "s"})
	k, err := NewCursors(filepath.Join(t.TempDir(), "cursors"), nil)
	if err != nil {
		t.Fatal(err)
	}
	name := w.Name(spanring.NameLane, "decode")
	at := spanring.MonoNS()
	writeStep(w, 1, name)
	// Steps 2 and 4 are open at the restart, of 4 the begin only; 3 and 5 closed
	// beyond the begin of 2.
	write(w, begin(2, at), lane(2, 1, name, at, 1000))
	writeStep(w, 3, name)
	write(w, begin(4, at))
	writeStep(w, 5, name)
	first := live(t, d, k, w)
	if diff := cmp.Diff([]string{"1:1", "3:1", "5:1"}, sorted(first.steps...)); diff != "" {
		t.Errorf("steps of the first life (-want +got):\n%s", diff)
	}
	if n := first.account.Sidecar.NotSelected["left_open"]; n != 3 {
		t.Errorf("%d spans left to the next, want 3", n)
	}

	writeStep(w, 6, name)
	write(w, lane(2, 2, name, at+2000, 1000), end(2, at, at+5000, 2))
	write(w, lane(4, 1, name, at+3000, 1000), end(4, at, at+5000, 1))
	writeStep(w, 7, name)
	write(w, begin(8, at))
	second := live(t, d, k, w)
	if diff := cmp.Diff([]string{"2:2", "4:1", "6:1", "7:1"}, sorted(second.steps...)); diff != "" {
		t.Errorf("steps of the second life (-want +got):\n%s", diff)
	}
	a := second.account
	// 3 entries of step 1 lie before; begin, lane and end of 3 and of 5 were handed on.
	if a.Reader.MissedBeforeAttach != 3 || a.Reader.ReadAgain != 6 || a.Sidecar.NotSelected["before_restart"] != 4 || a.Sidecar.NotSelected["left_open"] != 1 || a.Sidecar.Dropped["late"] != 0 {
		t.Errorf("account of the second life %+v", a)
	}
	if got := first.lanes + second.lanes; got != 8 {
		t.Errorf("%d lanes counted over both lives, want 8", got)
	}

	// A third life has only step 8, which the engine's end leaves incomplete, and a
	// fourth nothing.
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"8:0 engine_ended"}, live(t, d, k, w).steps); diff != "" {
		t.Errorf("steps of the third life (-want +got):\n%s", diff)
	}
	if l := live(t, d, k, w); len(l.steps) != 0 || l.account.Reader.MissedBeforeAttach != w.Published() || l.account.Sidecar.Received != 0 {
		t.Errorf("the fourth life: %+v", l)
	}

	// The cursor goes with the ring.
	files := func() []string {
		m, err := filepath.Glob(filepath.Join(k.dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if n := len(files()); n != 1 {
		t.Errorf("%d files of cursors", n)
	}
	if err := os.Remove(w.Path()); err != nil {
		t.Fatal(err)
	}
	k.prune()
	if f := files(); len(f) != 0 {
		t.Errorf("left %v", f)
	}
}

// TestRestartBeyondMemory: a step that more steps have overtaken than are remembered
// is closed at the stop, as it is without a cursor, and nothing is exported twice.
func TestRestartBeyondMemory(t *testing.T) {
	d := ringDir(t)
	w, err := spanring.Create(d, spanring.Options{Geometry: spanring.Geometry{LogEntries: 1 << 15, Slots: 16, NameBytes: 64 << 10, Allocs: 16}, Info: spanring.Info{Service: "s", Rank: spanring.NoRank}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	k, err := NewCursors(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	write(w, begin(1, 10), begin(2, 10))
	const last = closedMemory + 1
	for n := uint64(3); n <= last; n++ {
		writeStep(w, n, 0)
	}
	first := live(t, d, k, w)
	if len(first.steps) != last-1 || !slices.Contains(first.steps, "1:0 detached") {
		t.Errorf("%d steps in the first life, want %d with 1 among them", len(first.steps), last-1)
	}
	write(w, end(2, 10, 20, 0))
	second := live(t, d, k, w)
	if diff := cmp.Diff([]string{"2:0"}, second.steps); diff != "" {
		t.Errorf("steps of the second life (-want +got):\n%s", diff)
	}
}

// TestKilledSidecar: one that could not say where it ended is followed by one that
// reads on from the last cursor: what came since is handed on again.
func TestKilledSidecar(t *testing.T) {
	d := ringDir(t)
	w := newRing(t, d, spanring.Info{Service: "s"})
	k, err := NewCursors(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	writeStep(w, 1, 0)
	writeStep(w, 2, 0)
	live(t, d, k, w)
	path := k.path(w.Info().RunID)
	stored, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	writeStep(w, 3, 0)
	live(t, d, k, w)
	if err := os.WriteFile(path, stored, 0o600); err != nil {
		t.Fatal(err)
	}
	writeStep(w, 4, 0)
	if diff := cmp.Diff([]string{"3:1", "4:1"}, live(t, d, k, w).steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// TestCursorIsStoredWhileRunning, so that a kill costs no more than a second.
func TestCursorIsStoredWhileRunning(t *testing.T) {
	d := ringDir(t)
	w := newRing(t, d, spanring.Info{Service: "s"})
	k, err := NewCursors(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	start(t, Options{Dir: d, Cursors: k})
	for n := uint64(1); n <= 2; n++ {
		writeStep(w, n, 0)
		eventually(t, "the cursor is stored", func() bool {
			c, err := readCursor(k.path(w.Info().RunID))
			return err == nil && c.From == 3*n && c.Next == 3*n && cmp.Equal(c.Closed, []StepRange{{1, n}})
		})
	}
}

// TestHostileCursors are ignored with one line each: the ring is read from its start.
func TestHostileCursors(t *testing.T) {
	d := ringDir(t)
	w := newRing(t, d, spanring.Info{Service: "s"})
	writeStep(w, 1, 0)
	id := w.Info().RunID.String()
	good := `{"version":1,"run_id":"` + id + `","ring":"/r","from":0,"next":3,"closed":[[1,1]]}`
	for _, tc := range []struct{ name, text, want string }{
		{"good", good, ""},
		{"empty", "", "cannot be"},
		{"no JSON", "hello", "cannot be"},
		{"version", strings.Replace(good, `"version":1`, `"version":2`, 1), "version 2"},
		{"another run", strings.Replace(good, id, strings.Repeat("0", 32), 1), "of run"},
		{"beyond the log", strings.Replace(good, `"next":3`, `"next":4`, 1), "3 are published"},
		{"backwards", strings.Replace(good, `"from":0`, `"from":4`, 1), "from 4, next 3"},
		{"too large", `{"x":"` + strings.Repeat("x", maxCursorBytes) + `"}`, "over 524288 bytes"},
		{"steps upside down", strings.Replace(good, "[1,1]", "[2,1]", 1), "steps 2 to 1"},
		{"step 0", strings.Replace(good, "[1,1]", "[0,1]", 1), "steps 0 to 1"},
		{"too many steps", strings.Replace(good, "[1,1]", "[1,4000],[5000,6000]", 1), "more than 4096"},
		{"all steps", strings.Replace(good, "[1,1]", "[1,18446744073709551615]", 1), "after step 0"},
		{"half a range", strings.Replace(good, "[1,1]", "[1]", 1), "range of 1"},
		{"negative", strings.Replace(good, `"from":0`, `"from":-1`, 1), "cannot be"},
		{"holes", strings.Replace(good, `"closed"`, `"holes":[7],"closed"`, 1), "holes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log syncBuffer
			k, err := NewCursors(t.TempDir(), slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(k.path(w.Info().RunID), []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			c := k.get(w.Info().RunID, w.Published())
			if (c == nil) != (tc.want != "") {
				t.Errorf("cursor %+v", c)
			}
			if text := log.String(); strings.Count(text, "\n") != b2i(tc.want != "") || !strings.Contains(text, tc.want) {
				t.Errorf("log %q, want one line with %q", text, tc.want)
			}
		})
	}
	// What is no file is not opened, a link not followed, and neither is written through.
	var log syncBuffer
	k, err := NewCursors(t.TempDir(), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "target")
	if err := os.WriteFile(target, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	path := k.path(w.Info().RunID)
	for _, p := range []string{path, path + ".tmp"} {
		if err := os.Symlink(target, p); err != nil {
			t.Fatal(err)
		}
	}
	if c := k.get(w.Info().RunID, w.Published()); c != nil {
		t.Errorf("a link was followed: %+v", c)
	}
	if steps := live(t, d, k, w).steps; !cmp.Equal(steps, []string{"1:1"}) {
		t.Errorf("steps %v", steps)
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != good {
		t.Errorf("written through the link: %q, %v", b, err)
	}
	if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != 0o600 {
		t.Errorf("the cursor: %v, %v", st, err)
	}
}

// TestCursorsNotWritable: that is told once, and reading goes on.
func TestCursorsNotWritable(t *testing.T) {
	d := ringDir(t)
	w := newRing(t, d, spanring.Info{Service: "s"})
	var log syncBuffer
	k, err := NewCursors(filepath.Join(t.TempDir(), "cursors"), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(k.dir); err != nil {
		t.Fatal(err)
	}
	writeStep(w, 1, 0)
	for range 2 {
		if steps := live(t, d, k, w).steps; !cmp.Equal(steps, []string{"1:1"}) {
			t.Errorf("steps %v", steps)
		}
	}
	if n := strings.Count(log.String(), "cursors not stored"); n != 1 {
		t.Errorf("told %d times: %s", n, log.String())
	}
}

// TestCursorsWritableAgain: what could not be stored of a run that has ended, and moves
// no more, is stored later, as long as there is its ring.
func TestCursorsWritableAgain(t *testing.T) {
	d := ringDir(t)
	there, gone := newRing(t, d, spanring.Info{Service: "s"}), newRing(t, d, spanring.Info{Service: "gone"})
	k, err := NewCursors(filepath.Join(t.TempDir(), "cursors"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []*spanring.Writer{there, gone} {
		k.put(w.Info().RunID, w.Path(), Cursor{Ended: true})
	}
	if err := errors.Join(os.Remove(k.dir), gone.Remove()); err != nil {
		t.Fatal(err)
	}
	k.write()
	if err := os.Mkdir(k.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	k.write()
	if c := k.get(there.Info().RunID, 0); c == nil || !c.Ended {
		t.Errorf("stored is %+v", c)
	}
	if c := k.get(gone.Info().RunID, 0); c != nil || len(k.moved) != 0 {
		t.Errorf("of a run whose ring is gone %+v is stored; %d wait", c, len(k.moved))
	}
}

func FuzzCursor(f *testing.F) {
	f.Add([]byte(`{"version":1,"run_id":"00","ring":"/r","from":1,"next":3,"holes":[2],"closed":[[1,1],[3,9]]}`), uint64(3))
	f.Add([]byte(`{"version":1,"closed":[[18446744073709551615,18446744073709551615]]}`), uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, published uint64) {
		path := filepath.Join(t.TempDir(), "c")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		cf, err := readCursor(path)
		if err != nil {
			return
		}
		c := &Cursor{cf.From, cf.Next, cf.Holes, cf.Closed, cf.Ended}
		if c.check(published) != nil {
			return
		}
		// What passes is taken over without harm, and is what comes out again.
		src := newMemSource("a")
		p, err := NewProcessor(src, ProcessorOptions{Resume: c})
		if err != nil {
			t.Fatal(err)
		}
		src.push(begin(1, 1), lane(1, 1, 1, 1, 1), end(1, 1, 2, 1))
		src.done = true
		if err := p.Drain(); err != nil {
			t.Fatal(err)
		}
		if l := p.Engine().Ledger().Counts(); l.Pending != 0 {
			t.Errorf("pending %+v", l)
		}
	})
}

// TestRestartWithRequests: a request that ended before the restart is told once, and
// nobody waits for its steps afterwards; one that had not is told by the second life.
func TestRestartWithRequests(t *testing.T) {
	d := ringDir(t)
	w := newRing(t, d, spanring.Info{Service: "s"})
	k, err := NewCursors(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	lives := func() []requestBrief {
		x := &keepRequests{keep: keep{settle: true}}
		c, stop := start(t, Options{
			Dir: d, Cursors: k, NewSelector: func() Selector { return SelectAll{} }, Processor: ProcessorOptions{Exporter: x},
		})
		eventually(t, "everything is read", func() bool {
			as := c.Accounts()
			return len(as) == 1 && as[0].Reader.Published == w.Published() && as[0].Reader.Pending == 0
		})
		eventually(t, "requests are known", func() bool { return c.Engines()[0].Requests().Open <= 2 })
		stop()
		if u := c.Accounts()[0]; len(u.Unbalanced()) > 0 || u.Sidecar.Pending != 0 {
			t.Errorf("account %+v", u)
		}
		if n := c.Engines()[0].Requests().Open; n != 0 {
			t.Errorf("%d requests are open after the end", n)
		}
		return briefRequests(x.requests)
	}
	write(w, begin(1, 10), link(1, 7), link(1, 8), requestEnd(7, 5, 20))
	if diff := cmp.Diff([]requestBrief{{Request: 7, Begin: 5, End: 20, Open: 1}}, lives()); diff != "" {
		t.Errorf("the first life's (-want +got):\n%s", diff)
	}
	write(w, linkedEnd(1, 10, 30, 0, 2), requestEnd(8, 5, 40))
	if diff := cmp.Diff([]requestBrief{{Request: 8, Begin: 5, End: 40, Steps: 1, Exported: []uint64{1}, ExportedCount: 1}}, lives()); diff != "" {
		t.Errorf("the second life's (-want +got):\n%s", diff)
	}
}

// countingTap counts entries.
type countingTap uint64

func (c *countingTap) Entries(_ *Engine, entries []spanring.Entry) { *c += countingTap(len(entries)) }
func (c *countingTap) Ended(*Engine)                               {}

// TestAnyRestarts: whatever steps an engine interleaves and whenever the sidecar is
// restarted, all lives together export each step once and whole, and count each lane
// once.
func TestAnyRestarts(t *testing.T) {
	stopped, stop := context.WithCancel(context.Background())
	stop() // a life reads what is there
	rapid.Check(t, func(t *rapid.T) {
		w, err := spanring.NewHeap(spanring.Options{Geometry: smallRing})
		if err != nil {
			t.Fatal(err)
		}
		name := w.Name(spanring.NameLane, "decode")
		var cursor *Cursor
		var got, want []string
		lanes, counted := 0, uint64(0)
		live := func() {
			o := spanring.ReaderOptions{}
			if cursor != nil {
				o.FromSeq = cursor.From
				if err := cursor.check(w.Published()); err != nil {
					t.Fatal(err)
				}
			}
			r, err := spanring.NewHeapReader(w, o)
			if err != nil {
				t.Fatal(err)
			}
			x, tapped := &stepExporter{}, countingTap(0)
			p, err := NewProcessor(NewRingSource(r), ProcessorOptions{
				Selector: SelectAll{}, Exporter: x, Resume: cursor, SaveCursor: func(c Cursor) { cursor = &c }, Taps: []Tap{&tapped},
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(p.Run(stopped), p.Close()); err != nil {
				t.Fatal(err)
			}
			a := p.Engine().Account()
			if u := a.Unbalanced(); len(u) > 0 || a.Sidecar.Pending != 0 || a.Reader.Lost != 0 {
				t.Fatalf("account %+v, unbalanced %v", a, u)
			}
			if uint64(tapped) != a.Reader.Received-a.Reader.ReadAgain {
				t.Fatalf("a tap had %d entries, account %+v", tapped, a)
			}
			got = append(got, x.got...)
			for _, l := range p.Engine().sum.lanes {
				counted += l.duration[0].count
			}
		}
		type open struct {
			number     uint64
			left, has  int
			ended      bool
			lanesTotal uint32
		}
		var steps []*open
		last := uint64(0)
		act := func(s *open, end bool) {
			switch {
			case end && !s.ended:
				s.ended = true
				write(w, &spanring.StepEnd{Step: s.number, BeginNS: 10, MonoNS: 20, Opened: s.lanesTotal})
			case s.left > 0:
				s.left--
				s.has++
				lanes++
				write(w, lane(s.number, uint32(s.has), name, 10, 5))
			}
			if s.ended && s.left == 0 {
				want = append(want, fmt.Sprintf("%d:%d", s.number, s.lanesTotal))
				steps = slices.DeleteFunc(steps, func(x *open) bool { return x == s })
			}
		}
		for range rapid.IntRange(1, 120).Draw(t, "actions") {
			switch what := rapid.IntRange(0, 9).Draw(t, "action"); {
			case what == 0:
				live()
			case what < 4 || len(steps) == 0:
				last++
				n := rapid.IntRange(0, 3).Draw(t, "lanes")
				steps = append(steps, &open{number: last, left: n, lanesTotal: uint32(n)})
				write(w, begin(last, 10))
			default:
				act(rapid.SampledFrom(steps).Draw(t, "step"), what > 7)
			}
		}
		live()
		for len(steps) > 0 {
			act(steps[0], true)
			if len(steps) > 0 {
				act(steps[0], false)
			}
		}
		live()
		if diff := cmp.Diff(sorted(want...), sorted(got...)); diff != "" {
			t.Fatalf("steps (-want +got):\n%s", diff)
		}
		if counted != uint64(lanes) {
			t.Fatalf("%d lanes counted, %d were written", counted, lanes)
		}
	})
}
