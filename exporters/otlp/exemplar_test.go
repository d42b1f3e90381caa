package otlp

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// today is a source whose wall clock is this machine's: exemplars are of the last
// hour.
type today struct{ source }

func (s *today) WallOffsetNS() int64 { return time.Now().UnixNano() - 1e9 }

// exemplarsOf are the trace and span ids on each histogram, in order.
func exemplarsOf(t *testing.T, ins *collector.Instruments) map[string][]string {
	t.Helper()
	sms, err := ins.Producer().Produce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, m := range sms[0].Metrics {
		h, ok := m.Data.(metricdata.Histogram[float64])
		if !ok {
			continue
		}
		for _, p := range h.DataPoints {
			for _, e := range p.Exemplars {
				out[m.Name] = append(out[m.Name], collector.TraceID(e.TraceID).String()+" "+collector.SpanID(e.SpanID).String())
			}
		}
		slices.Sort(out[m.Name])
	}
	return out
}

// TestExemplarsNameWhatWasTaken: a trace becomes an exemplar once a server took all
// of it; one that was rejected, refused or dropped never does.
func TestExemplarsNameWhatWasTaken(t *testing.T) {
	partial := &coltracepb.ExportTraceServiceResponse{PartialSuccess: &coltracepb.ExportTracePartialSuccess{RejectedSpans: 1}}
	trace := collector.StepTraceID(testRun, 1)
	taken := map[string][]string{
		"lanetrace.step.duration":     {trace.String() + " " + trace.RootID().String()},
		"lanetrace.gpu.lane.duration": {trace.String() + " " + trace.SpanID(2).String()},
	}
	for name, tt := range map[string]struct {
		answer func(n int) (*coltracepb.ExportTraceServiceResponse, error)
		tries  int
		queue  int
		want   map[string][]string
	}{
		"taken":    {tries: 1, want: taken},
		"rejected": {tries: 1, answer: func(int) (*coltracepb.ExportTraceServiceResponse, error) { return partial, nil }},
		"refused": {tries: 1, answer: func(int) (*coltracepb.ExportTraceServiceResponse, error) {
			return nil, status.Error(codes.InvalidArgument, "no")
		}},
		"taken at the second try": {tries: 2, want: taken, answer: func(n int) (*coltracepb.ExportTraceServiceResponse, error) {
			if n == 1 {
				return nil, status.Error(codes.Unavailable, "later")
			}
			return nil, nil
		}},
		"dropped": {queue: 10},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.answer = tt.answer
			x := newExporter(t, Options{Endpoint: s.addr, FlushEvery: time.Millisecond, MinBackoff: time.Millisecond, QueueBytes: tt.queue})
			ins := collector.NewInstruments(collector.InstrumentOptions{})
			src := &today{source{info: testInfo, names: map[spanring.NameID]spanring.Name{2: {Kind: spanring.NameLane, Text: "decode"}}}}
			p, err := collector.NewProcessor(src, collector.ProcessorOptions{Exporter: x, Selector: collector.SelectAll{}, Instruments: ins})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			// Two lanes of one length: the later one stays.
			src.push(simpleStep(1, 2)...)
			poll(t, p)
			s.wait(t, tt.tries)
			if err := shutdown(t, x); err != nil {
				t.Fatal(err)
			}
			got := exemplarsOf(t, ins)
			want := tt.want
			if want == nil {
				want = map[string][]string{}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestExemplarsWantTheWholeTrace: a step of which one chunk was dropped is none.
func TestExemplarsWantTheWholeTrace(t *testing.T) {
	s := newServer(t)
	ins := collector.NewInstruments(collector.InstrumentOptions{})
	src := &today{source{info: testInfo}}
	// Requests of 4 KiB cut a step of 200 lanes into many chunks, of which the queue
	// holds a few.
	x := newExporter(t, Options{Endpoint: s.addr, MaxRequestBytes: 4 << 10, QueueBytes: 16 << 10, FlushEvery: time.Hour, FlushBytes: 1 << 30})
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Exporter: x, Selector: collector.SelectAll{}, Instruments: ins})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	src.push(simpleStep(1, 200)...)
	poll(t, p)
	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	c := p.Engine().Ledger().Counts()
	if c.Exported == 0 || c.Dropped[collector.DropQueueFull] == 0 {
		t.Fatalf("exported %d, dropped %v: both were to be", c.Exported, c.Dropped)
	}
	if got := exemplarsOf(t, ins); len(got) > 0 {
		t.Errorf("exemplars of a trace that is not whole: %v", got)
	}
}
