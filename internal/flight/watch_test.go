package flight

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

// logged is a log that can be read while it is written.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// lines are those that match re.
func (l *logged) lines(re string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range strings.Lines(l.b.String()) {
		if regexp.MustCompile(re).MatchString(s) {
			out = append(out, s)
		}
	}
	return out
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// pages are the pages of records in dir whose reason is why.
func pages(t *testing.T, dir string, why Reason) []string {
	t.Helper()
	p, err := filepath.Glob(filepath.Join(dir, "*-"+string(why)+pageSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// values are the values of a metric, by its label reason, or "" where it has none.
func values(t *testing.T, r *sdkmetric.ManualReader, name string) map[string]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := r.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			if m.Name != name {
				continue
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					v, _ := p.Attributes.Value("reason")
					out[v.AsString()] = float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					out[""] = p.Value
				}
			}
		}
	}
	return out
}

// watched is a collector of a directory with its watcher.
type watched struct {
	dir     spanring.Dir
	records string
	log     logged
	metrics *sdkmetric.ManualReader
	col     *collector.Collector
}

func watchDir(t *testing.T, hangAfter time.Duration, prepare func(dir string)) *watched {
	t.Helper()
	g := &watched{dir: spanring.Dir{Path: ringDir(t), Group: -1}, records: filepath.Join(t.TempDir(), "flight")}
	if prepare != nil {
		prepare(g.dir.Path)
	}
	g.restart(t, hangAfter)
	return g
}

// restart is the sidecar's: it returns what ends it.
func (g *watched) restart(t *testing.T, hangAfter time.Duration) (stop func()) {
	t.Helper()
	k, err := New(Options{Dir: g.records})
	if err != nil {
		t.Fatal(err)
	}
	ins := collector.NewInstruments(collector.InstrumentOptions{})
	g.metrics = sdkmetric.NewManualReader(sdkmetric.WithProducer(ins.Producer()))
	mp, m, err := collector.NewMeterProvider(collector.MeterOptions{Readers: []sdkmetric.Reader{g.metrics}})
	if err != nil {
		t.Fatal(err)
	}
	if err := ins.Register(m); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&g.log, nil))
	w := NewWatcher(WatchOptions{Keeper: k, HangAfter: hangAfter, Every: 2 * time.Millisecond, Instruments: ins, Logger: log})
	g.col, err = collector.New(collector.Options{
		Dir: g.dir, Processor: collector.ProcessorOptions{Instruments: ins}, Rescan: 5 * time.Millisecond,
		OnEnd: w.Ended, RemoveDead: true, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(ctx, g.col.Engines) })
	wg.Go(func() {
		if err := g.col.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if err := mp.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// engine is a live engine with a GPU that can be made to stand still.
type engine struct {
	hub    *lanetrace.Hub
	dev    *lanetrace.Device
	drv    *scripted.Driver
	stream cudaevents.Stream
}

func newEngine(t *testing.T, dir string) *engine {
	t.Helper()
	g := &engine{drv: scripted.New(scripted.Options{RealTime: true})}
	var err error
	if g.hub, err = lanetrace.Open(lanetrace.Config{
		Dir: dir, Service: "serve", RingBytes: 256 << 10, HarvestEvery: -1, NoCalibration: true, Logger: slog.New(slog.DiscardHandler),
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = g.hub.Close(ctx) // the GPU may be stuck, which Close says
	})
	if g.dev, err = g.hub.Attach(g.drv); err != nil {
		t.Fatal(err)
	}
	g.stream = g.drv.NewStream()
	return g
}

// step is a step with one lane, which is in flight when it returns.
func (g *engine) step() {
	s := g.hub.StepBegin()
	g.dev.LaneBegin(s, g.hub.Lane("decode"), g.stream).End()
	s.End()
}

func (g *engine) land(t *testing.T) {
	t.Helper()
	eventually(t, "nothing is in flight", func() bool {
		g.hub.Harvest()
		c := g.hub.Ring().Counters()
		return c.InFlight() == 0
	})
}

// TestHang: each hang is told once, with a record, while the GPU completes nothing;
// the engine's age in flight grows meanwhile and is 0 before and after.
func TestHang(t *testing.T) {
	const hangAfter = 250 * time.Millisecond
	var e *engine
	g := watchDir(t, hangAfter, func(dir string) { // a step that takes long to be read is no hang yet
		e = newEngine(t, dir)
		e.step()
		e.land(t)
	})
	age := func() float64 { return values(t, g.metrics, "lanetrace.spans.in_flight.age")[""] }
	eventually(t, "the engine is read", func() bool { return len(g.col.Engines()) == 1 })
	if a := age(); a != 0 {
		t.Errorf("an idle engine has a span in flight for %v s", a)
	}
	for n := 1; n <= 2; n++ {
		e.drv.Stall(e.stream)
		e.step()
		eventually(t, "the hang is told", func() bool { return len(g.log.lines("engine hangs")) == n })
		first := age()
		if first < hangAfter.Seconds() {
			t.Errorf("hung for %v s", first)
		}
		eventually(t, "the age grows", func() bool { return age() > first+0.02 })
		line := g.log.lines("engine hangs")[n-1]
		for _, want := range []string{
			"level=WARN", `engine=serve-gpu`, "lane=decode", "stream=", "step=" + []string{"2", "3"}[n-1] + " ", "age=", "flight_record=" + g.records,
		} {
			if !strings.Contains(line, want) {
				t.Errorf("hang %d: no %q in %s", n, want, line)
			}
		}
		if strings.Count(line, "lane=") != 1 {
			t.Errorf("hang %d: %s", n, line)
		}
		if p := pages(t, g.records, Hung); len(p) != n {
			t.Errorf("%d records of hang %d", len(p), n)
		}
		if len(g.log.lines("engine hangs")) != n {
			t.Errorf("hang %d is told again", n)
		}
		e.drv.Release(e.stream)
		e.land(t)
		eventually(t, "the recovery is told", func() bool { return len(g.log.lines("engine moves again")) == n })
		if a := age(); a != 0 {
			t.Errorf("after hang %d a span is in flight for %v s", n, a)
		}
	}
	if v := values(t, g.metrics, "lanetrace.flight.records"); v["hung"] != 2 || v["died"] != 0 {
		t.Errorf("counted %v", v)
	}
}

// TestHangOverRestart: a restarted sidecar tells the hang again and makes no second
// record of it.
func TestHangOverRestart(t *testing.T) {
	g := &watched{dir: spanring.Dir{Path: ringDir(t), Group: -1}, records: filepath.Join(t.TempDir(), "flight")}
	e := newEngine(t, g.dir.Path)
	e.drv.Stall(e.stream)
	e.step()
	for n := 1; n <= 2; n++ {
		stop := g.restart(t, 20*time.Millisecond)
		eventually(t, "the hang is told", func() bool { return len(g.log.lines("engine hangs")) == n })
		stop()
		if p := pages(t, g.records, Hung); len(p) != 1 {
			t.Errorf("life %d: %d records", n, len(p))
		}
	}
}

// TestDeath: of engines found dead there is one record each, told once, over restarts
// too; then the oldest rings go, and those of others stay.
func TestDeath(t *testing.T) {
	hubs := ringDir(t)
	var ids []string
	g := watchDir(t, time.Hour, func(dir string) {
		for i := range 4 {
			h := stuck(t, hubs)
			id := h.Ring().Info().RunID.String()
			b, err := os.ReadFile(crashed(t, h))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, id+spanring.Suffix)
			at := time.Now().Add(time.Duration(i-10) * time.Minute)
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		if err := os.WriteFile(filepath.Join(dir, "mine.ring"), []byte("no ring"), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	there := func() (out []string) {
		ps, err := g.dir.List()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ps {
			out = append(out, filepath.Base(p))
		}
		return out
	}
	eventually(t, "the oldest two are removed", func() bool { return len(there()) == 3 })
	for _, want := range []string{ids[2] + spanring.Suffix, ids[3] + spanring.Suffix, "mine.ring"} {
		if _, err := os.Lstat(filepath.Join(g.dir.Path, want)); err != nil {
			t.Errorf("%s is gone: %v", want, err)
		}
	}
	eventually(t, "four records are told", func() bool {
		return len(g.log.lines(`msg="flight record of an engine that died".* flight_record=`+g.records)) == 4
	})
	for _, id := range ids {
		if n := len(pages(t, g.records, Reason(id+"-"+string(Died)))); n != 1 {
			t.Errorf("run %s has %d records", id, n)
		}
	}
	if v := values(t, g.metrics, "lanetrace.flight.records"); v["died"] != 4 {
		t.Errorf("counted %v", v)
	}
	g.restart(t, time.Hour)
	eventually(t, "the two are read again", func() bool { return len(g.log.lines(`msg="engine died"`)) == 4+2 })
	if v := values(t, g.metrics, "lanetrace.flight.records"); v["died"] != 0 || len(pages(t, g.records, Died)) != 4 {
		t.Errorf("a second life made records: %v", v)
	}
}

// TestRecordCannotBeWritten: it is told and counted, and nothing else suffers.
func TestRecordCannotBeWritten(t *testing.T) {
	g := &watched{dir: spanring.Dir{Path: ringDir(t), Group: -1}, records: filepath.Join(t.TempDir(), "flight")}
	h := stuck(t, ringDir(t))
	g.restart(t, time.Hour)
	if err := os.RemoveAll(g.records); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(crashed(t, h), filepath.Join(g.dir.Path, h.Ring().Info().RunID.String()+spanring.Suffix)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the failure is counted", func() bool { return values(t, g.metrics, "lanetrace.flight.failed")["died"] == 1 })
	eventually(t, "the death is told all the same", func() bool { return len(g.log.lines(`msg="engine died"`)) == 1 })
	eventually(t, "the failure is told", func() bool { return len(g.log.lines("no flight record")) == 1 })
}
