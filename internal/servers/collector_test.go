//go:build servers

package servers_test

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/examples/recordings"
	"github.com/lanetrace/lanetrace/internal/servers"
)

// recordingPath is the recording of an H200 that the demo plays.
func recordingPath(t *testing.T) string {
	return filepath.Join(servers.Root(t), "examples", "recordings", recordings.H200DecodeName)
}

// byID are spans by trace and span id. One that is there twice fails the test.
func byID(t *testing.T, spans []servers.Span) map[string]servers.Span {
	t.Helper()
	out := make(map[string]servers.Span, len(spans))
	for _, s := range spans {
		id := s.TraceID + "/" + s.SpanID
		if _, ok := out[id]; ok {
			t.Errorf("span %s of %s is there twice", id, s.Name)
		}
		out[id] = s
	}
	return out
}

// arrived waits until the Collector has written n spans, and returns them by id.
func arrived(t *testing.T, c *servers.Collector, n int) map[string]servers.Span {
	t.Helper()
	var spans []servers.Span
	servers.Poll(t, "spans at the Collector", func() error {
		var err error
		if spans, err = c.Spans(); err == nil && len(spans) < n {
			err = fmt.Errorf("%d of %d", len(spans), n)
		}
		return err
	})
	if len(spans) != n {
		t.Errorf("%d spans at the Collector, want %d", len(spans), n)
	}
	return byID(t, spans)
}

// sameSpans fails the test for the first spans in which got differs from want.
func sameSpans(t *testing.T, got, want map[string]servers.Span) {
	t.Helper()
	said := 0
	for _, id := range slices.Sorted(maps.Keys(want)) {
		g, ok := got[id]
		if diff := cmp.Diff(want[id], g); diff != "" && said < 5 {
			said++
			t.Errorf("span %s of %s (there: %v) differs from what was sent (-sent +arrived):\n%s", id, want[id].Name, ok, diff)
		}
	}
	for id, s := range got {
		if _, ok := want[id]; !ok && said < 5 {
			said++
			t.Errorf("span %s of %s arrived and was not sent", id, s.Name)
		}
	}
}

// What a replay sends arrives at a Collector field by field as the file formats
// write it, over gRPC and over HTTP, and says what the recording says.
func TestCollectorTraces(t *testing.T) {
	sent, err := servers.DecodeSpans([]byte(built.Run(t, nil, "replay", "--speed", "max", "--every", "20", "--budget", "0", "--select", "--format", "otlp-json", recordingPath(t))))
	if err != nil {
		t.Fatal(err)
	}
	want := byID(t, sent)
	if len(want) < 20_000 {
		t.Fatalf("only %d spans are selected", len(want))
	}
	asRecorded(t, want)
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			c := servers.StartCollector(t, servers.CollectorOptions{})
			to := c.OTLP
			if protocol != "grpc" {
				to = c.OTLPHTTP
			}
			built.Run(t, []string{"OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol, "OTEL_EXPORTER_OTLP_COMPRESSION=gzip"},
				"replay", "--speed", "max", "--every", "20", "--budget", "0", "--otlp-endpoint", to, recordingPath(t))
			sameSpans(t, arrived(t, c, len(want)), want)
		})
	}
}

// asRecorded compares spans with the recording, read without any exporter: every
// span of every armed step, which all are selected, has its name, its length and
// its place in the step.
func asRecorded(t *testing.T, spans map[string]servers.Span) {
	t.Helper()
	f, src := firstRun(t, recordingPath(t))
	run := f.Runs()[0].Info.RunID
	steps, bad := 0, 0
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Observers: []collector.Observer{
		collector.ObserverFunc(func(s *collector.Step) {
			if !s.Armed {
				return
			}
			steps++
			trace := collector.StepTraceID(run, s.Number)
			root, ok := spans[trace.String()+"/"+trace.RootID().String()]
			fromNS, toNS := s.Bounds()
			if !ok || root.EndUnixNS-root.StartUnixNS != uint64(toNS-fromNS) || root.ParentID != "" {
				bad++
			}
			for i := range s.Spans {
				sp := &s.Spans[i]
				got, ok := spans[trace.String()+"/"+trace.SpanID(sp.Ordinal).String()]
				if !ok || got.Name != sp.Text.Label || got.EndUnixNS-got.StartUnixNS != sp.DurationNS() ||
					int64(got.StartUnixNS-root.StartUnixNS) != sp.StartMonoNS-fromNS {
					bad++
				}
			}
		}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if steps < 100 || bad > 0 {
		t.Errorf("%d armed steps, %d spans that are missing or are not what was recorded", steps, bad)
	}
}

// What the account says was exported is what a Collector got, over an engine's
// whole life, and the metrics that were pushed are those that are served; with
// exponential histograms, too.
func TestCollectorSidecar(t *testing.T) {
	for _, form := range []string{"explicit", "exponential"} {
		t.Run(form, func(t *testing.T) { sidecarToCollector(t, form) })
	}
}

func sidecarToCollector(t *testing.T, histograms string) {
	c := servers.StartCollector(t, servers.CollectorOptions{})
	r := runEngine(t, nil, "--every", "10", "--budget", "0", "--histograms", histograms, "--otlp-endpoint", c.OTLP)
	as := r.side.Settled(1)
	_, served, err := r.side.Scrape(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.side.Stop(); err != nil { // pushes a last time
		t.Fatal(err)
	}
	sidecar := as[0].Sidecar
	left := sidecar.Received - sidecar.Exported
	for _, n := range sidecar.NotSelected {
		left -= n
	}
	if as[0].Reader.MissedBeforeAttach != 0 || sidecar.Exported == 0 || left != 0 {
		t.Errorf("with nothing wrong, all is exported or not selected: %+v", as[0])
	}
	var spans []servers.Span
	servers.Poll(t, "exported spans at the Collector", func() error {
		if spans, err = c.Spans(); err != nil {
			return err
		}
		if n := accounted(spans); n < sidecar.Exported {
			return fmt.Errorf("%d of %d", n, sidecar.Exported)
		}
		return nil
	})
	if n := accounted(spans); n != sidecar.Exported {
		t.Errorf("%d spans arrived, the account says %d", n, sidecar.Exported)
	}
	byID(t, spans)
	for _, s := range spans {
		if id := s.Resource["service.instance.id"].Text; id != as[0].RunID {
			t.Fatalf("span %s of engine %q, want %s", s.Name, id, as[0].RunID)
		}
	}
	types := pushedAsServed(t, c, served)
	if exponential := types["exponentialHistogram"] > 0; exponential != (histograms == "exponential") {
		t.Errorf("types of series: %v", types)
	}
}

// accounted is how many of spans the loss account counts: all but the host parts.
func accounted(spans []servers.Span) (n uint64) {
	for _, s := range spans {
		if s.Attrs["lanetrace.span.kind"].Text != "host" {
			n++
		}
	}
	return n
}

// pushedAsServed compares the last value of every series of an engine that a
// Collector got with what was served when nothing moved any more. It returns how
// many there are of each type.
func pushedAsServed(t *testing.T, c *servers.Collector, served servers.Series) map[string]int {
	t.Helper()
	names := make(map[string]string)
	for _, m := range collector.Metrics() {
		names[m.Name] = m.PrometheusName()
	}
	last := make(map[string]servers.Point)
	lastPush := uint64(0)
	servers.Poll(t, "metrics at the Collector", func() error {
		points, err := c.Points()
		if err == nil && len(points) == 0 {
			err = errors.New("none")
		}
		for _, p := range points {
			labels := make(map[string]string)
			for k, v := range p.Attrs {
				labels[strings.ReplaceAll(k, ".", "_")] = v.Text
			}
			if name := names[p.Metric]; name != "" {
				last[servers.SeriesKey(name, labels)] = p
			}
			lastPush = max(lastPush, p.UnixNS)
		}
		return err
	})
	compared, types := 0, make(map[string]int)
	same := func(key string, got, want float64) {
		t.Helper()
		compared++
		if !near(got, want) {
			t.Errorf("%s was pushed as %v, served as %v", key, got, want)
		}
	}
	for key, p := range last {
		// A gauge that ended with the engine is not in the last push any more.
		if ended := p.UnixNS+uint64(100*time.Millisecond) < lastPush; ended || !strings.Contains(key, "engine=") || strings.Contains(key, "_age_seconds") {
			continue
		}
		name, labels, _ := strings.Cut(key, "{")
		part := func(suffix, more string) float64 {
			t.Helper()
			k := name + suffix + "{" + labels
			if more != "" {
				// le comes after engine, lane and kernel, which are all there are.
				k = strings.TrimSuffix(k, "}") + "," + more + "}"
			}
			v, ok := served[k]
			if !ok {
				t.Errorf("%s was pushed and is not served", k)
			}
			return v
		}
		types[p.Type]++
		if p.Type != "histogram" && p.Type != "exponentialHistogram" {
			same(key, p.Value, part("", ""))
			continue
		}
		same(key, float64(p.Count), part("_count", ""))
		same(key, p.Sum, part("_sum", ""))
		for i := range p.Bounds {
			var n uint64
			for _, b := range p.Buckets[:i+1] {
				n += b
			}
			k := servers.SeriesKey("", map[string]string{"le": fmt.Sprint(p.Bounds[i])})
			same(key, float64(n), part("_bucket", strings.Trim(k, "{}")))
		}
	}
	if compared < 300 {
		t.Errorf("only %d values were pushed", compared)
	}
	return types
}
