package collector

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

var smallRing = spanring.Geometry{LogEntries: 1024, Slots: 16, NameBytes: 64 << 10, Allocs: 16}

// ringDir is a ring directory of this test.
func ringDir(t *testing.T) spanring.Dir {
	t.Helper()
	d := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	return d
}

func newRing(t *testing.T, d spanring.Dir, i spanring.Info) *spanring.Writer {
	t.Helper()
	if i.Rank == (spanring.Rank{}) {
		i.Rank = spanring.NoRank
	}
	w, err := spanring.Create(d, spanring.Options{Geometry: smallRing, Info: i})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func openRing(t *testing.T, w *spanring.Writer) Source {
	t.Helper()
	r, err := spanring.Open(w.Path(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := NewRingSource(r)
	t.Cleanup(func() { s.Close() })
	return s
}

// writeStep writes a whole step with one lane and keeps the producer's counters.
func writeStep(w *spanring.Writer, n uint64, name spanring.NameID) {
	at := spanring.MonoNS()
	w.Add(spanring.CtrBegun, 2)
	for _, e := range []wordser{begin(n, at), lane(n, 1, name, at, 30_000), end(n, at, at+10_000, 1)} {
		words := e.Words()
		w.Append(&words)
	}
	w.Add(spanring.CtrLanded, 2)
}

// eventually polls until ok, for at most a minute.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func TestRingSourceDrainsAnEndedProducer(t *testing.T) {
	w := newRing(t, ringDir(t), spanring.Info{Service: "s"})
	src := openRing(t, w)
	p, k := run(t, src, ProcessorOptions{})
	name := w.Name(spanring.NameLane, "decode")
	for n := uint64(1); n <= 300; n++ {
		writeStep(w, n, name)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ring is drained", func() bool {
		_, done, err := p.Poll()
		if err != nil {
			t.Fatal(err)
		}
		return done
	})
	if len(k.steps) != 300 || k.steps[299].Spans[0].Text.Text != "decode" {
		t.Fatalf("%d steps", len(k.steps))
	}
	if p.Engine().State() != EngineEnded {
		t.Errorf("state %v", p.Engine().State())
	}
	before := p.Engine().Account()
	if u := before.Unbalanced(); len(u) > 0 || before.Reader.Received != 900 || before.Sidecar.Received != 600 || before.Producer.Landed != 600 {
		t.Errorf("account %+v, unbalanced %v", before, u)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	// What was known stays known.
	after := p.Engine().Account()
	if after.Producer.Landed != 600 || after.Reader.Received != 900 || p.Engine().Info().Service != "s" {
		t.Errorf("after Close: %+v", after)
	}
	if _, done, err := p.Poll(); !done || err != nil {
		t.Errorf("poll after Close: done %v, %v", done, err)
	}
}

func TestRingSourceOfAHeapRing(t *testing.T) {
	w, err := spanring.NewHeap(spanring.Options{Geometry: smallRing})
	if err != nil {
		t.Fatal(err)
	}
	r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	src := NewRingSource(r)
	if alive, err := src.Alive(); !alive || err != nil {
		t.Fatalf("alive %v, %v", alive, err)
	}
	writeStep(w, 1, 0)
	w.Close()
	if alive, err := src.Alive(); alive || err != nil {
		t.Fatalf("alive %v, %v after its close", alive, err)
	}
	dst := make([]spanring.Entry, 8)
	n, done, err := src.Poll(dst)
	if n != 3 || done || err != nil {
		t.Fatalf("first poll: %d, %v, %v", n, done, err)
	}
	n, done, err = src.Poll(dst)
	if n != 0 || !done || err != nil {
		t.Fatalf("second poll: %d, %v, %v", n, done, err)
	}
}

func TestTruncatedRingCostsThatRing(t *testing.T) {
	w := newRing(t, ringDir(t), spanring.Info{Service: "s"})
	writeStep(w, 1, 0)
	p, k := run(t, openRing(t, w), ProcessorOptions{})
	if err := os.Truncate(w.Path(), 4096); err != nil {
		t.Fatal(err)
	}
	_, done, err := p.Poll()
	if !done || !errors.Is(err, spanring.ErrTruncated) {
		t.Fatalf("done %v, error %v", done, err)
	}
	if len(k.steps) != 0 || p.Engine().State() != EngineDied {
		t.Errorf("%d steps, state %v", len(k.steps), p.Engine().State())
	}
}
