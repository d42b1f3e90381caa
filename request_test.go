package lanetrace

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

const goodTraceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

var goodContext = TraceContext{
	TraceID: [16]byte{0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36},
	SpanID:  [8]byte{0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7}, Flags: 1,
}

func TestParseTraceparent(t *testing.T) {
	with := func(flags uint8) TraceContext {
		c := goodContext
		c.Flags = flags
		return c
	}
	for _, c := range []struct {
		s    string
		want TraceContext // zero: refused
	}{
		{goodTraceparent, goodContext},
		{strings.TrimSuffix(goodTraceparent, "01") + "00", with(0)},
		{strings.TrimSuffix(goodTraceparent, "01") + "ff", with(0xff)},
		{"01" + goodTraceparent[2:], goodContext},
		{"cc" + goodTraceparent[2:] + "-what-comes-later", goodContext},

		{"", TraceContext{}},
		{goodTraceparent[:54], TraceContext{}},
		{goodTraceparent + " ", TraceContext{}},
		{" " + goodTraceparent, TraceContext{}},
		{goodTraceparent + "-more", TraceContext{}},
		{"01" + goodTraceparent[2:] + "more", TraceContext{}},
		{"ff" + goodTraceparent[2:], TraceContext{}},
		{strings.ToUpper(goodTraceparent), TraceContext{}},
		{strings.Replace(goodTraceparent, "-", "_", 1), TraceContext{}},
		{strings.Replace(goodTraceparent, "4bf", "4bg", 1), TraceContext{}},
		{"0x" + goodTraceparent[2:], TraceContext{}},
		{"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", TraceContext{}},
		{"00-4bf92f3577b34da6a3ce929d0e0e4736-" + strings.Repeat("0", 16) + "-01", TraceContext{}},
		{strings.Repeat("-", 55), TraceContext{}},
	} {
		got, err := ParseTraceparent(c.s)
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%q (-want +got):\n%s", c.s, d)
		}
		if refused := c.want == (TraceContext{}); refused != (err != nil) || refused && (!errors.Is(err, ErrTraceparent) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q: %v", c.s, err)
		}
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = ParseTraceparent(goodTraceparent) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParseTraceparent(f *testing.F) {
	f.Add(goodTraceparent)
	f.Add("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x")
	f.Add("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	f.Add("00-00000000000000000000000000000000-0000000000000000-00")
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\n")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseTraceparent(s)
		if err != nil {
			if c != (TraceContext{}) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q: %+v, %v", s, c, err)
			}
			return
		}
		if want := fmt.Sprintf("-%x-%x-%02x", c.TraceID, c.SpanID, c.Flags); !c.Valid() || s[2:55] != want {
			t.Fatalf("%q is %q", s, want)
		}
	})
}

// links reads the ring's links and ends of requests.
func (r *rig) links() (ls []spanring.StepLink, rs []spanring.RequestEnd) {
	r.t.Helper()
	for _, e := range r.entries() {
		switch e.Words.Kind() {
		case spanring.KindTraceContext:
			l, err := e.Words.StepLink()
			if err != nil {
				r.t.Fatal(err)
			}
			ls = append(ls, l)
		case spanring.KindRequestEnd:
			q, err := e.Words.RequestEnd()
			if err != nil {
				r.t.Fatal(err)
			}
			rs = append(rs, q)
		}
	}
	return ls, rs
}

func contextOf(i int) TraceContext {
	return TraceContext{TraceID: [16]byte{1, 14: byte(i >> 8), 15: byte(i)}, SpanID: [8]byte{2, 7: byte(i)}, Flags: 1}
}

// TestLink: a step's links are written up to the limit, and its end says how many
// there were.
func TestLink(t *testing.T) {
	r := newRig(t, Config{Level: "basic"})
	unsampled := goodContext
	unsampled.Flags = 0
	var want []spanring.StepLink
	wantLinked := []uint32{}
	for i, n := range []int{0, 1, MaxLinks, MaxLinks + 72} {
		s := r.hub.StepBegin()
		for j := range n {
			c := contextOf(1000*i + j)
			s.Link(c)
			if j < MaxLinks {
				want = append(want, spanring.StepLink{Step: s.ID(), TraceContext: c})
			}
		}
		s.Link(TraceContext{})
		s.Link(TraceContext{TraceID: [16]byte{1}, Flags: 1})
		s.Link(unsampled)
		s.End()
		wantLinked = append(wantLinked, uint32(n))
	}
	got, _ := r.links()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("links (-want +got):\n%s", d)
	}
	var linked []uint32
	for _, e := range r.stepEnds() {
		linked = append(linked, e.Linked)
	}
	if d := cmp.Diff(wantLinked, linked); d != "" {
		t.Errorf("linked (-want +got):\n%s", d)
	}
	if n := r.hub.Ring().Counter(spanring.CtrMisuse); n != 0 {
		t.Errorf("%d misused", n)
	}
}

// TestLinkAfterTheEnd is misuse: the step's end has said how many links it has.
func TestLinkAfterTheEnd(t *testing.T) {
	r := newRig(t, Config{Level: "basic"})
	s := r.hub.StepBegin()
	s.End()
	s.Link(goodContext)
	for range openSteps { // its place belongs to another
		r.hub.StepBegin().End()
	}
	s.Link(goodContext)
	if ls, _ := r.links(); len(ls) != 0 || r.hub.Ring().Counter(spanring.CtrMisuse) != 2 {
		t.Errorf("%d links, %s", len(ls), counterText(r.hub.Ring().Counters()))
	}
	Step{}.Link(goodContext)
}

func TestRequestEnd(t *testing.T) {
	r := newRig(t, Config{Level: "basic"})
	before := spanring.MonoNS()
	unsampled := goodContext
	unsampled.Flags = 0
	for _, q := range []Request{
		{},
		{Context: TraceContext{SpanID: [8]byte{1}}},
		{Context: goodContext, BeginMonoNS: 10, EndMonoNS: 30, PromptTokens: 100, OutputTokens: 20},
		{Context: unsampled, BeginMonoNS: 10, EndMonoNS: 10, PromptTokens: -1, OutputTokens: 1 << 40},
		{Context: goodContext, BeginMonoNS: 40},
		{Context: goodContext, BeginMonoNS: 1 << 62, EndMonoNS: 5},
		{Context: goodContext, EndMonoNS: 7},
		{Context: goodContext},
	} {
		r.hub.RequestEnd(q)
	}
	_, got := r.links()
	if len(got) != 6 {
		t.Fatalf("%d ends: %+v", len(got), got)
	}
	now := func(i int) int64 {
		if n := got[i].EndNS; n >= before && n <= spanring.MonoNS() {
			return n
		}
		t.Errorf("end %d is at %d", i, got[i].EndNS)
		return -1
	}
	want := []spanring.RequestEnd{
		{TraceContext: goodContext, BeginNS: 10, EndNS: 30, PromptTokens: 100, OutputTokens: 20},
		{TraceContext: unsampled, BeginNS: 10, EndNS: 10, OutputTokens: 1<<32 - 1},
		{TraceContext: goodContext, BeginNS: 40, EndNS: now(2)},
		{TraceContext: goodContext, BeginNS: now(3), EndNS: now(3)},
		{TraceContext: goodContext, BeginNS: 7, EndNS: 7},
		{TraceContext: goodContext, BeginNS: now(5), EndNS: now(5)},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	c := r.hub.Ring().Counters()
	if c[spanring.CtrRequests] != 6 || c[spanring.CtrBegun] != 6 || c[spanring.CtrLanded] != 6 || c.InFlight() != 0 {
		t.Errorf("counters %s", counterText(c))
	}
}

// TestRequestsAtOff: nothing is written.
func TestRequestsAtOff(t *testing.T) {
	r := newRig(t, Config{Level: "off"})
	s := r.hub.StepBegin()
	s.Link(goodContext)
	r.hub.RequestEnd(Request{Context: goodContext})
	(*Hub)(nil).RequestEnd(Request{Context: goodContext})
	if n := r.hub.Ring().Published(); n != 0 {
		t.Errorf("%d entries at off", n)
	}
}

func TestRequestsDoNotAllocate(t *testing.T) {
	for _, level := range []string{"off", "basic"} {
		r := newRig(t, Config{Level: level})
		if n := testing.AllocsPerRun(200, func() {
			s := r.hub.StepBegin()
			s.Link(goodContext)
			s.End()
			r.hub.RequestEnd(Request{Context: goodContext, BeginMonoNS: 1, PromptTokens: 5})
		}); n != 0 {
			t.Errorf("%v allocations at %s", n, level)
		}
	}
}

// TestModelAndRank reach the ring.
func TestModelAndRank(t *testing.T) {
	rank := spanring.Rank{Data: 1, Tensor: 2, Pipeline: -1, Expert: 0}
	r := newRig(t, Config{Model: "org/model", Rank: &rank})
	rd, err := spanring.NewHeapReader(r.hub.Ring(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	i, err := rd.Info()
	if err != nil || i.Model != "org/model" || i.Rank != rank {
		t.Errorf("%+v, %v", i, err)
	}
	r.hub.SetModel("org/other")
	if i, err := rd.Info(); err != nil || i.Model != "org/other" {
		t.Errorf("%+v, %v", i, err)
	}
	(*Hub)(nil).SetModel("x")
}
