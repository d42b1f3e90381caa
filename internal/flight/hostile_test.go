package flight_test

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/dashboards/web"
	"github.com/lanetrace/lanetrace/exporters/chrome"
	"github.com/lanetrace/lanetrace/exporters/otlp"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/flight"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/internal/top"
	"github.com/lanetrace/lanetrace/spanring"
)

// TestHostileRing: of a ring whose entries, allocations and counters nobody checked,
// everything that is made of a run comes about, and its record can be read.
func TestHostileRing(t *testing.T) {
	for seed := range uint64(60) {
		hostile(t, seed)
	}
}

func hostile(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	d := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	num := func() uint64 {
		edges := [...]uint64{0, 1, 2, 1e9, 1 << 32, 1 << 47, 1<<48 - 1, 1 << 61, 1 << 62, math.MaxInt64, 1 << 63, math.MaxUint64}
		switch r.IntN(4) {
		case 0:
			return r.Uint64() >> r.IntN(64)
		case 1:
			return uint64(spanring.MonoNS()) + r.Uint64()>>r.IntN(64)
		}
		return edges[r.IntN(len(edges))] - uint64(r.IntN(2))
	}
	at := func() int64 { return int64(num() & math.MaxInt64) }
	w, err := spanring.Create(d, spanring.Options{Geometry: spanring.Geometry{LogEntries: 1 << 10, Slots: 64, NameBytes: 1 << 16, Allocs: 64}, Info: spanring.Info{
		Service: "hostile", Rank: spanring.NoRank, KernelEvery: uint32(num()), LaneEvery: uint32(num()),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i := range r.IntN(3) {
		c := spanring.ContextState{GPURefNS: int64(num()), HostRefNS: int64(num()), RatePPB: int64(num()), UpdatedMonoNS: int64(num()), UncertaintyNS: num(), Device: int32(i)}
		if _, err := w.NewContext(&c, 8); err != nil {
			t.Fatal(err)
		}
	}
	names := []spanring.NameID{0, w.Name(spanring.NameLane, "decode"), w.Name(spanring.NameKernel, "gemm<float>"), w.Name(spanring.NameSite, "a.go:1"), w.GraphName(1, 5, "g"), 1 << 20}
	name := func() spanring.NameID { return names[r.IntN(len(names))] }
	step, ordinal := uint64(1), uint32(0)
	var begun int64
	for range 200 + r.IntN(800) {
		var e spanring.Words
		switch r.IntN(12) {
		case 0:
			step, ordinal, begun = step+1, 0, at()
			e = (&spanring.StepBegin{Step: step, MonoNS: begun, Armed: r.IntN(2) > 0}).Words()
		case 1:
			e = (&spanring.StepEnd{Step: step, MonoNS: max(begun, at()), BeginNS: begun, Armed: r.IntN(2) > 0, Opened: ordinal, Linked: uint32(r.IntN(3))}).Words()
		case 2, 3, 4, 5, 6:
			ordinal++
			raw := num() & (1<<48 - 1)
			e = (&spanring.Span{
				Kind: spanring.KindLane + spanring.Kind(r.IntN(3)), Step: step, Ordinal: ordinal, Parent: uint32(r.IntN(int(ordinal))), Name: name(),
				StartMonoNS: min(at(), math.MaxInt64-1<<48), RawNS: raw, CorrectionNS: uint16(min(raw, num()&0xffff)), LeadNS: int64(num()),
				PlaceUncertaintyNS: num(), DurationUncertaintyNS: num(), Gap: spanring.Gap(r.IntN(3)), Stream: uint16(r.IntN(3)), Context: uint8(r.IntN(2)),
			}).Words()
		case 7:
			ordinal++
			e = (&spanring.SpanFailed{SpanKind: spanring.KindLane, Reason: spanring.FailAbandoned, Step: step, Ordinal: ordinal, EnqueueMonoNS: at(), Name: name()}).Words()
		case 8, 9:
			e = (&spanring.MemEvent{Kind: spanring.KindAlloc + spanring.Kind(r.IntN(2)), Swept: false, Alloc: spanring.Alloc{Addr: num(), Bytes: num() & (1<<40 - 1), Site: name(), Index: num(), MonoNS: at(), Kind: spanring.AllocDevice}}).Words()
		case 10:
			e = (&spanring.RequestEnd{BeginNS: begun, EndNS: max(begun, at()), PromptTokens: uint32(num()), OutputTokens: uint32(num())}).Words()
		case 11:
			for i := range e {
				e[i] = num()
			}
		}
		w.Append(&e)
	}
	a := w.Allocs()
	a.Lock()
	for range r.IntN(64) {
		a.Put(&spanring.Alloc{Addr: num(), Bytes: num(), Site: name(), Index: num(), MonoNS: at(), Kind: spanring.AllocDevice})
	}
	a.Track(1, 1)
	a.Unlock()
	for c := range spanring.NumCounters {
		if r.IntN(3) == 0 {
			w.Add(c, num())
		}
	}

	k, err := flight.New(flight.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	record, err := k.Keep(w.Path(), flight.Hung)
	if err != nil || record == "" {
		t.Fatalf("seed %d: %q, %v", seed, record, err)
	}
	replayed(t, seed, strings.TrimSuffix(record, ".txt")+recording.Suffix)

	rd, err := spanring.Open(w.Path(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ins, metrics := collector.NewInstruments(collector.InstrumentOptions{}), sdkmetric.NewManualReader()
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(metrics))
	defer mp.Shutdown(t.Context())
	if err := ins.Register(mp.Meter("test")); err != nil {
		t.Fatal(err)
	}
	view, run := top.New(), report.New(report.Options{})
	var known atomic.Pointer[[]*collector.Engine] // the page looks by itself as well
	known.Store(new([]*collector.Engine))
	page := web.New(web.Options{Engines: func() []*collector.Engine { return *known.Load() }})
	defer page.Close()
	trace, spans, lines := chrome.NewWriter(io.Discard), otlp.NewJSONWriter(io.Discard, otlp.JSONOptions{}), report.NewLines(io.Discard)
	exp := []collector.Exporter{trace, spans, lines}[seed%3]
	p, err := collector.NewProcessor(collector.NewRingSource(rd), collector.ProcessorOptions{
		Observers: []collector.Observer{view, run, page}, Taps: []collector.Tap{run}, Instruments: ins, Exporter: exp,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.DrainToNow(); err != nil {
		t.Fatal(err)
	}
	e := p.Engine()
	known.Store(&[]*collector.Engine{e})
	var rm metricdata.ResourceMetrics
	if err := metrics.Collect(t.Context(), &rm); err != nil {
		t.Error(err)
	}
	if _, err := ins.AllForms().Produce(t.Context()); err != nil {
		t.Error(err)
	}
	if err := view.Draw(io.Discard, top.Frame{Engines: []*collector.Engine{e}, Width: 100, Height: 40, Now: time.Now()}); err != nil {
		t.Error(err)
	}
	view.Tables(e)
	view.SecondsAfter(e, 0)
	told, once := context.WithCancel(t.Context())
	once() // what is known is told before that is seen
	answer := httptest.NewRecorder()
	page.ServeHTTP(answer, httptest.NewRequestWithContext(told, "GET", "/live/events", nil))
	events := 0
	for _, line := range strings.Split(answer.Body.String(), "\n") {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			events++
			if !json.Valid([]byte(data)) {
				t.Errorf("seed %d: %s", seed, data)
			}
		}
	}
	if events < 2 {
		t.Errorf("seed %d: %d events", seed, events)
	}
	run.Text(e)
	run.MemoryText(e, 0)
	doc := report.Document{Engines: []*report.EngineReport{run.Report(e)}}
	if err := doc.Write(io.Discard); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range []io.Closer{trace, spans, lines} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// replayed reads the record's recording.
func replayed(t *testing.T, seed uint64, path string) {
	f, err := recording.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Damage() != nil || len(f.Runs()) != 1 {
		t.Fatalf("seed %d: %d runs, damage %v", seed, len(f.Runs()), f.Damage())
	}
	src, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	run := report.New(report.Options{Recorded: true})
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Observers: []collector.Observer{run}, Taps: []collector.Tap{run}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Drain(); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	run.Text(p.Engine())
	run.Report(p.Engine())
	account := p.Engine().Account()
	if u := account.Unbalanced(); slices.Contains(u, "reader") || slices.Contains(u, "sidecar") {
		t.Errorf("seed %d: %v do not balance", seed, u)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
