package otlp

import (
	"runtime"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// outage is an exporter whose queue of 16 MiB was filled twice with small steps, and
// what its memory is then. Nothing was sent.
func outage(t *testing.T, s *server, ins *collector.Instruments) (x *Exporter, last uint64, heap int64) {
	t.Helper()
	inUse := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	src := &today{source{info: testInfo, names: map[spanring.NameID]spanring.Name{2: {Kind: spanring.NameLane, Text: "decode"}}}}
	x = newExporter(t, Options{Endpoint: s.addr, FlushEvery: time.Hour, FlushBytes: 1 << 30})
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Exporter: x, Selector: collector.SelectAll{}, Instruments: ins})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	before := inUse()
	for dropped := uint64(0); dropped == 0 || last < 2*dropped; {
		for range 1000 {
			last++
			src.push(simpleStep(last, 2)...)
		}
		poll(t, p)
		if dropped = x.q.lost(collector.DropQueueFull) / 3; last > 1e6 {
			t.Fatal("the queue does not fill")
		}
	}
	src.entries = nil
	return x, last, inUse() - before
}

// TestNotesOfAnOutage: what is noted for exemplars of a full queue takes one MiB at
// most beside the queue's bytes, and it is the latest steps that are remembered.
func TestNotesOfAnOutage(t *testing.T) {
	_, _, bare := outage(t, newServer(t), nil)
	s := newServer(t)
	ins := collector.NewInstruments(collector.InstrumentOptions{})
	x, last, heap := outage(t, s, ins)

	seen := map[*collector.TraceNote]bool{}
	held, counted := 0, 0
	_, n := x.q.size()
	for i := range x.q.n {
		note := x.q.items[(x.q.head+i)%len(x.q.items)].note
		counted += note.Bytes()
		if !seen[note] {
			held += note.Bytes()
		}
		seen[note] = true
		if forgotten := note == nil; forgotten != (i < x.q.bare) {
			t.Fatalf("item %d of %d: note %p, the first %d are bare", i, n, note, x.q.bare)
		}
	}
	if counted != x.q.notes || held > noteLimit || held < noteLimit-noteLimit/100 {
		t.Errorf("notes of %d bytes, counted as %d, want nearly %d", held, x.q.notes, noteLimit)
	}
	// The rest is the engine's series.
	if extra := heap - bare; extra > noteLimit+noteLimit/4 {
		t.Errorf("%d items: %d bytes of memory with notes, %d without", n, heap, bare)
	} else {
		t.Logf("%d items: %d bytes of memory with notes, %d without; %d notes", n, heap, bare, len(seen)-1)
	}

	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	if x.q.notes != 0 {
		t.Errorf("%d bytes of notes are left of an empty queue", x.q.notes)
	}
	trace := collector.StepTraceID(testRun, last)
	got := exemplarsOf(t, ins)["lanetrace.step.duration"]
	if want := trace.String() + " " + trace.RootID().String(); len(got) != 1 || got[0] != want {
		t.Errorf("exemplars %v, want the last step's, %s", got, want)
	}
}
