package player

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// manual is a clock that jumps over each wait, and remembers it.
type manual struct {
	now  int64
	tick func(now int64)
	stop int // cancelled at this many sleeps, 0 for never
	n    int
}

func (m *manual) MonoNS() int64 { return m.now }

func (m *manual) Sleep(ctx context.Context, d time.Duration) error {
	if m.n++; m.n == m.stop {
		return context.Canceled
	}
	m.now += int64(d)
	if m.tick != nil {
		m.tick(m.now)
	}
	return nil
}

// record records e from its entry skip on, as a recorder does that attached late.
func record(t *testing.T, e *synth.Engine, skip int) *recording.File {
	t.Helper()
	var out bytes.Buffer
	w, err := recording.NewWriter(&out, recording.Options{FlushEvery: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]spanring.Entry, 64)
	for skip > 0 {
		n, _, _ := e.Poll(buf[:min(skip, len(buf))])
		skip -= n
	}
	r, err := w.Begin(e)
	if err != nil {
		t.Fatal(err)
	}
	for {
		n, done, _ := e.Poll(buf)
		if n > 0 {
			if err := r.Append(buf[:n]); err != nil {
				t.Fatal(err)
			}
		}
		if done {
			break
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := recording.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()), "x.ltrec")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func source(t *testing.T, f *recording.File) *recording.Source {
	t.Helper()
	s, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func ringDir(t *testing.T) spanring.Dir {
	t.Helper()
	d := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	return d
}

// readRing reads all that a ring holds.
func readRing(t *testing.T, w *spanring.Writer) ([]spanring.Entry, *spanring.Reader) {
	t.Helper()
	r, err := spanring.Open(w.Path(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	var all []spanring.Entry
	buf := make([]spanring.Entry, 512)
	for {
		n, err := r.Poll(buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return all, r
		}
		all = append(all, buf[:n]...)
	}
}

// texts replaces the name ids in entries by the names, so that entries of two
// tables can be compared, and takes shift off their times.
func texts(t *testing.T, es []spanring.Entry, name func(spanring.NameID) (spanring.Name, bool), shift int64, mask traceMask) (out []any) {
	t.Helper()
	type span struct {
		Span   spanring.Span
		Failed spanring.SpanFailed
		Diff   spanring.LaunchDiff
		Name   spanring.Name
	}
	for i := range es {
		w := &es[i].Words
		switch k := w.Kind(); {
		case k == spanring.KindStepBegin:
			s, err := w.StepBegin()
			if err != nil {
				t.Fatal(err)
			}
			s.MonoNS -= shift
			out = append(out, s)
		case k == spanring.KindStepEnd:
			s, err := w.StepEnd()
			if err != nil {
				t.Fatal(err)
			}
			s.MonoNS -= shift
			s.BeginNS -= shift
			out = append(out, s)
		case k == spanring.KindTraceContext:
			mask.turn(w[2:5])
			l, err := w.StepLink()
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, l)
		case k == spanring.KindRequestEnd:
			mask.turn(w[1:4])
			r, err := w.RequestEnd()
			if err != nil {
				t.Fatal(err)
			}
			r.BeginNS -= shift
			r.EndNS -= shift
			out = append(out, r)
		case k.IsSpan():
			s, err := w.Span()
			if err != nil {
				t.Fatal(err)
			}
			n, ok := name(s.Name)
			if !ok {
				t.Fatalf("span without name: %+v", s)
			}
			s.Name, s.StartMonoNS = 0, s.StartMonoNS-shift
			out = append(out, span{Span: s, Name: n})
		case k == spanring.KindSpanFailed:
			f, err := w.SpanFailed()
			if err != nil {
				t.Fatal(err)
			}
			n, _ := name(f.Name)
			f.Name, f.EnqueueMonoNS = 0, f.EnqueueMonoNS-shift
			out = append(out, span{Failed: f, Name: n})
		case k == spanring.KindLaunchDiff:
			d, err := w.LaunchDiff()
			if err != nil {
				t.Fatal(err)
			}
			n, ok := name(d.Region)
			if !ok {
				t.Fatalf("launch diff without name: %+v", d)
			}
			d.Region, d.MonoNS = 0, d.MonoNS-shift
			out = append(out, span{Diff: d, Name: n})
		default:
			out = append(out, *w)
		}
	}
	return out
}

func TestPlay(t *testing.T) {
	for _, tc := range []struct {
		name string
		skip int
	}{{"from its start", 0}, {"attached late", 333}} {
		t.Run(tc.name, func(t *testing.T) {
			f := record(t, synth.New(synth.Options{Duration: 300 * time.Millisecond, FailEvery: 40, DropEvery: 50, DiffEvery: 30, RequestEvery: 3, Model: "org/model"}), tc.skip)

			plain := source(t, f)
			var want []spanring.Entry
			buf := make([]spanring.Entry, 100)
			var recv []int64
			for {
				next, ok := plain.NextMonoNS()
				n, done, err := plain.PollUntil(buf[:1], next)
				if err != nil {
					t.Fatal(err)
				}
				if n > 0 && ok {
					want = append(want, buf[:n]...)
					recv = append(recv, next)
				}
				if done {
					break
				}
			}

			dir := ringDir(t)
			src := source(t, f)
			const startNS = 5_000_000_000_000
			clock := &manual{now: startNS}
			first := src.NowMonoNS()
			var ring *spanring.Reader
			clock.tick = func(now int64) {
				if ring == nil {
					paths, err := dir.List()
					if err != nil || len(paths) != 1 {
						t.Fatalf("rings %v, %v", paths, err)
					}
					if ring, err = spanring.Open(paths[0], spanring.ReaderOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				c, err := ring.Counters()
				if err != nil {
					t.Fatal(err)
				}
				if c.InFlight() < 0 {
					t.Fatalf("%d in flight: begun %d, landed %d, failed %d, dropped %d", c.InFlight(), c[spanring.CtrBegun], c[spanring.CtrLanded], c.Failed(), c[spanring.CtrDropped])
				}
			}
			w, err := Play(t.Context(), dir, src, Options{Clock: clock})
			if err != nil {
				t.Fatal(err)
			}
			defer ring.Close()
			got, r := readRing(t, w)
			if d := cmp.Diff(texts(t, want, plain.Name, 0, traceMask{}), texts(t, got, r.Name, startNS-first, maskOf(w.Info().RunID))); d != "" {
				t.Errorf("entries (-want +got):\n%s", d)
			}
			if took, is := clock.now-startNS, recv[len(recv)-1]-first; took < is || took > is+int64(2*shortest) {
				t.Errorf("played for %d ns, the recording is %d ns long", took, is)
			}

			i, _ := r.Info()
			j := f.Runs()[0].Info
			if !i.Clean || i.RunID == j.RunID {
				t.Errorf("clean %v, run id %v of %v", i.Clean, i.RunID, j.RunID)
			}
			i.RunID, i.PID, i.PIDNamespace, i.StartTicks, i.CreatedUnixNS, i.CreatedMonoNS = j.RunID, j.PID, j.PIDNamespace, j.StartTicks, j.CreatedUnixNS, j.CreatedMonoNS
			if d := cmp.Diff(j, i); d != "" {
				t.Errorf("info (-want +got):\n%s", d)
			}
			begin, end := source(t, f), plain
			c0, _ := begin.Counters()
			c1, _ := end.Counters()
			got1, _ := r.Counters()
			for k := range c1 {
				want := c1[k] - c0[k]
				if k == int(spanring.CtrBegun) {
					want += inFlight(&c0)
				}
				if k == int(spanring.CtrStepsBegun) {
					want += c0[spanring.CtrStepsBegun] - c0[spanring.CtrStepsEnded]
				}
				if got1[k] != want {
					t.Errorf("counter %v is %d, want %d", spanring.Counter(k), got1[k], want)
				}
			}
			if got1.InFlight() != 0 {
				t.Errorf("%d in flight at the end", got1.InFlight())
			}
			cs, _ := r.Contexts()
			if len(cs) != 1 || cs[0].ConstantNS != 3040 || cs[0].Calibration != spanring.CalibrationMeasured || cs[0].RatePPB != 11_800 {
				t.Errorf("contexts %+v", cs)
			}
		})
	}
}

// Each time that a run is played its requests are in traces of their own, which their
// steps and their ends agree on.
func TestTracesOfEachPass(t *testing.T) {
	f := record(t, synth.New(synth.Options{Duration: 100 * time.Millisecond, RequestEvery: 3}), 0)
	seen := make(map[[16]byte]int)
	for pass := range 2 {
		w, err := Play(t.Context(), ringDir(t), source(t, f), Options{Clock: &manual{now: 77_000_000_000}})
		if err != nil {
			t.Fatal(err)
		}
		linked, ended := make(map[spanring.TraceContext]bool), 0
		es, _ := readRing(t, w)
		for i := range es {
			switch w := &es[i].Words; w.Kind() {
			case spanring.KindTraceContext:
				l, err := w.StepLink()
				if err != nil {
					t.Fatal(err)
				}
				linked[l.TraceContext] = true
			case spanring.KindRequestEnd:
				r, err := w.RequestEnd()
				if err != nil || !linked[r.TraceContext] {
					t.Errorf("no step was linked to %x: %v", r.TraceID, err)
				}
				if n, ok := seen[r.TraceID]; ok {
					t.Errorf("trace %x of pass %d is in pass %d", r.TraceID, n, pass)
				}
				seen[r.TraceID] = pass
				ended++
			}
		}
		if ended < 3 {
			t.Errorf("%d requests", ended)
		}
	}
}

// A played ring comes to the same steps as the recording.
func TestSameSteps(t *testing.T) {
	f := record(t, synth.New(synth.Options{Duration: 200 * time.Millisecond}), 0)
	steps := func(src collector.Source) (out []*collector.Step) {
		p, err := collector.NewProcessor(src, collector.ProcessorOptions{Observers: []collector.Observer{
			collector.ObserverFunc(func(s *collector.Step) { out = append(out, s.Clone()) }),
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Drain(); err != nil {
			t.Fatal(err)
		}
		return out
	}
	w, err := Play(t.Context(), ringDir(t), source(t, f), Options{Clock: &manual{now: 77_000_000_000}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := spanring.Open(w.Path(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want, got := steps(source(t, f)), steps(collector.NewRingSource(r))
	r.Close()
	if len(want) == 0 || len(want) != len(got) {
		t.Fatalf("%d steps, want %d", len(got), len(want))
	}
	for i := range want {
		a, b := want[i], got[i]
		if a.Number != b.Number || a.HostNS() != b.HostNS() || a.Armed != b.Armed || a.Attrs != b.Attrs || a.Incomplete != b.Incomplete || len(a.Spans) != len(b.Spans) {
			t.Fatalf("step %d: %+v\nwant %+v", i, b, a)
		}
		for j := range a.Spans {
			if a.Spans[j].Text.Text != b.Spans[j].Text.Text || a.Spans[j].DurationNS() != b.Spans[j].DurationNS() {
				t.Fatalf("step %d span %d: %+v, want %+v", i, j, b.Spans[j], a.Spans[j])
			}
		}
	}
}

func TestStop(t *testing.T) {
	f := record(t, synth.New(synth.Options{Duration: 300 * time.Millisecond}), 0)
	dir := ringDir(t)
	w, err := Play(t.Context(), dir, source(t, f), Options{Clock: &manual{now: 1, stop: 5}})
	if err != nil {
		t.Fatal(err)
	}
	es, _ := readRing(t, w)
	n := len(es)
	if n == 0 || n > 2000 {
		t.Errorf("%d entries", n)
	}
	if err := w.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(w.Path()); err == nil {
		t.Error("ring is still there")
	}
}

func TestNoDir(t *testing.T) {
	f := record(t, synth.New(synth.Options{Duration: 10 * time.Millisecond}), 0)
	if _, err := Play(t.Context(), spanring.Dir{Path: filepath.Join(t.TempDir(), "no"), Group: -1}, source(t, f), Options{}); err == nil {
		t.Error("a missing directory is no error")
	}
}
