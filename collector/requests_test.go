package collector

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/lanetrace/lanetrace/spanring"
)

func requestContext(n int) spanring.TraceContext {
	return spanring.TraceContext{TraceID: [16]byte{1, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}, SpanID: [8]byte{2, 7: byte(n)}, Flags: 1}
}

func link(step uint64, n int) wordser {
	return &spanring.StepLink{Step: step, TraceContext: requestContext(n)}
}

func requestEnd(n int, beginNS, endNS int64) wordser {
	return &spanring.RequestEnd{TraceContext: requestContext(n), BeginNS: beginNS, EndNS: endNS, PromptTokens: 100, OutputTokens: 7}
}

// linkedEnd is the end of a step that was linked so often.
func linkedEnd(step uint64, beginNS, ns int64, opened, linked uint32) wordser {
	return &spanring.StepEnd{Step: step, BeginNS: beginNS, MonoNS: ns, Opened: opened, Linked: linked}
}

// keepRequests is a keep that keeps requests too, as exporter and observer.
type keepRequests struct {
	keep
	requests []Request
}

func (k *keepRequests) ExportRequest(r *Request) {
	k.ObserveRequest(r)
	r.Engine.Ledger().Export(1)
}

func (k *keepRequests) ObserveRequest(r *Request) {
	c := *r
	c.Exported = slices.Clone(r.Exported)
	k.requests = append(k.requests, c)
}

// exporting makes a processor whose steps and requests are exported to what it
// returns.
func exporting(t *testing.T, src Source, o ProcessorOptions) (*Processor, *keepRequests) {
	t.Helper()
	k := &keepRequests{keep: keep{settle: true}}
	o.Exporter = k
	p, err := NewProcessor(src, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, k
}

// summary is what tests compare of a request.
type requestBrief struct {
	Request       int
	Begin, End    int64
	Steps, Open   int
	GPU           int64
	Exported      []uint64
	ExportedCount int
}

func briefRequests(rs []Request) (out []requestBrief) {
	for _, r := range rs {
		out = append(out, requestBrief{
			Request: int(r.TraceID[13])<<16 | int(r.TraceID[14])<<8 | int(r.TraceID[15]), Begin: r.BeginNS, End: r.EndNS,
			Steps: r.Steps, Open: r.StepsOpen, GPU: r.GPULaneNS, Exported: r.Exported, ExportedCount: r.ExportedCount,
		})
	}
	return out
}

func TestRequests(t *testing.T) {
	all := SelectAll{}
	for _, tt := range []struct {
		name   string
		o      ProcessorOptions
		es     []wordser
		then   func(t *testing.T, p *Processor, src *memSource)
		want   []requestBrief
		ledger SidecarCounts
		counts RequestCounts
	}{
		{
			name: "two requests share a step",
			o:    ProcessorOptions{Selector: all},
			es: []wordser{
				begin(1, 100), link(1, 1), lane(1, 1, 1, 200, 50), linkedEnd(1, 100, 300, 1, 1),
				begin(2, 400), link(2, 1), link(2, 2), lane(2, 1, 1, 500, 70), linkedEnd(2, 400, 600, 1, 2),
				requestEnd(1, 90, 620),
				begin(3, 700), link(3, 2), lane(3, 1, 1, 710, 5), linkedEnd(3, 700, 750, 1, 1),
				requestEnd(2, 390, 760),
			},
			want: []requestBrief{
				{Request: 1, Begin: 90, End: 620, Steps: 2, GPU: 120, Exported: []uint64{1, 2}, ExportedCount: 2},
				{Request: 2, Begin: 390, End: 760, Steps: 2, GPU: 75, Exported: []uint64{2, 3}, ExportedCount: 2},
			},
			ledger: SidecarCounts{Received: 8, Exported: 8}, counts: RequestCounts{Ended: 2},
		},
		{
			name: "lanes that overlap count once, within a step and between steps",
			o:    ProcessorOptions{Selector: all},
			es: []wordser{
				begin(1, 100), link(1, 1), lane(1, 1, 1, 200, 50), lane(1, 2, 2, 220, 50), kernel(1, 3, 0, 0, 3, 400, 4000), linkedEnd(1, 100, 300, 3, 1),
				begin(2, 150), link(2, 1), lane(2, 1, 1, 260, 40), linkedEnd(2, 150, 300, 1, 1),
				requestEnd(1, 90, 620),
			},
			want:   []requestBrief{{Request: 1, Begin: 90, End: 620, Steps: 2, GPU: 100, Exported: []uint64{1, 2}, ExportedCount: 2}},
			ledger: SidecarCounts{Received: 7, Exported: 7}, counts: RequestCounts{Ended: 1},
		},
		{
			name: "the end comes before the last step closes",
			o:    ProcessorOptions{Selector: all},
			es: []wordser{
				begin(1, 100), link(1, 1), linkedEnd(1, 100, 300, 1, 1),
				begin(2, 310), link(2, 1), linkedEnd(2, 310, 320, 1, 1),
				requestEnd(1, 90, 330), lane(1, 1, 1, 400, 50),
			},
			then: func(t *testing.T, p *Processor, src *memSource) {
				if c := p.Engine().Ledger().Counts(); c.Pending != 2 {
					t.Errorf("before its last step: %+v", c)
				}
				src.push(lane(2, 1, 1, 450, 50))
			},
			want:   []requestBrief{{Request: 1, Begin: 90, End: 330, Steps: 2, GPU: 100, Exported: []uint64{1, 2}, ExportedCount: 2}},
			ledger: SidecarCounts{Received: 5, Exported: 5}, counts: RequestCounts{Ended: 1},
		},
		{
			name: "a step that never closes is waited for no longer than for a step",
			o:    ProcessorOptions{Selector: all, StepTimeout: time.Second},
			es:   []wordser{begin(1, 100), link(1, 1), requestEnd(1, 90, 330)},
			then: func(t *testing.T, p *Processor, src *memSource) {
				src.nowNS += 9e8
				src.push(failed(1, 1, spanring.FailZero, 5)) // touched
				p.Poll()
				src.nowNS += 1e8
			},
			want:   []requestBrief{{Request: 1, Begin: 90, End: 330, Open: 1}},
			ledger: SidecarCounts{Received: 2, Exported: 1, Pending: 1}, counts: RequestCounts{Ended: 1},
		},
		{
			name: "a step without its end counts when its time-out has closed it",
			o:    ProcessorOptions{Selector: all, StepTimeout: time.Second},
			es:   []wordser{begin(1, 100), link(1, 1), lane(1, 1, 1, 200, 50)},
			then: func(t *testing.T, p *Processor, src *memSource) {
				src.nowNS += 1e9
				p.Poll()
				src.push(requestEnd(1, 90, 330))
			},
			want:   []requestBrief{{Request: 1, Begin: 90, End: 330, Steps: 1, GPU: 50, Exported: []uint64{1}, ExportedCount: 1}},
			ledger: SidecarCounts{Received: 3, Exported: 3}, counts: RequestCounts{Ended: 1},
		},
		{
			name: "the engine ends first",
			o:    ProcessorOptions{Selector: all},
			es:   []wordser{begin(1, 100), link(1, 1), link(1, 2), lane(1, 1, 1, 200, 50), requestEnd(1, 90, 330)},
			then: func(t *testing.T, p *Processor, src *memSource) { src.done = true },
			want: []requestBrief{{Request: 1, Begin: 90, End: 330, Steps: 1, GPU: 50, Exported: []uint64{1}, ExportedCount: 1}},
			// Request 2 never ended, and never will.
			ledger: SidecarCounts{Received: 3, Exported: 3}, counts: RequestCounts{Ended: 1},
		},
		{
			name:   "no step was linked",
			o:      ProcessorOptions{Selector: all},
			es:     []wordser{requestEnd(1, 90, 330)},
			want:   []requestBrief{{Request: 1, Begin: 90, End: 330}},
			ledger: SidecarCounts{Received: 1, Exported: 1}, counts: RequestCounts{Ended: 1},
		},
		{
			name: "a step that is linked twice counts once",
			o:    ProcessorOptions{Selector: all},
			es: []wordser{
				begin(1, 100), link(1, 1), link(1, 1), linkedEnd(1, 100, 300, 0, 2), requestEnd(1, 90, 330),
			},
			want:   []requestBrief{{Request: 1, Begin: 90, End: 330, Steps: 1, Exported: []uint64{1}, ExportedCount: 1}},
			ledger: SidecarCounts{Received: 2, Exported: 2}, counts: RequestCounts{Ended: 1},
		},
		{
			name: "steps that are not exported count",
			o:    ProcessorOptions{Selector: NewLiveSelector(LiveOptions{OneInN: -1})},
			es: []wordser{
				begin(1, 100), link(1, 1), lane(1, 1, 1, 200, 50), linkedEnd(1, 100, 300, 1, 1),
				begin(2, 400), linkedEnd(2, 400, 600, 0, 0),
				requestEnd(1, 90, 620),
			},
			want:   []requestBrief{{Request: 1, Begin: 90, End: 620, Steps: 1, GPU: 50, Exported: []uint64{1}, ExportedCount: 1}},
			ledger: SidecarCounts{Received: 4, Exported: 3, NotSelected: [NumNotSelected]uint64{NotOneInN: 1}}, counts: RequestCounts{Ended: 1},
		},
		{
			name: "a trace that is not recorded gets no summary and selects no step",
			o:    ProcessorOptions{Selector: NewLiveSelector(LiveOptions{OneInN: -1})},
			es: []wordser{
				begin(1, 100),
				&spanring.StepLink{Step: 1, TraceContext: spanring.TraceContext{TraceID: [16]byte{9}, SpanID: [8]byte{9}}},
				end(1, 100, 300, 0),
				&spanring.RequestEnd{TraceContext: spanring.TraceContext{TraceID: [16]byte{9}, SpanID: [8]byte{9}, Flags: 2}, EndNS: 5},
			},
			ledger: SidecarCounts{Received: 2, NotSelected: [NumNotSelected]uint64{NotOneInN: 1, NotSampled: 1}},
		},
		{
			name: "ends that cannot be, and a second end while the first waits",
			o:    ProcessorOptions{Selector: all},
			es: []wordser{
				begin(1, 100), link(1, 1), requestEnd(1, 90, 330), requestEnd(1, 90, 340),
				&spanring.RequestEnd{TraceContext: requestContext(3), BeginNS: 9, EndNS: 8}, link(0, 4),
			},
			then: func(t *testing.T, p *Processor, src *memSource) { p.Finish() },
			want: []requestBrief{{Request: 1, Begin: 90, End: 330, Steps: 1, Exported: []uint64{1}, ExportedCount: 1}},
			ledger: SidecarCounts{
				Received: 4, Exported: 2, Dropped: [NumDropReasons]uint64{DropMalformed: 2}},
			counts: RequestCounts{Ended: 1},
		},
		{
			name: "the one longest untouched makes room",
			o:    ProcessorOptions{Selector: all, MaxOpenRequests: 2},
			es: []wordser{
				begin(1, 100), link(1, 1), link(1, 2), linkedEnd(1, 100, 110, 0, 2),
				begin(2, 200), link(2, 1), link(2, 3), linkedEnd(2, 200, 210, 0, 2),
			},
			then: func(t *testing.T, p *Processor, src *memSource) {
				for n := range 3 {
					src.push(requestEnd(n+1, int64(n)+1, 300))
					p.Poll()
				}
			},
			want: []requestBrief{
				{Request: 1, Begin: 1, End: 300, Steps: 2, Exported: []uint64{1, 2}, ExportedCount: 2},
				{Request: 2, Begin: 2, End: 300},
				{Request: 3, Begin: 3, End: 300, Steps: 1, Exported: []uint64{2}, ExportedCount: 1},
			},
			ledger: SidecarCounts{Received: 5, Exported: 5}, counts: RequestCounts{Ended: 3, Evicted: 1},
		},
		{
			name: "where all have ended the first ended goes first",
			o:    ProcessorOptions{Selector: all, MaxOpenRequests: 2},
			es: []wordser{
				begin(1, 100), link(1, 1), requestEnd(1, 1, 200), link(1, 2), requestEnd(2, 2, 200), link(1, 3), requestEnd(3, 3, 200),
				linkedEnd(1, 100, 110, 0, 3),
			},
			want: []requestBrief{
				{Request: 1, Begin: 1, End: 200, Open: 1},
				{Request: 2, Begin: 2, End: 200, Steps: 1, Exported: []uint64{1}, ExportedCount: 1},
				{Request: 3, Begin: 3, End: 200, Steps: 1, Exported: []uint64{1}, ExportedCount: 1},
			},
			ledger: SidecarCounts{Received: 4, Exported: 4}, counts: RequestCounts{Ended: 3},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src := newMemSource("a", "b", "c")
			src.push(tt.es...)
			p, k := exporting(t, src, tt.o)
			pollAll(t, p)
			if tt.then != nil {
				tt.then(t, p, src)
				pollAll(t, p)
			}
			if d := cmp.Diff(tt.want, briefRequests(k.requests), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("requests (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.ledger, p.Engine().Ledger().Counts()); d != "" {
				t.Errorf("ledger (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.counts, p.Engine().Requests()); d != "" {
				t.Errorf("counts (-want +got):\n%s", d)
			}
			for _, r := range k.requests {
				if r.UnixNS(5) != testWallOffset+5 || r.PromptTokens != 100 || r.OutputTokens != 7 {
					t.Errorf("request %+v", r)
				}
			}
		})
	}
}

// TestRequestWithoutTakers: an exporter that takes no requests, and none at all.
func TestRequestWithoutTakers(t *testing.T) {
	for _, x := range []Exporter{nil, &keep{settle: true}} {
		src := newMemSource("a")
		o := &keepRequests{}
		p, err := NewProcessor(src, ProcessorOptions{Exporter: x, Observers: []Observer{o}, Selector: SelectAll{}})
		if err != nil {
			t.Fatal(err)
		}
		src.push(requestEnd(1, 2, 3))
		pollAll(t, p)
		if c := p.Engine().Ledger().Counts(); c.NotSelected[NotWanted] != 1 || c.Pending != 0 {
			t.Errorf("ledger %+v", c)
		}
		if len(o.requests) != 1 {
			t.Errorf("%d requests observed", len(o.requests))
		}
		p.Close()
	}
}

func TestLinks(t *testing.T) {
	many := func(step uint64, n int) (es []wordser) {
		for i := range n {
			es = append(es, link(step, i))
		}
		return es
	}
	for _, tt := range []struct {
		name          string
		es            []wordser
		kept, dropped int
	}{
		{"none", []wordser{end(1, 1, 2, 0)}, 0, 0},
		{"all that are kept", append(many(1, MaxLinks), linkedEnd(1, 1, 2, 0, MaxLinks)), MaxLinks, 0},
		{"more than the producer writes", append(many(1, MaxLinks), linkedEnd(1, 1, 2, 0, 1000)), MaxLinks, 1000 - MaxLinks},
		{"more than a producer should write", append(many(1, MaxLinks+5), linkedEnd(1, 1, 2, 0, 3)), MaxLinks, 5},
		{"entries lost", append(many(1, 3), linkedEnd(1, 1, 2, 0, 10)), 3, 7},
		{"twice", append(append(many(1, 1), many(1, 1)...), linkedEnd(1, 1, 2, 0, 2)), 1, 0},
		{"behind the end", append([]wordser{linkedEnd(1, 1, 2, 1, 1)}, append(many(1, 1), lane(1, 1, 1, 5, 5))...), 1, 0},
	} {
		src := newMemSource("a")
		p, k := run(t, src, ProcessorOptions{})
		src.push(begin(1, 1)).push(tt.es...)
		pollAll(t, p)
		if len(k.steps) != 1 {
			t.Fatalf("%s: %d steps", tt.name, len(k.steps))
		}
		s := k.steps[0]
		if len(s.Links) != tt.kept || s.LinksDropped() != tt.dropped || s.Linked() != (tt.kept > 0) {
			t.Errorf("%s: %d links, %d dropped, linked %v", tt.name, len(s.Links), s.LinksDropped(), s.Linked())
		}
		for i, l := range s.Links {
			if l.TraceContext != requestContext(i) {
				t.Errorf("%s: link %d is %+v", tt.name, i, l.TraceContext)
			}
		}
		// The next step of the same memory has none of it.
		src.push(begin(2, 10), end(2, 10, 20, 0), link(2, 9))
		pollAll(t, p)
		if s := k.steps[1]; len(s.Links) != 0 || s.LinksDropped() != 0 {
			t.Errorf("%s: the next step has %d links, %d dropped", tt.name, len(s.Links), s.LinksDropped())
		}
		if n := p.Engine().sum.lateEntries; n != 1 {
			t.Errorf("%s: %d late entries", tt.name, n)
		}
	}
}

func TestLinkedStepIsSelected(t *testing.T) {
	src := newMemSource("a")
	p, k := exporting(t, src, ProcessorOptions{Selector: NewLiveSelector(LiveOptions{OneInN: -1})})
	src.push(begin(1, 1), end(1, 1, 2, 0), begin(2, 3), link(2, 1), linkedEnd(2, 3, 4, 0, 1))
	pollAll(t, p)
	if len(k.steps) != 1 || k.steps[0].Number != 2 || k.reasons[0] != ExportLinked || ExportLinked.String() != "linked" {
		t.Errorf("exported %+v for %v", k.steps, k.reasons)
	}
}

func TestMoreStepsThanARequestKeeps(t *testing.T) {
	src := newMemSource("a")
	p, k := exporting(t, src, ProcessorOptions{Selector: SelectAll{}})
	const steps = 3*MaxLinks + 1
	for n := uint64(1); n <= steps; n++ {
		at := int64(n) * 1000
		src.push(begin(n, at), link(n, 1), lane(n, 1, 1, at+10, 100), linkedEnd(n, at, at+200, 1, 1))
	}
	src.push(requestEnd(1, 1000, 1000*(steps+1)))
	pollAll(t, p)
	want := requestBrief{Request: 1, Begin: 1000, End: 1000 * (steps + 1), Steps: steps, GPU: 100 * steps, ExportedCount: steps}
	for n := uint64(1); n <= MaxLinks; n++ {
		want.Exported = append(want.Exported, n)
	}
	if d := cmp.Diff([]requestBrief{want}, briefRequests(k.requests)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestSeveralDevices: the time is the sum over devices.
func TestRequestOverSeveralDevices(t *testing.T) {
	src := newMemSource("a")
	p, k := exporting(t, src, ProcessorOptions{Selector: SelectAll{}})
	other := lane(1, 2, 1, 200, 50)
	other.Context = 3
	src.push(begin(1, 100), link(1, 1), lane(1, 1, 1, 200, 50), other, linkedEnd(1, 100, 300, 2, 1), requestEnd(1, 90, 330))
	pollAll(t, p)
	if len(k.requests) != 1 || k.requests[0].GPULaneNS != 100 {
		t.Errorf("%+v", briefRequests(k.requests))
	}
}

// TestSummaryID: a request of a run has one id, whatever has come of it.
func TestSummaryID(t *testing.T) {
	ids := map[SpanID]string{}
	for run := range 3 {
		e := &Engine{runID: spanring.RunID{byte(run)}}
		for n := range 100 {
			a := Request{Engine: e, RequestEnd: spanring.RequestEnd{TraceContext: requestContext(n)}}
			b := a
			b.Steps, b.EndNS, b.Flags = 5, 7, 3
			id := a.SummaryID()
			if id != b.SummaryID() || id == (SpanID{}) || id == SpanID(a.SpanID) {
				t.Errorf("id %s, %s", id, b.SummaryID())
			}
			if other, ok := ids[id]; ok {
				t.Errorf("request %d of run %d has the id of %s", n, run, other)
			}
			ids[id] = fmt.Sprintf("%d of %d", n, run)
		}
	}
}

// TestHostileRequests: whatever comes, what is kept is bounded, and the account
// balances.
func TestHostileRequests(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	src := newMemSource("a")
	const most = 50
	p, k := exporting(t, src, ProcessorOptions{MaxOpenRequests: most, MaxOpenSteps: 20, StepTimeout: time.Second, Selector: NewLiveSelector(LiveOptions{OneInN: -1, BudgetBytes: -1})})
	ends := 0
	for range 400 {
		for range 200 {
			step, n := uint64(1+rnd.IntN(2000)), rnd.IntN(5000)
			switch rnd.IntN(8) {
			case 0:
				src.push(begin(step, 1))
			case 1:
				src.push(linkedEnd(step, 1, 2, rnd.Uint32N(2), rnd.Uint32()))
			case 2:
				src.push(requestEnd(n, 1, 2))
				ends++
			case 3:
				src.push(lane(step, 1, 1, rnd.Int64N(1e9), rnd.Uint64()))
			default:
				src.push(link(step, n))
			}
		}
		src.nowNS += rnd.Int64N(1e8)
		pollAll(t, p)
		q := &p.asm.requests
		if len(q.open) > most || len(q.done) != 0 || len(q.free) > freeRequests {
			t.Fatalf("%d open, %d done, %d free", len(q.open), len(q.done), len(q.free))
		}
		listed := 0
		for _, l := range []*requestList{&q.live, &q.ended} {
			for r := l.oldest; r != nil; r = r.newer {
				listed++
			}
		}
		if listed != len(q.open) {
			t.Fatalf("%d listed, %d open", listed, len(q.open))
		}
		for _, s := range k.steps {
			if len(s.Links) > MaxLinks || s.LinksDropped() < 0 {
				t.Fatalf("a step with %d links, %d dropped", len(s.Links), s.LinksDropped())
			}
		}
		k.steps = k.steps[:0]
	}
	p.Finish()
	c := p.Engine().Ledger().Counts()
	if a := p.Engine().Account(); c.Pending != 0 || len(a.Unbalanced()) > 0 {
		t.Errorf("ledger %+v", c)
	}
	for _, r := range k.requests {
		if r.GPULaneNS < 0 || r.StepsOpen < 0 || len(r.Exported) > MaxLinks {
			t.Fatalf("request %+v", r)
		}
	}
	if n := len(k.requests); n == 0 || n > ends || n+int(c.Dropped[DropMalformed]) < ends {
		t.Errorf("%d summaries and %d malformed of %d ends", len(k.requests), c.Dropped[DropMalformed], ends)
	}
}

// TestLaneTime is the union of intervals as one would compute it with all of them
// at hand, as long as none comes before what has become a sum, and never more.
func TestLaneTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 80).Draw(t, "intervals")
		earlier := rapid.SampledFrom([]int{0, 3, 60}).Draw(t, "out of order by")
		ivs := make([]interval, n)
		at := int64(0)
		for i := range ivs {
			at += rapid.Int64Range(0, 10).Draw(t, "gap")
			ivs[i] = interval{at, at + rapid.Int64Range(0, 12).Draw(t, "length")}
			if d := rapid.IntRange(0, earlier).Draw(t, "earlier"); d <= i {
				ivs[i], ivs[i-d] = ivs[i-d], ivs[i]
			}
		}
		var lt laneTime
		covered := map[int64]bool{}
		cut := false
		for _, iv := range ivs {
			cut = cut || iv.a < lt.untilNS
			lt.add(iv)
			for x := iv.a; x < iv.b; x++ {
				covered[x] = true
			}
			if lt.n > openIntervals {
				t.Fatalf("%d pieces", lt.n)
			}
			if got := lt.ns(); got > int64(len(covered)) || !cut && got != int64(len(covered)) {
				t.Fatalf("%v: %d, want %d", ivs, got, len(covered))
			}
		}
		if cut && earlier == 0 {
			t.Fatalf("%v: cut though they came in order", ivs)
		}
	})
}

func TestRequestsDoNotAllocate(t *testing.T) {
	src := newMemSource("decode")
	p, _ := exporting(t, src, ProcessorOptions{})
	p.o.Exporter = nil
	var batch []spanring.Entry
	n := uint64(0)
	fill := func() {
		batch = batch[:0]
		for range 16 {
			n++
			at := int64(n) * 1000
			for _, w := range []wordser{
				begin(n, at), link(n, int(n)), link(n, int(n+1)), lane(n, 1, 1, at+10, 500), linkedEnd(n, at, at+600, 1, 2), requestEnd(int(n), at, at),
			} {
				batch = append(batch, spanring.Entry{Words: w.Words()})
			}
		}
	}
	var batches [][]spanring.Entry
	for range 220 {
		fill()
		batches = append(batches, slices.Clone(batch))
	}
	i := 0
	one := func() {
		p.assemble(batches[i])
		p.handOver()
		i++
	}
	for range 100 {
		one()
	}
	if a := testing.AllocsPerRun(100, one); a > 0 {
		t.Errorf("%v allocations for 16 steps with links", a)
	}
	if c := p.Engine().Requests(); c.Ended != uint64(16*i) || c.Open > 2 {
		t.Errorf("%+v", c)
	}
}

// TestRequestMetrics: they are there from the start, and the info metric names
// model and ranks.
func TestRequestMetrics(t *testing.T) {
	in, r := instruments(t, InstrumentOptions{})
	src := newMemSource("a")
	src.info.Model, src.info.Rank = "org/\nmodel", spanring.Rank{Data: 3, Tensor: 0, Pipeline: -1, Expert: -1}
	p, _ := exporting(t, src, ProcessorOptions{Instruments: in, MaxOpenRequests: 2})
	check := func(ended, open, evicted float64) {
		t.Helper()
		m := allMetrics(t, r)
		got := []float64{m["requests.ended"], m["requests.open"], m["requests.evicted"]}
		if _, ok := m["requests.evicted"]; !ok {
			t.Error("there is no metric of evicted requests")
		}
		if d := cmp.Diff([]float64{ended, open, evicted}, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
	check(0, 0, 0)
	src.push(begin(1, 1), link(1, 1), link(1, 2), link(1, 3), linkedEnd(1, 1, 2, 0, 3))
	pollAll(t, p)
	check(0, 2, 1)
	src.push(requestEnd(3, 1, 5))
	pollAll(t, p)
	check(1, 1, 1)
	found := false
	for k, v := range allMetrics(t, r) {
		if strings.HasPrefix(k, "engine.info ") {
			found = v == 1 && strings.Contains(k, " model=org/ model ") && strings.Contains(k, " rank_data=3 ") && strings.Contains(k, " rank_pipeline= ") && strings.Contains(k, " rank_tensor=0 ")
		}
	}
	if !found {
		t.Errorf("no info with model and ranks in %v", allMetrics(t, r))
	}
}

// TestRequestWithGaps says so, and only where it began before what is missing.
func TestRequestWithGaps(t *testing.T) {
	src := newMemSource("a")
	p, k := exporting(t, src, ProcessorOptions{Selector: SelectAll{}})
	want := map[int]bool{}
	ended := func(n int, beginNS int64, gapped bool) {
		src.push(requestEnd(n, beginNS, beginNS+10))
		pollAll(t, p)
		want[n] = gapped
	}
	ended(1, 1, false)
	src.missed = 7
	ended(2, 1, true) // no step was read yet
	src.push(begin(1, 500), end(1, 500, 600, 0))
	ended(3, 499, true)
	ended(4, 500, false)
	src.nowNS, src.lost = 2_000_000_000, 3
	ended(5, 2_000_000_000, true)
	ended(6, 2_000_000_001, false)
	src.nowNS = 3_000_000_000
	ended(7, 2_500_000_000, false)
	got := map[int]bool{}
	for i, b := range briefRequests(k.requests) {
		got[b.Request] = k.requests[i].Gapped
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("gapped (-want +got):\n%s", d)
	}
}
