package otlp

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	colmetricpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricpb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

func newMetricServer(t *testing.T) (s *metricServer, addr string) {
	t.Helper()
	s = &metricServer{got: make(chan *colmetricpb.ExportMetricsServiceRequest, 100)}
	return s, serveMetrics(t, s)
}

// serveMetrics serves s over gRPC and returns its endpoint.
func serveMetrics(t *testing.T, s colmetricpb.MetricsServiceServer) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	colmetricpb.RegisterMetricsServiceServer(g, s)
	served := make(chan struct{})
	go func() { defer close(served); g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-served })
	return "http://" + l.Addr().String()
}

// sidecar is the metrics' part of one, with a push on demand.
type sidecar struct {
	t    *testing.T
	ins  *collector.Instruments
	r    *MetricReader
	mp   *sdkmetric.MeterProvider
	from *metricServer
}

func newSidecar(t *testing.T, s *metricServer, addr, host string, o collector.InstrumentOptions) *sidecar {
	t.Helper()
	ins := collector.NewInstruments(o)
	r, err := NewMetricReader(MetricOptions{
		Endpoint: addr, Every: time.Hour, Producers: []sdkmetric.Producer{ins.Producer()}, Engines: ins.Engines, HostName: host,
	})
	if err != nil {
		t.Fatal(err)
	}
	mp, m, err := collector.NewMeterProvider(collector.MeterOptions{Dir: "/rings", HostName: host, Readers: []sdkmetric.Reader{r}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mp.Shutdown(context.Background()) })
	if err := ins.Register(m); err != nil {
		t.Fatal(err)
	}
	return &sidecar{t, ins, r, mp, s}
}

// push sends now and returns what arrived, by service.instance.id.
func (s *sidecar) push() map[string]*metricpb.ResourceMetrics {
	s.t.Helper()
	if err := s.mp.ForceFlush(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	out := map[string]*metricpb.ResourceMetrics{}
	for len(s.from.got) > 0 {
		for _, rm := range (<-s.from.got).ResourceMetrics {
			id := attr(rm.Resource.Attributes, "service.instance.id").GetStringValue()
			if out[id] != nil {
				s.t.Errorf("%s came twice", id)
			}
			out[id] = rm
		}
	}
	return out
}

func attr(as []*commonpb.KeyValue, key string) *commonpb.AnyValue {
	for _, a := range as {
		if a.Key == key {
			return a.Value
		}
	}
	return nil
}

func metricOf(t *testing.T, rm *metricpb.ResourceMetrics, name string) *metricpb.Metric {
	t.Helper()
	for _, sm := range rm.GetScopeMetrics() {
		for _, m := range sm.Metrics {
			if m.Name == name {
				return m
			}
		}
	}
	t.Fatalf("no %s", name)
	return nil
}

func (s *sidecar) engine(info spanring.Info, label string) (*source, *collector.Processor) {
	s.t.Helper()
	src := &source{info: info, names: map[spanring.NameID]spanring.Name{2: {Kind: spanring.NameLane, Text: "decode"}}}
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Instruments: s.ins, Label: label})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { p.Close() })
	return src, p
}

// TestEachEngineHasItsResource: over OTLP an engine's metrics have the resource of
// its traces, and the sidecar's own have the sidecar's; values and start times are
// the engines' own.
func TestEachEngineHasItsResource(t *testing.T) {
	srv, addr := newMetricServer(t)
	s := newSidecar(t, srv, addr, "h1", collector.InstrumentOptions{})
	a, b := testInfo, testInfo
	a.CreatedUnixNS = 1_700_000_000_000_000_000
	b.RunID[0], b.Service, b.CreatedUnixNS = 0xcd, "embed", 1_600_000_000_000_000_000
	srcA, pA := s.engine(a, "chat-dp2")
	srcB, pB := s.engine(b, "embed-dp2")
	srcA.push(simpleStep(1, 2)...)
	srcB.push(simpleStep(1, 3)...)
	srcB.push(simpleStep(2, 3)...)
	poll(t, pA)
	poll(t, pB)
	got := s.push()

	ids := []string{"h1:/rings", a.RunID.String(), b.RunID.String()}
	for id := range got {
		if !slices.Contains(ids, id) {
			t.Errorf("resource of %q", id)
		}
	}
	for i, info := range []spanring.Info{a, b} {
		label := []string{"chat-dp2", "embed-dp2"}[i]
		rm := got[info.RunID.String()]
		if rm == nil {
			t.Fatalf("no resource of %s", label)
		}
		// The traces' resource, in any order.
		var traces tracepb.ResourceSpans
		if err := proto.Unmarshal(appendResource(nil, label, "h1", &info), &traces); err != nil {
			t.Fatal(err)
		}
		byKey := protocmp.SortRepeated(func(x, y *commonpb.KeyValue) bool { return x.Key < y.Key })
		if d := cmp.Diff(traces.Resource, rm.Resource, protocmp.Transform(), byKey); d != "" {
			t.Errorf("resource of %s (-traces +metrics):\n%s", label, d)
		}
		for _, sm := range rm.ScopeMetrics {
			if sm.Scope.GetName() != collector.Scope {
				t.Errorf("scope %q", sm.Scope.GetName())
			}
		}
		steps, lanes := []int64{1, 2}[i], []uint64{2, 6}[i]
		for _, p := range metricOf(t, rm, "lanetrace.steps").GetSum().DataPoints {
			if attr(p.Attributes, "engine").GetStringValue() != label {
				t.Errorf("a point of %v with %s", p.Attributes, label)
			}
			if attr(p.Attributes, "armed").GetStringValue() == "false" && p.GetAsInt() != steps {
				t.Errorf("%s: %d steps, want %d", label, p.GetAsInt(), steps)
			}
		}
		if n := metricOf(t, rm, "lanetrace.gpu.lane.duration").GetHistogram().DataPoints[0].Count; n != lanes {
			t.Errorf("%s: %d lanes, want %d", label, n, lanes)
		}
		// What the producer counts began with the run, what the sidecar counts when it
		// attached.
		begun := metricOf(t, rm, "lanetrace.spans.begun").GetSum().DataPoints[0]
		if begun.StartTimeUnixNano != uint64(info.CreatedUnixNS) {
			t.Errorf("%s: begun since %d, want %d", label, begun.StartTimeUnixNano, info.CreatedUnixNS)
		}
		received := metricOf(t, rm, "lanetrace.sidecar.spans.received").GetSum().DataPoints[0]
		if at := s.ins.Engines()[i].AttachedAt().UnixNano(); received.StartTimeUnixNano != uint64(at) {
			t.Errorf("%s: received since %d, want %d", label, received.StartTimeUnixNano, at)
		}
	}
	own := got["h1:/rings"]
	if n := metricOf(t, own, "lanetrace.engines.live").GetGauge().DataPoints[0].GetAsInt(); n != 2 {
		t.Errorf("%d engines live", n)
	}
	for _, sm := range own.ScopeMetrics {
		for _, m := range sm.Metrics {
			if strings.Contains(m.String(), `"engine"`) {
				t.Errorf("%s of an engine is among the sidecar's own", m.Name)
			}
		}
	}
}

// TestNothingIsLostBySplitting: dealt out, a collection has the points that it had.
func TestNothingIsLostBySplitting(t *testing.T) {
	for _, form := range []collector.HistogramForm{collector.HistogramsExplicit, collector.HistogramsExponential} {
		ins := collector.NewInstruments(collector.InstrumentOptions{Histograms: form})
		r := sdkmetric.NewManualReader(sdkmetric.WithProducer(ins.Producer()))
		mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(r))
		defer mp.Shutdown(context.Background())
		if err := ins.Register(mp.Meter(collector.Scope)); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			info := testInfo
			info.RunID[0] = byte(i)
			p, err := collector.NewProcessor(&source{info: info}, collector.ProcessorOptions{Instruments: ins, Label: string(rune('a' + i))})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
		}
		var rm metricdata.ResourceMetrics
		if err := r.Collect(t.Context(), &rm); err != nil {
			t.Fatal(err)
		}
		before := pointsByName(&rm)
		s := splitter{engines: ins.Engines, host: "h"}
		rms, err := s.split(&rm)
		if err != nil {
			t.Fatal(err)
		}
		if len(rms) != 4 {
			t.Errorf("%d resources, want 3 engines and the sidecar", len(rms))
		}
		after := map[string]int{}
		for _, x := range rms {
			for n, c := range pointsByName(x) {
				after[n] += c
			}
		}
		if d := cmp.Diff(before, after); d != "" {
			t.Errorf("%v:\n%s", form, d)
		}
	}
}

func pointsByName(rm *metricdata.ResourceMetrics) map[string]int {
	out := map[string]int{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				out[m.Name] += len(d.DataPoints)
			case metricdata.Sum[float64]:
				out[m.Name] += len(d.DataPoints)
			case metricdata.Gauge[int64]:
				out[m.Name] += len(d.DataPoints)
			case metricdata.Gauge[float64]:
				out[m.Name] += len(d.DataPoints)
			case metricdata.Histogram[float64]:
				out[m.Name] += len(d.DataPoints)
			case metricdata.ExponentialHistogram[float64]:
				out[m.Name] += len(d.DataPoints)
			default:
				out["?"]++
			}
		}
	}
	return out
}

// TestRestartIsNoReset: an engine that starts anew under its label is another
// instance with another start, and a restarted sidecar shows the engine's counters
// with the start they had; two sidecars are two instances.
func TestRestartIsNoReset(t *testing.T) {
	srv, addr := newMetricServer(t)
	s := newSidecar(t, srv, addr, "h1", collector.InstrumentOptions{})
	first, second := testInfo, testInfo
	first.CreatedUnixNS = 1_700_000_000_000_000_000
	second.RunID[0], second.CreatedUnixNS = 0xcd, 1_700_000_100_000_000_000
	_, p := s.engine(first, "chat")
	start := func(rm *metricpb.ResourceMetrics) uint64 {
		return metricOf(t, rm, "lanetrace.spans.landed").GetSum().DataPoints[0].StartTimeUnixNano
	}
	if got := start(s.push()[first.RunID.String()]); got != uint64(first.CreatedUnixNS) {
		t.Errorf("start %d", got)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p.Forget()
	s.engine(second, "chat")
	// What was collected at the moment of the change may be the first run's.
	if got := s.push(); got[first.RunID.String()] != nil || got[second.RunID.String()] != nil {
		t.Errorf("a push at the change has %d resources", len(got))
	}
	got := s.push()
	if got[first.RunID.String()] != nil {
		t.Error("an engine's series do not end with it")
	}
	if at := start(got[second.RunID.String()]); at != uint64(second.CreatedUnixNS) {
		t.Errorf("start %d", at)
	}

	again := newSidecar(t, srv, addr, "h1", collector.InstrumentOptions{})
	again.engine(second, "chat")
	if at := start(again.push()[second.RunID.String()]); at != uint64(second.CreatedUnixNS) {
		t.Errorf("after a restart of the sidecar the start is %d", at)
	}
	two := newSidecar(t, srv, addr, "h2", collector.InstrumentOptions{})
	if got := two.push(); got["h2:/rings"] == nil || attr(got["h2:/rings"].Resource.Attributes, "host.name").GetStringValue() != "h2" {
		t.Error("the second host's sidecar is not told apart")
	}
}

// TestMetricsStayCumulative: a preference for differences is answered with a
// warning, not with a mixture.
func TestMetricsStayCumulative(t *testing.T) {
	t.Setenv(temporalityVariable, "delta")
	srv, addr := newMetricServer(t)
	var log lockedBuffer
	ins := collector.NewInstruments(collector.InstrumentOptions{})
	r, err := NewMetricReader(MetricOptions{
		Endpoint: addr, Every: time.Hour, Producers: []sdkmetric.Producer{ins.Producer()}, Engines: ins.Engines,
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(r))
	defer mp.Shutdown(context.Background())
	if err := ins.Register(mp.Meter(collector.Scope)); err != nil {
		t.Fatal(err)
	}
	s := &sidecar{t, ins, r, mp, srv}
	s.engine(testInfo, "chat")
	seen := 0
	for _, rm := range s.push() {
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				if sum := m.GetSum(); sum != nil {
					seen++
					if sum.AggregationTemporality != metricpb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE {
						t.Errorf("%s is %v", m.Name, sum.AggregationTemporality)
					}
				}
			}
		}
	}
	if seen < 20 || !strings.Contains(log.String(), "stay cumulative") {
		t.Errorf("%d sums, log %s", seen, log.String())
	}
}

func TestPrefersExponential(t *testing.T) {
	for v, want := range map[string]bool{"": false, "explicit_bucket_histogram": false, "base2_exponential_bucket_histogram": true, "BASE2_EXPONENTIAL_BUCKET_HISTOGRAM": true} {
		if got := PrefersExponential(func(string) string { return v }); got != want {
			t.Errorf("%q: %v", v, got)
		}
	}
}

// taker takes every step at once.
type taker struct{}

func (taker) Export(s *collector.Step, _ collector.ExportReason) {
	collector.NoteTrace(s).Took()
	s.Engine.Ledger().Export(s.Units())
}

// TestExemplarsOverOTLP: exemplars arrive with their ids and values, in both forms.
func TestExemplarsOverOTLP(t *testing.T) {
	for _, form := range []collector.HistogramForm{collector.HistogramsExplicit, collector.HistogramsExponential} {
		srv, addr := newMetricServer(t)
		s := newSidecar(t, srv, addr, "h", collector.InstrumentOptions{Histograms: form})
		src := &today{source{info: testInfo, names: map[spanring.NameID]spanring.Name{2: {Kind: spanring.NameLane, Text: "decode"}}}}
		p, err := collector.NewProcessor(src, collector.ProcessorOptions{Instruments: s.ins, Exporter: taker{}, Selector: collector.SelectAll{}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		src.push(simpleStep(1, 1)...)
		poll(t, p)
		rm := s.push()[testInfo.RunID.String()]
		for name, want := range map[string]struct {
			span  collector.SpanID
			value float64
		}{
			"lanetrace.step.duration":     {collector.StepTraceID(testRun, 1).RootID(), 50e-6},
			"lanetrace.gpu.lane.duration": {collector.StepTraceID(testRun, 1).SpanID(1), 900e-9},
		} {
			m := metricOf(t, rm, name)
			var es []*metricpb.Exemplar
			for _, d := range m.GetHistogram().GetDataPoints() {
				es = append(es, d.Exemplars...)
			}
			for _, d := range m.GetExponentialHistogram().GetDataPoints() {
				es = append(es, d.Exemplars...)
			}
			if len(es) != 1 {
				t.Errorf("%v: %s has %d exemplars", form, name, len(es))
				continue
			}
			e := es[0]
			if collector.TraceID(e.TraceId) != collector.StepTraceID(testRun, 1) || collector.SpanID(e.SpanId) != want.span || e.GetAsDouble() != want.value {
				t.Errorf("%v: %s has %v", form, name, e)
			}
			if age := time.Since(time.Unix(0, int64(e.TimeUnixNano))); age < -time.Minute || age > time.Minute {
				t.Errorf("%v: %s is of %v ago", form, name, age)
			}
		}
	}
}

// TestExponentialOverOTLP: the exponential buckets arrive as such.
func TestExponentialOverOTLP(t *testing.T) {
	srv, addr := newMetricServer(t)
	s := newSidecar(t, srv, addr, "h", collector.InstrumentOptions{Histograms: collector.HistogramsExponential})
	src, p := s.engine(testInfo, "chat")
	src.push(simpleStep(1, 2)...)
	poll(t, p)
	m := metricOf(t, s.push()[testInfo.RunID.String()], "lanetrace.gpu.lane.duration")
	d := m.GetExponentialHistogram().GetDataPoints()
	// 900 ns lie between 2^(-161/8) and 2^(-160/8) s.
	if len(d) != 1 || d[0].Scale != 3 || d[0].Count != 2 || d[0].Positive.Offset != -161 || !slices.Equal(d[0].Positive.BucketCounts, []uint64{2}) {
		t.Errorf("points %v", d)
	}
}
