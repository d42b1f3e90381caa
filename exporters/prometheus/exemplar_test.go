package prometheus

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// taker takes every odd step at once, as a server would, and no other.
type taker struct{}

func (taker) Export(s *collector.Step, _ collector.ExportReason) {
	n := collector.NoteTrace(s)
	n.Part()
	if s.Number%2 == 1 {
		n.Took()
	}
	n.Took()
	s.Engine.Ledger().Export(s.Units())
}

// TestExemplars: OpenMetrics shows, on the bucket of its value, the trace of a step
// that was taken; protobuf shows it on classic and native buckets.
func TestExemplars(t *testing.T) {
	ins, h := exponentialSidecar(t)
	w, p := engine(t, ins, collector.ProcessorOptions{Label: "e", Exporter: taker{}, Selector: collector.SelectAll{}}, spanring.Info{})
	lane := w.Name(spanring.NameLane, "decode")
	step(w, 1, false, lane, 0, 1_000_000)
	step(w, 2, false, lane, 0, 5_000_000)      // not taken
	step(w, 3, false, lane, 0, 20_000_000_000) // over the last bound
	poll(t, p)
	trace := func(n uint64) collector.TraceID { return collector.StepTraceID(p.Engine().RunID(), n) }

	res := get(t, h, "application/openmetrics-text;version=1.0.0")
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{
		fmt.Sprintf(`lanetrace_gpu_lane_duration_seconds_bucket{engine="e",lane="decode",le="0.001"} 1 # {trace_id="%s",span_id="%s"} 0.001 `, trace(1), trace(1).SpanID(1)),
		fmt.Sprintf(`lanetrace_gpu_lane_duration_seconds_bucket{engine="e",lane="decode",le="+Inf"} 3 # {trace_id="%s",span_id="%s"} 20.0 `, trace(3), trace(3).SpanID(1)),
		fmt.Sprintf(`lanetrace_step_duration_seconds_bucket{engine="e",le="0.001"} 1 # {trace_id="%s",span_id="%s"} 0.001 `, trace(1), trace(1).RootID()),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, trace(2).String()) {
		t.Error("a trace that nobody took is an exemplar")
	}

	hist := scrapeProto(t, h)["lanetrace_gpu_lane_duration_seconds"].Metric[0].Histogram
	if n := len(hist.Exemplars); n != 2 || hist.Exemplars[0].GetTimestamp().AsTime().After(hist.Exemplars[1].GetTimestamp().AsTime()) {
		t.Errorf("%d exemplars on the native histogram: %v", n, hist.Exemplars)
	}
	classic := 0
	for _, b := range hist.Bucket {
		if b.Exemplar != nil {
			classic++
		}
	}
	if classic != 2 {
		t.Errorf("%d exemplars on classic buckets", classic)
	}
}
