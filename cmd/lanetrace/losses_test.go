package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/exporters/otlp"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// graphDriver is the scripted driver with events inside graphs: a record in a
// capture is noted, and replay does them all.
type graphDriver struct {
	*scripted.Driver
	nodes []cudaevents.Event
}

func (d *graphDriver) RecordExternal(e cudaevents.Event, _ cudaevents.Stream) cudaevents.Result {
	d.nodes = append(d.nodes, e)
	return cudaevents.Success
}

func (d *graphDriver) replay(s cudaevents.Stream) bool {
	for _, e := range d.nodes {
		d.Record(e, s)
	}
	return true
}

// losses is an engine, and a sidecar that reads it and sends to a receiver.
type losses struct {
	t    *testing.T
	hub  *lanetrace.Hub
	dev  *lanetrace.Device
	drv  *graphDriver
	lane lanetrace.LaneID
	rcv  *receiver
	exp  *otlp.Exporter
	web  string
}

const (
	lossPairs   = 8
	lossLog     = 4096
	lossQueue   = 20_000
	lossRequest = 4_000
)

func newLosses(t *testing.T) *losses {
	t.Helper()
	g := &losses{t: t, drv: &graphDriver{Driver: scripted.New(scripted.Options{RealTime: true})}}
	dir := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	if err := dir.Make(); err != nil {
		t.Fatal(err)
	}
	var err error
	g.hub, err = lanetrace.Open(lanetrace.Config{
		Level: "lane", Dir: dir.Path, Service: "lossy", Pairs: lossPairs, RingBytes: 512 << 10, HarvestEvery: -1,
		Abandon: 30 * time.Millisecond, NoCalibration: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		err = g.hub.Disabled()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.hub.Close(context.Background()) })
	if g.dev, err = g.hub.Attach(g.drv); err != nil {
		t.Fatal(err)
	}
	g.lane = g.hub.Lane("decode")

	var url string
	g.rcv, url = serveReceiver(t)
	ctx, stop := context.WithCancel(context.Background())
	a := &app{ctx: ctx, stdout: new(output), stderr: new(output), getenv: func(string) string { return "" }, log: newLogger(new(output))}
	s, err := a.newService(serviceOptions{listen: "127.0.0.1:0", ins: collector.NewInstruments(collector.InstrumentOptions{}), dir: dir, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if s.exp, err = otlp.NewExporter(otlp.Options{
		Endpoint: url, QueueBytes: lossQueue, MaxRequestBytes: lossRequest, FlushEvery: time.Millisecond,
		MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond,
	}); err != nil {
		t.Fatal(err)
	}
	g.exp = s.exp
	read := make(chan error, 1)
	go func() { read <- s.read(ctx, dir, (&selectFlags{Every: 1}).selection(nil), nil) }()
	web := httptest.NewServer(s.handler())
	g.web = web.URL
	t.Cleanup(func() {
		stop()
		web.Close()
		if err := <-read; err != nil {
			t.Error(err)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the engine is read", func() bool { return len(accountsOf(t, g.web)) == 1 })
	return g
}

// step is one step with as many lanes, whose work is done when it returns.
func (g *losses) step(lanes int) {
	st := g.hub.StepBegin()
	for range lanes {
		l := g.dev.LaneBegin(st, g.lane, 0)
		g.drv.Work(0, 100_000)
		l.End()
	}
	st.End()
	g.land()
}

// land waits until the GPU has done what is queued, and reads it.
func (g *losses) land() {
	g.t.Helper()
	eventually(g.t, "the pairs land", func() bool {
		g.hub.Harvest()
		c := g.hub.Ring().Counters()
		return c.InFlight() == 0
	})
}

// settled waits until nothing moves and returns the account.
func (g *losses) settled() (a collector.Account) {
	g.t.Helper()
	published := func() uint64 { return g.hub.Ring().Published() }
	eventually(g.t, "everything is read and sent", func() bool {
		a = accountsOf(g.t, g.web)[0]
		return a.Reader.Published == published() && a.Reader.Pending == 0 && a.Sidecar.Pending == 0 && a.Reader.Received+a.Reader.Lost == a.Reader.Published
	})
	if u := a.Unbalanced(); len(u) > 0 {
		g.t.Errorf("unbalanced %v: %+v", u, a)
	}
	return a
}

// sums is everything of an account that is counted, flat, without what is 0.
func sums(a *collector.Account) map[string]uint64 {
	m := map[string]uint64{
		"begun": a.Producer.Begun, "landed": a.Producer.Landed, "pool full": a.Producer.Dropped, "in flight": uint64(a.Producer.InFlight),
		"received": a.Sidecar.Received, "exported": a.Sidecar.Exported, "rejected": a.Sidecar.Rejected, "pending": a.Sidecar.Pending,
	}
	for r, n := range a.Producer.Failed {
		m["failed "+r] = n
	}
	for r, n := range a.Sidecar.Dropped {
		m["dropped "+r] = n
	}
	for r, n := range a.Sidecar.NotSelected {
		m["not selected "+r] = n
	}
	for k, n := range m {
		if n == 0 {
			delete(m, k)
		}
	}
	return m
}

// TestEveryLoss drives every way to lose a span through the producer's code, a
// ring, the sidecar's pipeline and a receiver, one after the other. After each the
// account balances and has grown by exactly what was done.
func TestEveryLoss(t *testing.T) {
	g := newLosses(t)
	before := g.settled()
	for _, stage := range []struct {
		name string
		do   func()
		want map[string]uint64
	}{
		{"no loss", func() {
			for range 10 {
				g.step(2)
			}
		}, map[string]uint64{"begun": 30, "landed": 30, "received": 30, "exported": 30}},

		{"pool full", func() {
			g.drv.Stall(0)
			st := g.hub.StepBegin()
			for range lossPairs + 3 {
				l := g.dev.LaneBegin(st, g.lane, 0)
				g.drv.Work(0, 1000)
				l.End()
			}
			st.End()
			g.drv.Release(0)
			g.land()
		}, map[string]uint64{"begun": 1 + lossPairs + 3, "landed": 1 + lossPairs, "pool full": 3, "received": 1 + lossPairs, "exported": 1 + lossPairs}},

		{"record failed", func() {
			g.drv.Fail(scripted.Record, 1, 719)
			g.step(2)
		}, map[string]uint64{"begun": 3, "landed": 2, "failed record": 1, "received": 2, "exported": 2}},

		{"refused", func() {
			bad := true
			g.drv.OnElapsed(func(_ cudaevents.Pair, at *cudaevents.Times) cudaevents.Result {
				if bad {
					at.DurationMS, bad = float32(math.NaN()), false
				}
				return cudaevents.Success
			})
			g.step(2)
			g.drv.OnElapsed(nil)
		}, map[string]uint64{"begun": 3, "landed": 2, "failed not_finite": 1, "received": 2, "exported": 2}},

		{"abandoned", func() {
			st := g.hub.StepBegin()
			g.dev.LaneBegin(st, g.lane, 0)
			st.End()
			g.land()
		}, map[string]uint64{"begun": 2, "landed": 1, "failed abandoned": 1, "received": 1, "exported": 1}},

		{"replayed", func() {
			graph := g.dev.GraphCapture(0)
			st := g.hub.StepBegin()
			g.dev.LaneBegin(st, g.lane, 0).End()
			g.dev.GraphCaptured(0)
			g.drv.Stall(0)
			outer := g.dev.LaneBegin(st, g.hub.Lane("graphs"), 0)
			launch := func() bool { return g.drv.replay(0) }
			g.dev.GraphReplay(graph, 0, launch)
			g.dev.GraphReplay(graph, 0, launch) // while the first still waits
			outer.End()
			st.End()
			g.drv.Release(0)
			g.land()
			if err := graph.Close(); err != nil {
				t.Error(err)
			}
		}, map[string]uint64{"begun": 4, "landed": 3, "failed replayed": 1, "received": 3, "exported": 3}},

		{"rejected", func() {
			g.rcv.reject.Store(2)
			g.step(2)
		}, map[string]uint64{"begun": 3, "landed": 3, "received": 3, "exported": 1, "rejected": 2}},

		{"refused by the receiver", func() {
			g.rcv.refuse.Store(true)
			g.step(2)
			g.settled()
			g.rcv.refuse.Store(false)
		}, map[string]uint64{"begun": 3, "landed": 3, "received": 3, "dropped refused": 3}},

		{"oversize", func() {
			// The step's own span carries an event of each failure.
			g.drv.FailAll(scripted.Record, 719)
			st := g.hub.StepBegin()
			for range 60 {
				g.dev.LaneBegin(st, g.lane, 0).End()
			}
			g.drv.Heal(scripted.Record)
			l := g.dev.LaneBegin(st, g.lane, 0)
			g.drv.Work(0, 1000)
			l.End()
			st.End()
			g.land()
		}, map[string]uint64{"begun": 62, "landed": 2, "failed record": 60, "received": 2, "dropped oversize": 1, "exported": 1}},
	} {
		stage.do()
		after := g.settled()
		got := sums(&after)
		for k, n := range sums(&before) {
			if got[k] -= n; got[k] == 0 {
				delete(got, k)
			}
		}
		if d := cmp.Diff(stage.want, got); d != "" {
			t.Fatalf("%s (-want +counted):\n%s", stage.name, d)
		}
		before = after
	}

	// The receiver is away until the queue is full, and comes back.
	g.rcv.away.Store(true)
	steps := uint64(0)
	eventually(t, "the queue is full", func() bool {
		g.step(2)
		steps++
		return accountsOf(t, g.web)[0].Sidecar.Dropped["queue_full"] > 0
	})
	g.rcv.away.Store(false)
	after := g.settled()
	full := after.Sidecar.Dropped["queue_full"]
	if got := after.Sidecar.Exported - before.Sidecar.Exported; got+full != 3*steps || got == 0 {
		t.Errorf("queue full: %d exported and %d dropped of %d", got, full, 3*steps)
	}

	// More is written than the log holds before it is read.
	for i := 0; accountsOf(t, g.web)[0].Reader.Lost == 0; i++ {
		if i == 1000 {
			t.Fatal("nothing is overwritten")
		}
		for range 4 * lossLog {
			g.hub.StepBegin().End()
		}
	}
	after = g.settled()
	if after.Reader.LostBy["overwritten"] == 0 || after.Reader.Lost != after.Reader.LostBy["overwritten"] {
		t.Errorf("lost: %+v", after.Reader)
	}

	// Every drop is known elsewhere too: to the receiver, in metrics, in the report.
	units := uint64(0)
	for id := range g.rcv.take() {
		if !strings.HasSuffix(id, " host") {
			units++
		}
	}
	if units != after.Sidecar.Exported+after.Sidecar.Rejected {
		t.Errorf("the receiver has %d spans, %d were exported and %d rejected", units, after.Sidecar.Exported, after.Sidecar.Rejected)
	}
	compareMetrics(t, g.web, &after)
	c := start(t, "report", "--json", "--dir", filepath.Dir(g.hub.Ring().Path()))
	if code := c.wait(t); code != 0 {
		t.Fatalf("report: exit code %d, stderr %s", code, c.err.String())
	}
	var rep struct {
		Engines []struct {
			Account struct {
				Producer   collector.ProducerAccount
				Reader     collector.ReaderAccount
				Unbalanced []string
			}
		}
	}
	if err := json.Unmarshal([]byte(c.out.String()), &rep); err != nil || len(rep.Engines) != 1 {
		t.Fatalf("report: %v, %d engines", err, len(rep.Engines))
	}
	if d := cmp.Diff(after.Producer, rep.Engines[0].Account.Producer); d != "" {
		t.Errorf("producer (-sidecar +report):\n%s", d)
	}
	if a := rep.Engines[0].Account; a.Reader.Published != after.Reader.Published || len(a.Unbalanced) > 0 {
		t.Errorf("report: %+v", a)
	}
}

// compareMetrics checks that metrics tell what the account does.
func compareMetrics(t *testing.T, url string, a *collector.Account) {
	t.Helper()
	_, _, text := fetch(t, "GET", url+"/metrics")
	p := expfmt.NewTextParser(model.UTF8Validation)
	fams, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]uint64)
	for name, f := range fams {
		for _, m := range f.Metric {
			key := strings.TrimPrefix(name, "lanetrace_")
			for _, l := range m.Label {
				if l.GetName() == "reason" {
					key += " " + l.GetValue()
				}
			}
			got[key] = uint64(m.GetCounter().GetValue() + m.GetGauge().GetValue())
		}
	}
	want := map[string]uint64{
		"spans_begun_total": a.Producer.Begun, "spans_landed_total": a.Producer.Landed, "spans_in_flight": uint64(a.Producer.InFlight),
		"spans_dropped_total pool_full": a.Producer.Dropped,
		"entries_published_total":       a.Reader.Published, "entries_received_total": a.Reader.Received,
		"entries_missed_before_attach_total": a.Reader.MissedBeforeAttach, "entries_pending": a.Reader.Pending,
		"sidecar_spans_received_total": a.Sidecar.Received, "sidecar_spans_exported_total": a.Sidecar.Exported,
		"sidecar_spans_rejected_total": a.Sidecar.Rejected, "sidecar_spans_pending": a.Sidecar.Pending,
	}
	for name, reasons := range map[string]map[string]uint64{
		"spans_failed_total": a.Producer.Failed, "entries_lost_total": a.Reader.LostBy,
		"sidecar_spans_dropped_total": a.Sidecar.Dropped, "sidecar_spans_not_selected_total": a.Sidecar.NotSelected,
	} {
		for r, n := range reasons {
			want[name+" "+r] = n
		}
	}
	for k, n := range want {
		if v, ok := got[k]; !ok || v != n {
			t.Errorf("metric %s: %d (there %v), the account says %d", k, v, ok, n)
		}
	}
}

// TestNoLoss: with one step in a hundred exported and no fault, every drop counter
// reads 0.
func TestNoLoss(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rings")
	if err := (spanring.Dir{Path: dir, Group: -1}).Make(); err != nil {
		t.Fatal(err)
	}
	r, url := serveReceiver(t)
	c := start(t, "sidecar", "--dir", dir, "--listen", "127.0.0.1:0", "--otlp-endpoint", url, "--every", "100", "--budget", "0")
	web := urlIn(t, &c.err)
	playInto(t, dir, synth.Options{Duration: time.Second, KernelEvery: -1})
	var a collector.Account
	eventually(t, "everything is sent", func() bool {
		as := accountsOf(t, web)
		if len(as) == 1 {
			a = as[0]
		}
		return a.State == "ended" && a.Sidecar.Pending == 0
	})
	got := sums(&a)
	want := map[string]uint64{"begun": a.Producer.Begun, "landed": a.Producer.Begun, "received": a.Producer.Begun, "exported": got["exported"]}
	for k, n := range got {
		if strings.HasPrefix(k, "not selected") {
			want[k] = n
		}
	}
	if d := cmp.Diff(want, got); d != "" || a.Reader.Lost != 0 || a.Reader.MissedBeforeAttach != 0 || len(a.Unbalanced()) > 0 {
		t.Errorf("account %+v (-want +got):\n%s", a, d)
	}
	if a.Sidecar.Exported == 0 || a.Sidecar.Exported > a.Sidecar.Received/4 {
		t.Errorf("%d of %d exported", a.Sidecar.Exported, a.Sidecar.Received)
	}
	compareMetrics(t, web, &a)
	for id := range r.take() {
		if !strings.HasSuffix(id, " host") {
			a.Sidecar.Exported--
		}
	}
	if a.Sidecar.Exported != 0 {
		t.Errorf("the receiver's spans and those exported differ by %d", int64(a.Sidecar.Exported))
	}
	c.stop()
	if code := c.wait(t); code != 0 {
		t.Errorf("exit code %d, stderr %s", code, c.err.String())
	}
}
