package synth

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// taker exports everything and keeps what requests came to.
type taker struct {
	requests map[spanring.TraceContext]collector.Request
}

func (x *taker) Export(s *collector.Step, _ collector.ExportReason) {
	s.Engine.Ledger().Export(s.Units())
}

func (x *taker) ExportRequest(r *collector.Request) {
	x.requests[r.TraceContext] = *r
	r.Engine.Ledger().Export(1)
}

// TestRequests: each request's summary has the steps that it lasted, every step
// its requests, and the account balances; the same seed gives the same requests.
func TestRequests(t *testing.T) {
	run := func(every int) map[spanring.TraceContext]collector.Request {
		x := &taker{make(map[spanring.TraceContext]collector.Request)}
		most, dropped := 0, 0
		p, err := collector.NewProcessor(New(Options{Duration: 300 * time.Millisecond, RequestEvery: every, Seed: 3}), collector.ProcessorOptions{
			Exporter: x, Selector: collector.SelectAll{},
			Observers: []collector.Observer{collector.ObserverFunc(func(s *collector.Step) {
				most, dropped = max(most, len(s.Links)), dropped+s.LinksDropped()
			})},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.Drain(); err != nil {
			t.Fatal(err)
		}
		if most < 2 || dropped > 0 {
			t.Errorf("a step has %d links at most, %d are dropped", most, dropped)
		}
		if a := p.Engine().Account(); len(a.Unbalanced()) > 0 || a.Producer.Begun != a.Sidecar.Received || a.Sidecar.Pending != 0 {
			t.Errorf("account %+v", a)
		}
		return x.requests
	}
	got := run(4)
	if len(got) < 10 {
		t.Errorf("%d requests ended", len(got))
	}
	for c, r := range got {
		if r.Steps != int(r.OutputTokens) || r.ExportedCount != r.Steps || r.StepsOpen != 0 || r.GPULaneNS <= 0 || r.EndNS <= r.BeginNS || !c.Valid() || !c.Sampled() {
			t.Errorf("request %+v", r)
		}
	}
	for c, r := range run(4) {
		if g := got[c]; g.Steps != r.Steps || g.GPULaneNS != r.GPULaneNS || g.PromptTokens != r.PromptTokens {
			t.Errorf("another run: %+v, want %+v", r, g)
		}
	}
}
