package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/internal/synth"
)

func testRecording(t *testing.T, engines ...synth.Options) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.ltrec")
	if err := makeRecording(path, engines...); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantSpan is a span as a reader of OTLP sees it.
type wantSpan struct {
	Trace, Span, Parent, Name string
	StartNS, EndNS            uint64
}

// spansOf are the spans that each step of a recording comes to, straight from the
// collector's model.
func spansOf(t *testing.T, path string) (out [][]wantSpan) {
	t.Helper()
	f, err := recording.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range f.Runs() {
		src, err := f.Source(i)
		if err != nil {
			t.Fatal(err)
		}
		p, err := collector.NewProcessor(src, collector.ProcessorOptions{Observers: []collector.Observer{collector.ObserverFunc(func(s *collector.Step) {
			id := collector.StepTraceID(s.Engine.RunID(), s.Number)
			a, b := s.Bounds()
			add := func(span, parent, name string, a, b int64) wantSpan {
				return wantSpan{id.String(), span, parent, name, uint64(s.UnixNS(a)), uint64(s.UnixNS(b))}
			}
			spans := []wantSpan{add(id.RootID().String(), "", "step", a, b)}
			if s.HasEnd {
				spans = append(spans, add(id.HostID().String(), id.RootID().String(), "host", s.BeginMonoNS, s.EndMonoNS))
			}
			for j := range s.Spans {
				sp := &s.Spans[j]
				parent := id.RootID()
				if k := s.ParentOf(j); k >= 0 {
					parent = id.SpanID(s.Spans[k].Ordinal)
				}
				spans = append(spans, add(id.SpanID(sp.Ordinal).String(), parent.String(), sp.Text.Text, sp.StartMonoNS, sp.StartMonoNS+int64(sp.DurationNS())))
			}
			out = append(out, spans)
		})}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Drain(); err != nil {
			t.Fatal(err)
		}
		p.Close()
	}
	return out
}

// otlpLine is what is looked at of a line of OTLP/JSON.
type otlpLine struct {
	ResourceSpans []struct {
		Resource struct {
			Attributes []struct {
				Key   string
				Value struct{ StringValue string }
			}
		}
		ScopeSpans []struct {
			Spans []struct {
				TraceID, SpanID, ParentSpanID, Name string
				StartTimeUnixNano, EndTimeUnixNano  string
				Kind                                int
			}
		}
	}
}

func TestReplayOTLPJSON(t *testing.T) {
	path := testRecording(t, synth.Options{Duration: 100 * time.Millisecond, FailEvery: 30}, synth.Options{Duration: 30 * time.Millisecond, Seed: 1, Service: "other"})
	c := start(t, "replay", path, "--speed", "max", "--format", "otlp-json")
	if code := c.wait(t); code != 0 || c.err.String() != "" {
		t.Fatalf("exit code %d, stderr %q", code, c.err.String())
	}
	want := make(map[string][]wantSpan)
	for _, s := range spansOf(t, path) {
		want[s[0].Trace] = s
	}
	if len(want) < 150 {
		t.Fatalf("%d steps in the recording", len(want))
	}
	got := make(map[string][]wantSpan)
	services := make(map[string]int)
	sc := bufio.NewScanner(strings.NewReader(c.out.String()))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var l otlpLine
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatalf("line %q: %v", sc.Text(), err)
		}
		if len(l.ResourceSpans) != 1 || len(l.ResourceSpans[0].ScopeSpans) != 1 {
			t.Fatalf("line %q: want one resource and one scope", sc.Text())
		}
		for _, a := range l.ResourceSpans[0].Resource.Attributes {
			if a.Key == "service.name" {
				services[a.Value.StringValue]++
			}
		}
		for _, s := range l.ResourceSpans[0].ScopeSpans[0].Spans {
			ns := func(text string) uint64 {
				v, err := strconv.ParseUint(text, 10, 64)
				if err != nil {
					t.Fatalf("time %q: %v", text, err)
				}
				return v
			}
			got[s.TraceID] = append(got[s.TraceID], wantSpan{s.TraceID, s.SpanID, s.ParentSpanID, s.Name, ns(s.StartTimeUnixNano), ns(s.EndTimeUnixNano)})
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("spans (-recording +replay):\n%s", d)
	}
	if services["synthetic-decode"]+services["other"] != len(want) || services["other"] == 0 {
		t.Errorf("services %v of %d steps", services, len(want))
	}
}

// TestReplayChrome: the spans of a recording are those of the trace, to the
// nanosecond.
func TestReplayChrome(t *testing.T) {
	path := testRecording(t, synth.Options{Duration: 200 * time.Millisecond, FailEvery: 30})
	c := start(t, "replay", path, "--speed", "max", "--format", "chrome")
	if code := c.wait(t); code != 0 || c.err.String() != "" {
		t.Fatalf("exit code %d, stderr %q", code, c.err.String())
	}
	var d struct {
		OtherData   struct{ Base_unix_ns string }
		TraceEvents []struct {
			Ph, Name string
			Ts, Dur  json.Number
			ID2      struct{ Local string }
		}
	}
	if err := json.Unmarshal([]byte(c.out.String()), &d); err != nil {
		t.Fatal(err)
	}
	ns := func(n json.Number) uint64 {
		v, err := strconv.ParseUint(strings.Replace(n.String(), ".", "", 1), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	base, err := strconv.ParseUint(d.OtherData.Base_unix_ns, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	got, want := make(map[wantSpan]int), make(map[wantSpan]int)
	begun := make(map[string]uint64)
	for _, e := range d.TraceEvents {
		switch e.Ph {
		case "X":
			got[wantSpan{Name: e.Name, StartNS: base + ns(e.Ts), EndNS: base + ns(e.Ts) + ns(e.Dur)}]++
		case "b":
			begun[e.ID2.Local] = base + ns(e.Ts)
		case "e":
			got[wantSpan{Name: e.Name, StartNS: begun[e.ID2.Local], EndNS: base + ns(e.Ts)}]++
		}
	}
	for _, step := range spansOf(t, path) {
		for _, s := range step {
			want[wantSpan{Name: s.Name, StartNS: s.StartNS, EndNS: s.EndNS}]++
		}
	}
	if d := cmp.Diff(want, got); d != "" || len(want) < 500 {
		t.Errorf("%d spans (-recording +trace):\n%s", len(want), d)
	}
}

// receiver is an OTLP receiver that counts.
type receiver struct {
	coltracepb.UnimplementedTraceServiceServer

	refuse    atomic.Bool  // every request, for good
	away      atomic.Bool  // every request, for now
	reject    atomic.Int64 // so many spans of the next request, which is taken
	discard   atomic.Bool  // spans are only counted
	discarded atomic.Int64

	mu     sync.Mutex
	traces map[string]int    // spans by trace id
	spans  map[string]string // encoded, by trace id, span id and what the host's part is called
}

// take returns the spans received since the last time.
func (r *receiver) take() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.spans
	r.spans = make(map[string]string)
	return s
}

func (r *receiver) Export(_ context.Context, req *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	if r.refuse.Load() {
		return nil, status.Error(codes.PermissionDenied, "not now")
	}
	if r.away.Load() {
		return nil, status.Error(codes.Unavailable, "away")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range req.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			if r.discard.Load() {
				r.discarded.Add(int64(len(ss.Spans)))
				continue
			}
			for _, s := range ss.Spans {
				r.traces[fmt.Sprintf("%x", s.TraceId)]++
				b, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
				if err != nil {
					return nil, err
				}
				id := fmt.Sprintf("%x %x", s.TraceId, s.SpanId)
				if s.Name == "host" {
					id += " host"
				}
				r.spans[id] = string(b)
			}
		}
	}
	if n := r.reject.Swap(0); n > 0 {
		return &coltracepb.ExportTraceServiceResponse{PartialSuccess: &coltracepb.ExportTracePartialSuccess{RejectedSpans: n, ErrorMessage: "some"}}, nil
	}
	return &coltracepb.ExportTraceServiceResponse{}, nil
}

// serveReceiver starts a receiver and returns its URL.
func serveReceiver(t *testing.T) (*receiver, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{traces: make(map[string]int), spans: make(map[string]string)}
	s := grpc.NewServer()
	coltracepb.RegisterTraceServiceServer(s, r)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return r, "http://" + l.Addr().String()
}

func TestReplayToEndpoint(t *testing.T) {
	path := testRecording(t, synth.Options{Duration: 300 * time.Millisecond, FailEvery: 30})
	r, url := serveReceiver(t)
	c := start(t, "replay", path, "--speed", "max", "--otlp-endpoint", url, "--every", "50", "--budget", "0")
	if code := c.wait(t); code != 0 {
		t.Fatalf("exit code %d, stderr %q", code, c.err.String())
	}
	sent := 0
	for _, n := range r.traces {
		sent += n - 1 // the host's part is a span of its own on the wire alone
	}
	if want := fmt.Sprintf("lanetrace: sending traces to %s\nlanetrace: sent %s spans\n", url, report.Count(uint64(sent))); c.err.String() != want || c.out.String() != "" {
		t.Errorf("stderr %q, want %q; stdout %q", c.err.String(), want, c.out.String())
	}
	// The live selection: armed, failed and one in fifty.
	want := make(map[string]int)
	f, err := recording.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	id := f.Runs()[0].Info.RunID
	for i, s := range spansOf(t, path) {
		n := uint64(i + 1)
		for ; collector.StepTraceID(id, n).String() != s[0].Trace; n = n%1000 + 1 {
			if n > 1000 {
				t.Fatalf("trace %s is of no step", s[0].Trace)
			}
		}
		if n%64 == 0 || n%30 == 0 || n%50 == 0 {
			want[s[0].Trace] = len(s)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := cmp.Diff(want, r.traces); d != "" || len(want) < 10 {
		t.Errorf("spans by trace (-want +got):\n%s", d)
	}
}

// A receiver that is away costs a replay its exit code, after all it could do.
func TestReplayInterrupted(t *testing.T) {
	path := testRecording(t, synth.Options{Duration: 2 * time.Second, KernelEvery: -1})
	c := start(t, "replay", path, "--speed", "0.01")
	eventually(t, "first step", func() bool { return true })
	c.stop()
	if code := c.wait(t); code != 1 || c.err.String() != "lanetrace: interrupted: the recording was not played to its end\n" {
		t.Errorf("exit code %d, stderr %q", code, c.err.String())
	}
}

// manualClock jumps over every wait.
type manualClock struct {
	now    int64
	sleeps []time.Duration
}

func (m *manualClock) MonoNS() int64 { return m.now }
func (m *manualClock) Sleep(_ context.Context, d time.Duration) error {
	m.now += int64(d)
	m.sleeps = append(m.sleeps, d)
	return nil
}

// Played at a factor, a recording takes its own length by that factor.
func TestReplayPace(t *testing.T) {
	path := testRecording(t, synth.Options{Duration: 400 * time.Millisecond})
	for _, factor := range []float64{0.5, 1, 4} {
		f, err := recording.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		src, err := f.Source(0)
		if err != nil {
			t.Fatal(err)
		}
		run := f.Runs()[0]
		r := &replayRun{playable: playable{info: run.Info, startUnixNS: run.StartMonoNS + run.WallOffsetNS, source: func() (replaySource, error) { return src, nil }}}
		clock := &manualClock{now: 99}
		p := playing{waiting: []*replayRun{r}, factor: factor, clock: clock, each: func(int64) error { return nil }}
		if err := p.play(t.Context()); err != nil {
			t.Fatal(err)
		}
		length := float64(f.Runs()[0].EndMonoNS - f.Runs()[0].StartMonoNS)
		if took := float64(clock.now-99) * factor; took > length || took < length-50e6 {
			t.Errorf("factor %g: took %v of the recording's %v", factor, time.Duration(took), time.Duration(length))
		}
		if len(clock.sleeps) < 10 {
			t.Errorf("factor %g: slept %d times", factor, len(clock.sleeps))
		}
		f.Close()
	}
}

func TestOutIsClosedOnFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full")
	}
	path := testRecording(t, synth.Options{Duration: 100 * time.Millisecond})
	for _, format := range []string{"text", "otlp-json", "chrome"} {
		c := start(t, "replay", path, "--speed", "max", "--format", format, "--out", "/dev/full")
		if code := c.wait(t); code != 1 || strings.Count(c.err.String(), "\n") != 1 || !strings.Contains(c.err.String(), "no space left on device") {
			t.Errorf("%s: exit code %d, stderr %q", format, code, c.err.String())
		}
	}
}
