package collector

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestLedgerPaths drives each way out of pending.
func TestLedgerPaths(t *testing.T) {
	var l Ledger
	l.Receive(100)
	want := SidecarCounts{Received: 100, Pending: 100}
	check := func(what string) {
		t.Helper()
		if d := cmp.Diff(want, l.Counts()); d != "" {
			t.Fatalf("after %s (-want +got):\n%s", what, d)
		}
		a := NewAccount(&spanring.Counters{}, spanring.Account{}, l.Counts())
		if u := a.Unbalanced(); len(u) > 0 {
			t.Fatalf("after %s: unbalanced: %v", what, u)
		}
	}
	check("receive")
	l.Export(10)
	want.Exported, want.Pending = 10, 90
	check("export")
	l.Reject(3)
	want.Rejected, want.Pending = 3, 87
	check("reject")
	for r := range numDropReasons {
		l.Drop(r, 2)
		want.Dropped[r] = 2
		want.Pending -= 2
		check("drop " + r.String())
	}
	for r := range numNotSelected {
		l.NotSelect(r, 1)
		want.NotSelected[r] = 1
		want.Pending--
		check("not selected " + r.String())
	}
	// What is not there cannot leave, and nothing comes back.
	l.Export(1000)
	want.Exported += want.Pending
	want.Pending = 0
	check("more than is pending")
	l.Drop(DropLate, -5)
	check("a negative number")
}

func TestUnbalanced(t *testing.T) {
	var c spanring.Counters
	c[spanring.CtrBegun], c[spanring.CtrLanded], c[spanring.CtrDropped] = 10, 6, 1
	c[spanring.FailCapture.Counter()] = 2
	good := func() Account {
		return NewAccount(&c, spanring.Account{Published: 10, Received: 5, Lost: 3, Missed: 1, Pending: 1, Overwritten: 1, Holes: 1, Unreadable: 1},
			SidecarCounts{Received: 5, Exported: 1, Rejected: 1, Pending: 1, NotSelected: [NumNotSelected]uint64{1}, Dropped: [NumDropReasons]uint64{1}})
	}
	a := good()
	if u := a.Unbalanced(); len(u) > 0 {
		t.Errorf("balanced account: %v", u)
	}
	if a.Producer.InFlight != 1 || a.Producer.Failed["capture"] != 2 {
		t.Errorf("producer %+v", a.Producer)
	}
	for want, spoil := range map[string]func(*Account){
		"producer": func(a *Account) { a.Producer.Landed++ },
		"reader":   func(a *Account) { a.Reader.Lost-- },
		"sidecar":  func(a *Account) { a.Sidecar.Dropped["late"]++ },
	} {
		a := good()
		spoil(&a)
		if d := cmp.Diff([]string{want}, a.Unbalanced()); d != "" {
			t.Errorf("%s (-want +got):\n%s", want, d)
		}
	}
}

// TestAccountJSON holds the keys that others read.
func TestAccountJSON(t *testing.T) {
	src := newMemSource("a")
	p, _ := run(t, src, ProcessorOptions{})
	b, err := json.Marshal(p.Engine().Account())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"engine":"svc"`, `"run_id":"01020300000000000000000000000000"`, `"state":"live"`,
		`"begun":0`, `"landed":0`, `"in_flight":0`, `"failed":{"abandoned":0,`, `"misplaced":0`,
		`"published":0`, `"missed_before_attach":0`, `"lost":0`, `"lost_by_reason":{"hole":0,"overwritten":0,"unreadable":0}`,
		`"received":0`, `"exported":0`, `"not_selected":{"before_restart":0,"budget":0,"left_open":0,"no_exporter":0,"one_in_n":0,"request_not_sampled":0}`, `"rejected":0`,
		`"queue_full":0`, `"pending":0`, `"read_again":0`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in %s", want, b)
		}
	}
}

// accountTap keeps the engine's account of the moment when entries were read and not
// yet taken apart.
type accountTap struct{ seen Account }

func (a *accountTap) Entries(e *Engine, _ []spanring.Entry) { a.seen = e.Account() }
func (a *accountTap) Ended(*Engine)                         {}

// TestAccountWhileReading: entries count as received when their spans do, so that the
// lines agree at any moment.
func TestAccountWhileReading(t *testing.T) {
	src := newMemSource("a").push(begin(1, 0), lane(1, 1, 1, 10, 10), lane(1, 2, 1, 30, 10))
	var tap accountTap
	p, err := NewProcessor(src, ProcessorOptions{Taps: []Tap{&tap}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Poll(); err != nil {
		t.Fatal(err)
	}
	type counts struct{ received, pending, spans uint64 }
	of := func(a *Account) counts { return counts{a.Reader.Received, a.Reader.Pending, a.Sidecar.Received} }
	after := p.Engine().Account()
	if got, want := of(&tap.seen), (counts{0, 3, 0}); got != want {
		t.Errorf("while they are read: %+v, want %+v", got, want)
	}
	if got, want := of(&after), (counts{3, 0, 3}); got != want {
		t.Errorf("after that: %+v, want %+v", got, want)
	}
}

// TestAccountOfAnything feeds arbitrary entries, good and bad, and an exporter
// that settles some of what it gets: nothing is pending at the end, and what was
// received is what the entries say.
func TestAccountOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newMemSource("a", "b", "c")
		held := 0
		exp := exporterFunc(func(s *Step, _ ExportReason) {
			u, l := s.Units(), s.Engine.Ledger()
			if u == 0 {
				return
			}
			r := rapid.IntRange(0, u).Draw(t, "rejected")
			l.Reject(r)
			d := rapid.IntRange(0, u-r).Draw(t, "dropped")
			l.Drop(DropQueueFull, d)
			held += u - r - d
		})
		p, err := NewProcessor(src, ProcessorOptions{
			Exporter: exp, Selector: NewLiveSelector(LiveOptions{OneInN: rapid.SampledFrom([]int{-1, 1, 2}).Draw(t, "one in")}),
			MaxOpenSteps: 3, MaxSpansPerStep: 4, MaxOpenSpans: 6, MaxOpenRequests: 3,
		})
		if err != nil {
			t.Fatal(err)
		}
		step := rapid.Uint64Range(0, 6)
		at := rapid.Int64Range(-5, 1000)
		ordinal := rapid.Uint32Range(0, 5)
		var spans, roots uint64
		begun := map[uint64]bool{}
		for range rapid.IntRange(0, 200).Draw(t, "entries") {
			n := step.Draw(t, "step")
			var w spanring.Words
			switch rapid.IntRange(0, 8).Draw(t, "kind") {
			case 0:
				w = begin(n, at.Draw(t, "at")).Words()
				if _, err := w.StepBegin(); err != nil {
					spans++ // a unit that cannot be
				} else if !begun[n] {
					begun[n] = true
					roots++
				}
			case 1:
				b := at.Draw(t, "begin")
				w = end(n, b, b+at.Draw(t, "length"), ordinal.Draw(t, "opened")).Words()
			case 2:
				w = lane(n, ordinal.Draw(t, "ordinal"), 1, at.Draw(t, "at"), 10).Words()
				spans++
			case 3:
				w = kernel(n, ordinal.Draw(t, "ordinal"), ordinal.Draw(t, "parent"), 1, 2, at.Draw(t, "at"), 10).Words()
				spans++
			case 4:
				w = failed(n, ordinal.Draw(t, "ordinal"), spanring.FailRecord, at.Draw(t, "at")).Words()
			case 5:
				for i := range w {
					w[i] = rapid.Uint64().Draw(t, "word")
				}
				w[0] = w[0]&^0xff | uint64(rapid.SampledFrom([]spanring.Kind{0, 9, 200}).Draw(t, "other kind"))
			case 6:
				w = link(n, int(n)).Words()
			case 7:
				w = requestEnd(int(n), at.Draw(t, "begin"), at.Draw(t, "end")).Words()
				spans++
			case 8:
				src.nowNS += rapid.Int64Range(0, 20e9).Draw(t, "time")
				p.Poll()
				continue
			}
			src.queue = append(src.queue, w)
		}
		if err := func() error { src.done = true; return p.Drain() }(); err != nil {
			t.Fatal(err)
		}
		c := p.Engine().Ledger().Counts()
		if c.Pending != uint64(held) {
			t.Errorf("%d pending, the exporter holds %d", c.Pending, held)
		}
		a := p.Engine().Account()
		if u := a.Unbalanced(); len(u) > 0 {
			t.Errorf("unbalanced: %v: %+v", u, a)
		}
		// Steps whose begin never came count with their end, so there may be more;
		// a begin that comes again for a step closed long ago does not exist here.
		if c.Received < spans+roots || c.Received > spans+7 {
			t.Errorf("%d received, entries hold %d spans and %d begun steps", c.Received, spans, roots)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

type exporterFunc func(*Step, ExportReason)

func (f exporterFunc) Export(s *Step, r ExportReason) { f(s, r) }

// TestTruncatedRingsEntriesAreAccountedFor: what was still to be read is lost, and by
// what.
func TestTruncatedRingsEntriesAreAccountedFor(t *testing.T) {
	w := newRing(t, ringDir(t), spanring.Info{Service: "s"})
	writeStep(w, 1, 0)
	src := openRing(t, w)
	published := w.Published()
	if n, _, err := src.Poll(make([]spanring.Entry, 1)); n != 1 || err != nil {
		t.Fatalf("%d entries, %v", n, err)
	}
	if err := os.Truncate(w.Path(), 4096); err != nil {
		t.Fatal(err)
	}
	if _, _, err := src.Poll(make([]spanring.Entry, 1)); !errors.Is(err, spanring.ErrTruncated) {
		t.Fatal(err)
	}
	a := NewAccount(&spanring.Counters{}, src.Account(), SidecarCounts{})
	want := ReaderAccount{
		Published: published, Received: 1, Lost: published - 1,
		LostBy: map[string]uint64{"overwritten": 0, "hole": 0, "unreadable": published - 1},
	}
	if d := cmp.Diff(want, a.Reader); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
