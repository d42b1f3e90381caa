package otlp

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/prometheus"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// volume encodes what is selected, makes of each second one request as the exporter
// does, and counts.
type volume struct {
	enc             encoder
	resource, scope []byte
	sent            [][]byte // of this second
	second          int64
	zip             *gzip.Writer

	from                  int64 // nothing is counted before
	traces, bytes, zipped int
	armed, armedBytes     int
}

func (v *volume) Export(s *collector.Step, r collector.ExportReason) {
	n := 0
	if sec := s.ClosedMonoNS / 1e9; sec != v.second {
		v.flush()
		v.second = sec
	}
	v.enc.step(s, s.Engine.RunID(), r, func() []byte { return nil }, func(c chunk) {
		v.sent = append(v.sent, c.buf)
		n += len(c.buf)
	})
	s.Engine.Ledger().Export(s.Units())
	if s.ClosedMonoNS < v.from {
		return
	}
	v.traces++
	if s.Armed {
		v.armed++
		v.armedBytes += n
	}
}

func (v *volume) flush() {
	if len(v.sent) == 0 {
		return
	}
	b := appendResourceSpans(nil, v.resource, v.scope, v.sent...)
	v.sent = v.sent[:0]
	if v.second*1e9 < v.from {
		return
	}
	var z bytes.Buffer
	v.zip.Reset(&z)
	if _, err := v.zip.Write(b); err != nil {
		panic(err)
	}
	if err := v.zip.Close(); err != nil {
		panic(err)
	}
	v.bytes += len(b)
	v.zipped += z.Len()
}

// counted is a writer that counts.
type counted struct{ n int }

func (c *counted) Write(b []byte) (int, error) { c.n += len(b); return len(b), nil }

// recordTap records what is read.
type recordTap struct{ r *recording.Run }

func (t recordTap) Entries(_ *collector.Engine, es []spanring.Entry) { _ = t.r.Append(es) }
func (t recordTap) Ended(*collector.Engine)                          {}

// TestVolume measures what an engine costs in traces, metrics and recordings, for
// docs/volume.md: with LANETRACE_TEST_VOLUME=600 for ten minutes of each engine's
// time. Without, it sees that the budget holds.
func TestVolume(t *testing.T) {
	length, _ := strconv.Atoi(os.Getenv("LANETRACE_TEST_VOLUME"))
	asked := length != 0
	if !asked {
		length = 20
	}
	const warm = 10 // seconds until the burst is spent
	const day = 86_400
	t.Logf("%-28s %12s %14s %14s %14s %10s", "", "traces/day", "OTLP MiB/day", "gzip MiB/day", "record MiB/day", "refused")
	for _, tt := range []struct {
		name   string
		every  time.Duration
		kernel int
		o      collector.LiveOptions
	}{
		{"10 steps/s", 100 * time.Millisecond, 64, collector.LiveOptions{}},
		{"100 steps/s", 10 * time.Millisecond, 64, collector.LiveOptions{}},
		{"1,000 steps/s", time.Millisecond, 64, collector.LiveOptions{}},
		{"1,000 steps/s, level lane", time.Millisecond, -1, collector.LiveOptions{}},
		{"1,000 steps/s, every step", time.Millisecond, 64, collector.LiveOptions{OneInN: 1}},
		{"1,000 steps/s, no bound", time.Millisecond, 64, collector.LiveOptions{OneInN: 1, BudgetBytes: -1}},
	} {
		if tt.o.BudgetBytes < 0 && !asked {
			continue // there is no bound to hold it to
		}
		src := synth.New(synth.Options{Seed: 1, Duration: time.Duration(warm+length) * time.Second, Layers: 6, StepEvery: tt.every, KernelEvery: tt.kernel})
		info, err := src.Info()
		if err != nil {
			t.Fatal(err)
		}
		v := &volume{enc: encoder{maxBytes: 1 << 20}, from: src.NowMonoNS() + warm*1e9, zip: gzip.NewWriter(io.Discard)}
		v.resource, v.scope = appendResource(nil, "engine", "node-1", &info), appendScope(nil, "1.2.3")
		ins := collector.NewInstruments(collector.InstrumentOptions{})
		prom, err := prometheus.New(prometheus.Options{Producers: []sdkmetric.Producer{ins.Producer()}})
		if err != nil {
			t.Fatal(err)
		}
		mp, m, err := collector.NewMeterProvider(collector.MeterOptions{HostName: "node-1", Readers: []sdkmetric.Reader{prom.Reader()}})
		if err != nil {
			t.Fatal(err)
		}
		if err := ins.Register(m); err != nil {
			t.Fatal(err)
		}
		var file counted
		w, err := recording.NewWriter(&file, recording.Options{})
		if err != nil {
			t.Fatal(err)
		}
		rec, err := w.Begin(src)
		if err != nil {
			t.Fatal(err)
		}
		p, err := collector.NewProcessor(src, collector.ProcessorOptions{
			Exporter: v, Selector: collector.NewLiveSelector(tt.o), Instruments: ins, Taps: []collector.Tap{recordTap{rec}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Drain(); err != nil {
			t.Fatal(err)
		}
		v.flush()
		rr := httptest.NewRecorder()
		prom.Handler().ServeHTTP(rr, httptest.NewRequest("GET", "/metrics", nil))
		series := 0
		for l := range strings.Lines(rr.Body.String()) {
			if !strings.HasPrefix(l, "#") {
				series++
			}
		}
		a := p.Engine().Account()
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := rec.End(); err != nil {
			t.Fatal(err)
		}
		if err := mp.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		perDay := func(n int, secs int) float64 { return float64(n) / float64(secs) * day }
		mib := func(n int, secs int) string { return fmt.Sprintf("%.1f", perDay(n, secs)/(1<<20)) }
		t.Logf("%-28s %12.0f %14s %14s %14s %9.0f%%", tt.name, perDay(v.traces, length), mib(v.bytes, length), mib(v.zipped, length),
			mib(file.n, warm+length), 100*float64(a.Sidecar.NotSelected["budget"])/float64(a.Sidecar.Received))
		t.Logf("%-28s %d bytes a trace, %d an armed one; %d series, a scrape of %d bytes", "", v.bytes/max(1, v.traces),
			v.armedBytes/max(1, v.armed), series, rr.Body.Len())
		// The sizes that the budget is kept by are estimates.
		budget := collector.DefaultBudgetBytes * 105 / 100
		if most := budget*(length+collector.DefaultBurstSeconds) + 1<<18; tt.o.BudgetBytes == 0 && v.bytes > most {
			t.Errorf("%s: %d bytes in %d s, the budget allows %d", tt.name, v.bytes, length, most)
		}
	}
}
