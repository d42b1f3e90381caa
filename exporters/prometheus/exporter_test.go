package prometheus

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve makes a Prometheus exporter over fresh instruments, as the sidecar does.
func serve(t *testing.T, export func() collector.ExportStats) (*collector.Instruments, http.Handler) {
	t.Helper()
	return serveWith(t, collector.InstrumentOptions{TopKernels: 5, Version: "1.2.3"}, export)
}

func serveWith(t testing.TB, o collector.InstrumentOptions, export func() collector.ExportStats) (*collector.Instruments, http.Handler) {
	t.Helper()
	ins := collector.NewInstruments(o)
	p, err := New(Options{Producers: []sdkmetric.Producer{ins.AllForms()}})
	if err != nil {
		t.Fatal(err)
	}
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(p.Reader()))
	t.Cleanup(func() { mp.Shutdown(context.Background()) })
	m := mp.Meter(collector.Scope)
	if err := ins.Register(m); err != nil {
		t.Fatal(err)
	}
	if export != nil {
		if err := collector.RegisterExport(m, export); err != nil {
			t.Fatal(err)
		}
		if err := collector.RegisterKeep(m, func() collector.KeepStats { return collector.KeepStats{} }); err != nil {
			t.Fatal(err)
		}
		if err := collector.RegisterDevices(m, func() []collector.DeviceStats { return []collector.DeviceStats{reported} }); err != nil {
			t.Fatal(err)
		}
		if err := collector.RegisterMetricExport(m, func() (n [2]uint64) { return n }); err != nil {
			t.Fatal(err)
		}
	}
	return ins, p.Handler()
}

// reported is a device that has just begun to be read, and reports everything.
var reported = collector.DeviceStats{
	ID: "GPU-5e1f0000-1234-5678-9abc-def012345678", Name: "NVIDIA H200",
	DeviceReading: collector.DeviceReading{
		PowerMilliwatts: collector.Some(uint32(650_500)), SMClockMHz: collector.Some(uint32(1980)), MemoryClockMHz: collector.Some(uint32(3201)),
		TemperatureC: collector.Some(int32(61)), MemoryUsedBytes: collector.Some(uint64(90)), MemoryLimitBytes: collector.Some(uint64(150)),
		BusyPercent: collector.Some(uint32(97)), MemoryBusyPercent: collector.Some(uint32(0)),
	},
	DeviceHealth: collector.DeviceHealth{
		ECCCorrected: collector.Some(uint64(0)), ECCUncorrected: collector.Some(uint64(0)),
		RemappedCorrected: collector.Some(uint64(2)), RemappedUncorrected: collector.Some(uint64(1)),
		RemapPending: collector.Some(true), RemapFailed: collector.Some(false),
		PCIeReceive: collector.Some(3e4), PCIeTransmit: collector.Some(4e4), NVLinkReceive: collector.Some(5e9), NVLinkTransmit: collector.Some(6e9),
	},
	DeviceEnergy: collector.DeviceEnergy{
		Joules: collector.Some(0.), LivePerGenerated: collector.Some(12.5), LivePerToken: collector.Some(5.),
		PerGenerated: collector.Some(13.), PerToken: collector.Some(6.), PerStepEstimate: collector.Some(50.),
	},
	HeldDownNS: collector.Some([collector.NumHeldDownReasons]uint64{}),
}

func get(t testing.TB, h http.Handler, accept string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Result()
}

// scrape reads the text format with Prometheus's own parser.
func scrape(t testing.TB, h http.Handler) map[string]*dto.MetricFamily {
	t.Helper()
	res := get(t, h, "text/plain")
	p := expfmt.NewTextParser(model.LegacyValidation)
	fs, err := p.TextToMetricFamilies(res.Body)
	if err != nil {
		t.Fatalf("what is served does not parse: %v", err)
	}
	return fs
}

func labelsOf(m *dto.Metric) map[string]string {
	l := map[string]string{}
	for _, p := range m.Label {
		l[p.GetName()] = p.GetValue()
	}
	return l
}

// value is the counter or gauge with these labels.
func value(t *testing.T, fs map[string]*dto.MetricFamily, name string, labels map[string]string) float64 {
	t.Helper()
	f := fs[name]
	if f == nil {
		t.Fatalf("no %s", name)
	}
	for _, m := range f.Metric {
		if maps.Equal(labelsOf(m), labels) {
			switch {
			case m.Counter != nil:
				return m.Counter.GetValue()
			case m.Gauge != nil:
				return m.Gauge.GetValue()
			case m.Histogram != nil:
				return float64(m.Histogram.GetSampleCount())
			}
		}
	}
	t.Fatalf("no %s%v among %v", name, labels, f.Metric)
	return 0
}

// engine makes a heap ring with a processor that reads it.
func engine(t testing.TB, ins *collector.Instruments, o collector.ProcessorOptions, info spanring.Info) (*spanring.Writer, *collector.Processor) {
	t.Helper()
	w, err := spanring.NewHeap(spanring.Options{
		Geometry: spanring.Geometry{LogEntries: 65536, Slots: 16, NameBytes: 4 << 20, Allocs: 16}, Info: info,
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Instruments = ins
	p, err := collector.NewProcessor(collector.NewRingSource(r), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return w, p
}

func poll(t testing.TB, p *collector.Processor) {
	t.Helper()
	for {
		n, _, err := p.Poll()
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
	}
}

type wordser interface{ Words() spanring.Words }

func write(w *spanring.Writer, es ...wordser) {
	for _, e := range es {
		words := e.Words()
		w.Append(&words)
	}
}

func step(w *spanring.Writer, n uint64, armed bool, laneName, kernelName spanring.NameID, laneNS uint64) {
	at := spanring.MonoNS()
	write(w,
		&spanring.StepBegin{Step: n, MonoNS: at, Armed: armed, Level: 3},
		&spanring.Span{Kind: spanring.KindLane, Step: n, Ordinal: 1, Name: laneName, Armed: armed, StartMonoNS: at, RawNS: laneNS, LeadNS: 25_000},
	)
	opened := uint32(1)
	if armed {
		opened++
		write(w, &spanring.Span{Kind: spanring.KindKernel, Step: n, Ordinal: 2, Parent: 1, Name: kernelName, Armed: true, StartMonoNS: at, RawNS: 8040, CorrectionNS: 3040})
	}
	write(w, &spanring.StepEnd{Step: n, BeginNS: at, MonoNS: at + 10_000, Armed: armed, Opened: opened})
}

// TestEverythingIsThereFromTheStart: with an engine that has done nothing, every
// metric of the table is served under the name the table says, and every reason
// at 0.
func TestEverythingIsThereFromTheStart(t *testing.T) {
	ins, h := serve(t, func() collector.ExportStats { return collector.ExportStats{} })
	// Without any engine: what belongs to none.
	fs := scrape(t, h)
	for _, name := range []string{"lanetrace_engines_ended_total", "lanetrace_rings_failed_total", "lanetrace_export_requests_total", "lanetrace_engines_live"} {
		if fs[name] == nil {
			t.Errorf("no %s without an engine", name)
		}
	}

	w, p := engine(t, ins, collector.ProcessorOptions{Label: "e"}, spanring.Info{Service: "svc", Rank: spanring.Rank{Data: 1, Tensor: -1, Pipeline: -1, Expert: -1}})
	c := spanring.ContextState{UUID: [16]byte{0x8c}, ConstantNS: 3040, Calibration: spanring.CalibrationMeasured, UpdatedMonoNS: spanring.MonoNS(), UncertaintyNS: 500, RatePPB: 11_800}
	if _, err := w.NewContext(&c, 4); err != nil {
		t.Fatal(err)
	}
	mem, err := ledger.New(ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mem.Attach(w, 0, true)
	lane := w.Name(spanring.NameLane, "decode")
	step(w, 1, false, lane, 0, 100)
	poll(t, p)
	fs = scrape(t, h)
	want := map[string]bool{"target_info": true}
	for _, m := range collector.Metrics() {
		name := m.PrometheusName()
		want[name] = true
		f := fs[name]
		if f == nil {
			t.Errorf("%s is not served as %s", m.Name, name)
			continue
		}
		typ := map[collector.MetricType]dto.MetricType{
			collector.TypeCounter: dto.MetricType_COUNTER, collector.TypeGauge: dto.MetricType_GAUGE, collector.TypeHistogram: dto.MetricType_HISTOGRAM,
		}[m.Type]
		if f.GetType() != typ || f.GetHelp() != m.Help {
			t.Errorf("%s: type %v, help %q", name, f.GetType(), f.GetHelp())
		}
		labels := slices.Sorted(maps.Keys(labelsOf(f.Metric[0])))
		var want []string
		for _, l := range m.Labels {
			want = append(want, strings.ReplaceAll(l, ".", "_"))
		}
		slices.Sort(want)
		if d := cmp.Diff(want, labels); d != "" && len(m.Labels)+len(labels) > 0 {
			t.Errorf("%s: labels (-table +served):\n%s", name, d)
		}
		for _, l := range m.Labels {
			for _, v := range m.LabelValues(l) {
				if m.Device() && m.Type == collector.TypeGauge {
					continue // energy by token, which is never 0
				}
				set := map[string]string{strings.ReplaceAll(l, ".", "_"): v}
				if m.Device() {
					set["hw_id"] = reported.ID
				}
				if slices.Contains(m.Labels, "engine") {
					set["engine"] = "e"
				}
				got := value(t, fs, name, set)
				switch { // the one step, and its two spans that nobody exports
				case m.Name == "lanetrace.steps" && v == "false", m.Name == "lanetrace.steps.bound" && v == "unknown":
					got--
				case m.Name == "process.cpu.time": // this process is not new
					got = 0
				case m.Name == "lanetrace.sidecar.spans.not_selected" && v == "no_exporter":
					got -= 2
				}
				if got != 0 {
					t.Errorf("%s%v is %v at the start", name, set, got)
				}
			}
		}
	}
	for name := range fs {
		if !want[name] {
			t.Errorf("%s is served and not in the table", name)
		}
	}
	const gpu = "GPU-8c000000-0000-0000-0000-000000000000"
	for name, v := range map[string]float64{
		"lanetrace_clock_uncertainty_seconds": 500e-9, "lanetrace_clock_drift_ratio": 11.8e-6,
	} {
		if got := value(t, fs, name, map[string]string{"engine": "e", "gpu": gpu}); got != v {
			t.Errorf("%s is %v, want %v", name, got, v)
		}
	}
	if got := value(t, fs, "lanetrace_calibration_constant_seconds", map[string]string{"engine": "e", "gpu": gpu, "calibration": "measured"}); got != 3040e-9 {
		t.Errorf("constant %v", got)
	}
}

// TestCountersStartAtZero: of an engine that has done nothing every counter is there
// at 0, so that the first of anything is an increase and an alert on it fires.
func TestCountersStartAtZero(t *testing.T) {
	ins, h := serve(t, func() collector.ExportStats { return collector.ExportStats{} })
	w, p := engine(t, ins, collector.ProcessorOptions{Label: "e"}, spanring.Info{})
	poll(t, p)
	fs := scrape(t, h)
	counters := 0
	for _, m := range collector.Metrics() {
		if m.Type != collector.TypeCounter || m.Name == "process.cpu.time" {
			continue
		}
		f := fs[m.PrometheusName()]
		if f == nil {
			t.Errorf("no %s", m.PrometheusName())
			continue
		}
		for _, s := range f.Metric {
			counters++
			if s.Counter.GetValue() != 0 {
				t.Errorf("%s%v is %v", f.GetName(), labelsOf(s), s.Counter.GetValue())
			}
		}
	}
	if counters < 100 {
		t.Errorf("only %d counters", counters)
	}
	// The very first of each reason is seen as an increase by 1.
	for r := spanring.FailNone + 1; int(r) < spanring.NumReasons; r++ {
		w.Add(r.Counter(), 1)
	}
	w.Add(spanring.CtrDropped, 1)
	for r := range collector.NumDropReasons {
		p.Engine().Ledger().Receive(1)
		p.Engine().Ledger().Drop(collector.DropReason(r), 1)
	}
	after := scrape(t, h)
	for _, name := range []string{"lanetrace_spans_failed_total", "lanetrace_spans_dropped_total", "lanetrace_sidecar_spans_dropped_total"} {
		for _, s := range after[name].Metric {
			if d := s.Counter.GetValue() - value(t, fs, name, labelsOf(s)); d != 1 {
				t.Errorf("%s%v rose by %v", name, labelsOf(s), d)
			}
		}
	}
}

// TestArmedStepsStayOut: armed steps whose lanes are much slower change nothing in
// the lane's and step's own histograms.
func TestArmedStepsStayOut(t *testing.T) {
	ins, h := serve(t, nil)
	w, p := engine(t, ins, collector.ProcessorOptions{Label: "e"}, spanring.Info{})
	lane, kernel := w.Name(spanring.NameLane, "decode"), w.Name(spanring.NameKernel, "gemm")
	for n := uint64(1); n <= 100; n++ {
		if n%10 == 0 {
			step(w, n, true, lane, kernel, 1_400_000)
		} else {
			step(w, n, false, lane, kernel, 1_000_000)
		}
	}
	poll(t, p)
	fs := scrape(t, h)
	e, l := map[string]string{"engine": "e"}, map[string]string{"engine": "e", "lane": "decode"}
	for _, tt := range []struct {
		name   string
		labels map[string]string
		want   float64
	}{
		{"lanetrace_gpu_lane_duration_seconds", l, 90},
		{"lanetrace_gpu_lane_armed_duration_seconds", l, 10},
		{"lanetrace_gpu_lane_queue_delay_seconds", l, 90},
		{"lanetrace_step_duration_seconds", e, 90},
		{"lanetrace_step_armed_duration_seconds", e, 10},
		{"lanetrace_step_host_duration_seconds", e, 90},
		{"lanetrace_gpu_kernel_armed_duration_seconds", map[string]string{"engine": "e", "kernel": "gemm"}, 10},
		{"lanetrace_steps_total", map[string]string{"engine": "e", "armed": "true"}, 10},
		{"lanetrace_steps_total", map[string]string{"engine": "e", "armed": "false"}, 90},
	} {
		if got := value(t, fs, tt.name, tt.labels); got != tt.want {
			t.Errorf("%s%v is %v, want %v", tt.name, tt.labels, got, tt.want)
		}
	}
	hist := fs["lanetrace_gpu_lane_duration_seconds"].Metric[0].Histogram
	if got := hist.GetSampleSum(); got < 0.0899 || got > 0.0901 {
		t.Errorf("sum of 90 lanes of 1 ms is %v s", got)
	}
	for _, b := range hist.Bucket {
		want := uint64(0)
		if b.GetUpperBound() >= 0.001 {
			want = 90
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("bucket %v has %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), want)
		}
	}
	k := fs["lanetrace_gpu_kernel_armed_duration_seconds"].Metric[0].Histogram
	if got := k.GetSampleSum(); got < 49.9e-6 || got > 50.1e-6 {
		t.Errorf("ten kernels of 8.04 µs less 3.04 µs sum up to %v s", got)
	}
}

// quantile is what histogram_quantile makes of a classic histogram.
func quantile(q float64, h *dto.Histogram) float64 {
	rank := q * float64(h.GetSampleCount())
	lower, below := 0.0, uint64(0)
	for _, b := range h.Bucket {
		if n := b.GetCumulativeCount(); float64(n) >= rank {
			return lower + (b.GetUpperBound()-lower)*(rank-float64(below))/float64(n-below)
		}
		lower, below = b.GetUpperBound(), b.GetCumulativeCount()
	}
	return math.Inf(1)
}

// TestOurCostIsNobodysP99: with one step in ten armed and 40 % slower, the quantiles
// of the series that an operator looks at are those of an engine without any.
func TestOurCostIsNobodysP99(t *testing.T) {
	ins, h := serve(t, nil)
	for _, label := range []string{"plain", "armed"} {
		w, p := engine(t, ins, collector.ProcessorOptions{Label: label}, spanring.Info{})
		lane, kernel := w.Name(spanring.NameLane, "decode"), w.Name(spanring.NameKernel, "gemm")
		n := uint64(0)
		for i := range uint64(1000) {
			ns := 1_000_000 + i*200
			n++
			step(w, n, false, lane, kernel, ns)
			if label == "armed" && i%9 == 0 {
				n++
				step(w, n, true, lane, kernel, ns*14/10)
			}
		}
		poll(t, p)
	}
	fs := scrape(t, h)
	of := func(name, engine string) *dto.Histogram {
		for _, m := range fs[name].Metric {
			if labelsOf(m)["engine"] == engine {
				return m.Histogram
			}
		}
		t.Fatalf("no %s of %s", name, engine)
		return nil
	}
	for _, name := range []string{"lanetrace_step_duration_seconds", "lanetrace_gpu_lane_duration_seconds", "lanetrace_step_host_duration_seconds", "lanetrace_gpu_lane_queue_delay_seconds"} {
		for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
			if a, b := quantile(q, of(name, "plain")), quantile(q, of(name, "armed")); a != b || math.IsNaN(a) {
				t.Errorf("%s: the %v quantile is %v, and %v with armed steps", name, q, a, b)
			}
		}
	}
	// The armed ones are there, and slower.
	const armed = "lanetrace_gpu_lane_armed_duration_seconds"
	if n := of(armed, "armed").GetSampleCount(); n != 112 {
		t.Errorf("%d armed lanes, want 112", n)
	}
	if a, b := quantile(0.5, of("lanetrace_gpu_lane_duration_seconds", "armed")), quantile(0.5, of(armed, "armed")); b < a*1.2 {
		t.Errorf("medians %v and, armed, %v", a, b)
	}
	// Of the kernels of armed steps each took 5 of its lane's microseconds.
	for state, want := range map[string]float64{"busy_in_lane": 112 * 5e-6, "busy_outside_lanes": 0} {
		got := value(t, fs, "lanetrace_gpu_armed_time_seconds_total", map[string]string{"engine": "armed", "state": state})
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("armed steps' time %s is %v s, want %v", state, got, want)
		}
	}
	idle := value(t, fs, "lanetrace_gpu_armed_time_seconds_total", map[string]string{"engine": "armed", "state": "idle_in_lane"})
	if sum := of(armed, "armed").GetSampleSum(); math.Abs(idle-(sum-112*5e-6)) > 1e-9 {
		t.Errorf("idle in lanes %v s of %v s", idle, sum)
	}
}

// TestInstantiationsAreOneKernel: of a C++ template there is one series, under its
// demangled name.
func TestInstantiationsAreOneKernel(t *testing.T) {
	ins, h := serve(t, nil)
	w, p := engine(t, ins, collector.ProcessorOptions{}, spanring.Info{Service: "s", Rank: spanring.NoRank})
	lane := w.Name(spanring.NameLane, "l")
	for i, k := range []string{
		"_ZN2at6native29vectorized_elementwise_kernelILi4EfEEvT_PT0_", "_ZN2at6native29vectorized_elementwise_kernelILi2EdEEvT_PT0_",
		"void at::native::vectorized_elementwise_kernel<1, float>(int)",
	} {
		step(w, uint64(i+1), true, lane, w.Name(spanring.NameKernel, k), 1000)
	}
	poll(t, p)
	labels := map[string]string{"engine": "s", "kernel": "at::native::vectorized_elementwise_kernel"}
	if n := value(t, scrape(t, h), "lanetrace_gpu_kernel_armed_duration_seconds", labels); n != 3 {
		t.Errorf("%v kernels, want 3", n)
	}
}

// TestHostileNames: whatever names arrive, what is served parses in every format,
// and the names that were cleaned are there.
func TestHostileNames(t *testing.T) {
	ins, h := serve(t, nil)
	w, p := engine(t, ins, collector.ProcessorOptions{}, spanring.Info{
		Service: "a\"b\\c\nd\xff{}", Executable: "e\x00x", GPUUUID: "GPU-\xff\"", GPUName: "H\n200", Producer: "\xfe", Rank: spanring.NoRank,
	})
	lane := w.Name(spanring.NameLane, "la\"ne\\\n\t\xff")
	n := uint64(0)
	hostile := []string{"k\"", "k\\", "k\n", "k\xff\xfe", "", "\x00", "{a=\"b\"} 1\n# EOF", strings.Repeat("x", 3000), strings.Repeat("ä", 800), "other", "<script>"}
	for _, k := range hostile {
		n++
		step(w, n, true, lane, w.Name(spanring.NameKernel, k), 1000)
	}
	for i := range 10_000 {
		n++
		step(w, n, true, lane, w.Name(spanring.NameKernel, fmt.Sprintf("kernel_%d", i)), 1000)
		if n%5000 == 0 {
			poll(t, p)
		}
	}
	poll(t, p)
	fs := scrape(t, h)
	engine := "a\"b\\c d\ufffd{}"
	if p.Engine().Label() != engine {
		t.Fatalf("label %q", p.Engine().Label())
	}
	if got := value(t, fs, "lanetrace_gpu_lane_armed_duration_seconds", map[string]string{"engine": engine, "lane": "la\"ne\\  \ufffd"}); got != float64(n) {
		t.Errorf("%v armed lanes, want %d", got, n)
	}
	kernels := fs["lanetrace_gpu_kernel_armed_duration_seconds"].Metric
	if len(kernels) != 5+1 {
		t.Errorf("%d kernels have series, want 5 and other", len(kernels))
	}
	sum := uint64(0)
	for _, k := range kernels {
		v := labelsOf(k)["kernel"]
		if !utf8.ValidString(v) || len(v) > collector.MaxLabelBytes {
			t.Errorf("kernel %q", v)
		}
		sum += k.Histogram.GetSampleCount()
	}
	if sum != n {
		t.Errorf("%d kernels counted, want %d", sum, n)
	}

	for _, accept := range []string{
		"application/openmetrics-text;version=1.0.0",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
	} {
		res := get(t, h, accept)
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		typ := res.Header.Get("Content-Type")
		if !strings.HasPrefix(typ, strings.Split(accept, ";")[0]) {
			t.Errorf("asked for %s, got %s", accept, typ)
		}
		if strings.HasPrefix(accept, "application/openmetrics") {
			if !bytes.HasSuffix(body, []byte("\n# EOF\n")) || bytes.Count(body, []byte("# EOF\n")) != 1 || !utf8.Valid(body) {
				t.Errorf("OpenMetrics does not end in its one EOF")
			}
			continue
		}
		d := expfmt.NewDecoder(bytes.NewReader(body), expfmt.ResponseFormat(res.Header))
		families := 0
		for {
			var f dto.MetricFamily
			if err := d.Decode(&f); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			families++
		}
		if families != len(fs) {
			t.Errorf("%d families in protobuf, %d in text", families, len(fs))
		}
	}
}

// TestSeriesEndWithTheirEngine: a hundred engines leave no series behind.
func TestSeriesEndWithTheirEngine(t *testing.T) {
	ins, h := serve(t, nil)
	size := func() (n int) {
		for _, f := range scrape(t, h) {
			n += len(f.Metric)
		}
		return n
	}
	empty := size()
	for i := range 100 {
		w, p := engine(t, ins, collector.ProcessorOptions{Label: fmt.Sprintf("e%d", i%3)}, spanring.Info{})
		step(w, 1, true, w.Name(spanring.NameLane, "decode"), w.Name(spanring.NameKernel, fmt.Sprint(i)), 1000)
		poll(t, p)
		if i%25 == 0 && size() <= empty {
			t.Error("an engine adds no series")
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		p.Forget()
	}
	if got := size(); got != empty {
		t.Errorf("%d series, %d before the first engine", got, empty)
	}
}
