package spanring

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var fullContext = TraceContext{
	TraceID: [16]byte{0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36},
	SpanID:  [8]byte{0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7}, Flags: 0xff,
}

func TestTraceContext(t *testing.T) {
	for _, c := range []struct {
		name           string
		c              TraceContext
		valid, sampled bool
	}{
		{"zero", TraceContext{}, false, false},
		{"no trace", TraceContext{SpanID: [8]byte{1}, Flags: 1}, false, true},
		{"no span", TraceContext{TraceID: [16]byte{1}, Flags: 2}, false, false},
		{"least", TraceContext{TraceID: [16]byte{15: 1}, SpanID: [8]byte{7: 1}}, true, false},
		{"full", fullContext, true, true},
	} {
		if v, s := c.c.Valid(), c.c.Sampled(); v != c.valid || s != c.sampled {
			t.Errorf("%s: valid %v, sampled %v", c.name, v, s)
		}
	}
}

func TestStepLink(t *testing.T) {
	for _, c := range []struct {
		name string
		l    StepLink
		ok   bool
	}{
		{"least", StepLink{1, TraceContext{TraceID: [16]byte{1}, SpanID: [8]byte{7: 1}}}, true},
		{"most", StepLink{math.MaxUint64, fullContext}, true},
		{"no step", StepLink{0, fullContext}, false},
		{"no context", StepLink{Step: 1}, false},
		{"no trace", StepLink{1, TraceContext{SpanID: [8]byte{1}}}, false},
		{"no span", StepLink{1, TraceContext{TraceID: [16]byte{1}}}, false},
	} {
		w := c.l.Words()
		got, err := w.StepLink()
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %v", c.name, err)
		}
		if d := cmp.Diff(c.l, got); d != "" {
			t.Errorf("%s (-written +read):\n%s", c.name, d)
		}
		if _, err := w.RequestEnd(); !errors.Is(err, ErrEntry) {
			t.Errorf("%s as the end of a request: %v", c.name, err)
		}
	}
	l := StepLink{7, fullContext}
	want := Words{12 | 0xff<<8, 7, 0xa64db377352ff94b, 0x36470e0e9d92cea3, 0xb702a90baa67f000}
	if d := cmp.Diff(want, l.Words()); d != "" {
		t.Errorf("words (-want +got):\n%s", d)
	}
}

func TestRequestEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		r    RequestEnd
		ok   bool
	}{
		{"least", RequestEnd{TraceContext: fullContext}, true},
		{"most", RequestEnd{fullContext, math.MaxInt64, math.MaxInt64, math.MaxUint32, math.MaxUint32}, true},
		{"some", RequestEnd{fullContext, 5, 9, 100, 20}, true},
		{"before boot", RequestEnd{fullContext, -1, 9, 0, 0}, false},
		{"ends before it begins", RequestEnd{fullContext, 9, 8, 0, 0}, false},
		{"no context", RequestEnd{BeginNS: 1, EndNS: 2}, false},
	} {
		w := c.r.Words()
		got, err := w.RequestEnd()
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %v", c.name, err)
		}
		if d := cmp.Diff(c.r, got); d != "" {
			t.Errorf("%s (-written +read):\n%s", c.name, d)
		}
		if _, err := w.StepLink(); !errors.Is(err, ErrEntry) {
			t.Errorf("%s as a step's context: %v", c.name, err)
		}
	}
}

// TestServedModel: the served model is a text of the table of names, which a reader
// finds from the header.
func TestServedModel(t *testing.T) {
	long := strings.Repeat("m", MaxNameBytes+1)
	for _, c := range []struct{ model, want string }{
		{"", ""}, {"org/model-70b", "org/model-70b"}, {long, cutName(long)}, {"bad \xff", "bad \ufffd"},
	} {
		w, err := NewHeap(Options{Geometry: smallGeometry, Info: Info{Model: c.model}})
		if err != nil {
			t.Fatal(err)
		}
		i, err := heapReader(t, w, ReaderOptions{}).Info()
		if err != nil || i.Model != c.want {
			t.Errorf("%.20q came back as %.20q, %v", c.model, i.Model, err)
		}
		r := heapReader(t, w, ReaderOptions{})
		w.SetModel("another")
		if i, err := r.Info(); err != nil || i.Model != "another" {
			t.Errorf("after a change: %q, %v", i.Model, err)
		}
		w.SetModel("")
		if i, err := r.Info(); err != nil || i.Model != "" {
			t.Errorf("after it was taken back: %q, %v", i.Model, err)
		}
		w.m.store(offModel, 1<<32-1)
		if i, err := heapReader(t, w, ReaderOptions{}).Info(); err != nil || i.Model != "" {
			t.Errorf("an id that cannot be is model %q, %v", i.Model, err)
		}
	}
}
