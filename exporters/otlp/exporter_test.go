package otlp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lanetrace/lanetrace/collector"
)

// server is a receiver in this process.
type server struct {
	coltracepb.UnimplementedTraceServiceServer
	addr string

	mu       sync.Mutex
	requests []*coltracepb.ExportTraceServiceRequest
	answer   func(n int) (*coltracepb.ExportTraceServiceResponse, error)
	tries    int
	got      chan struct{}
}

func newServer(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: "http://" + l.Addr().String(), got: make(chan struct{}, 100)}
	g := grpc.NewServer() // with its default limit of 4 MiB a request
	coltracepb.RegisterTraceServiceServer(g, s)
	served := make(chan struct{})
	go func() { defer close(served); g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-served })
	return s
}

func (s *server) Export(_ context.Context, r *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	defer func() { s.got <- struct{}{} }()
	if s.answer != nil {
		if a, err := s.answer(s.tries); a != nil || err != nil {
			if err == nil {
				s.requests = append(s.requests, r)
			}
			return a, err
		}
	}
	s.requests = append(s.requests, r)
	return &coltracepb.ExportTraceServiceResponse{}, nil
}

// spans are all spans received, by service instance.
func (s *server) spans() map[string][]*tracepb.Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string][]*tracepb.Span{}
	for _, r := range s.requests {
		for _, rs := range r.ResourceSpans {
			id := ""
			for _, a := range rs.Resource.Attributes {
				if a.Key == "service.instance.id" {
					id = a.Value.GetStringValue()
				}
			}
			for _, ss := range rs.ScopeSpans {
				out[id] = append(out[id], ss.Spans...)
			}
		}
	}
	return out
}

func (s *server) wait(t *testing.T, tries int) {
	t.Helper()
	for range tries {
		select {
		case <-s.got:
		case <-time.After(time.Minute):
			t.Fatal("no request within a minute")
		}
	}
}

func shutdown(t *testing.T, x *Exporter) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return x.Shutdown(ctx)
}

func newExporter(t *testing.T, o Options) *Exporter {
	t.Helper()
	x, err := NewExporter(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		x.Shutdown(ctx)
	})
	return x
}

func TestReceiverGetsEverySpan(t *testing.T) {
	s := newServer(t)
	x := newExporter(t, Options{Endpoint: s.addr, Version: "1.2.3", HostName: "h"})
	other := testInfo
	other.RunID[0] = 0xcd
	var ps []*collector.Processor
	for _, info := range []int{0, 1} {
		i := testInfo
		if info == 1 {
			i = other
		}
		src, p := newEngine(t, x, i)
		for n := uint64(1); n <= 100; n++ {
			src.push(simpleStep(n, 3)...)
		}
		poll(t, p)
		ps = append(ps, p)
	}
	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	got := s.spans()
	for i, p := range ps {
		id := p.Engine().RunID().String()
		if len(got[id]) != 100*5 {
			t.Errorf("engine %d: %d spans arrived, want 500", i, len(got[id]))
		}
		want := collector.SidecarCounts{Received: 400, Exported: 400}
		if d := cmp.Diff(want, p.Engine().Ledger().Counts()); d != "" {
			t.Errorf("engine %d: ledger (-want +got):\n%s", i, d)
		}
	}
	if n := len(s.requests); n != 1 {
		t.Errorf("%d requests, want one for both engines", n)
	}
	if n := len(s.requests[0].ResourceSpans); n != 2 {
		t.Errorf("%d resources, want one for each engine", n)
	}
	// The bytes are whole: as the receiver sees them there is nothing unknown.
	if u := unknown(s.requests[0].ProtoReflect()); u != 0 {
		t.Errorf("%d bytes unknown to the receiver", u)
	}
	st := x.Stats()
	if st.Requests != [3]uint64{1, 0, 0} || st.SentBytes == 0 || st.QueueBytes != 0 {
		t.Errorf("stats %+v", st)
	}
}

// TestRequestsAreCut: more than a receiver takes at once, one step alone in several
// chunks.
func TestRequestsAreCut(t *testing.T) {
	s := newServer(t)
	x := newExporter(t, Options{Endpoint: s.addr})
	src, p := newEngine(t, x, testInfo)
	src.push(simpleStep(1, 2_000)...)
	for n := uint64(2); n <= 300; n++ {
		src.push(simpleStep(n, 100)...)
	}
	poll(t, p)
	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	units := uint64(2_001 + 299*101)
	if d := cmp.Diff(collector.SidecarCounts{Received: units, Exported: units}, p.Engine().Ledger().Counts()); d != "" {
		t.Errorf("ledger (-want +got):\n%s", d)
	}
	if n := len(s.spans()[testRun.String()]); n != int(units)+300 {
		t.Errorf("%d spans arrived, want %d", n, units+300)
	}
	if len(s.requests) < 3 {
		t.Errorf("%d requests", len(s.requests))
	}
	for _, r := range s.requests {
		if b := proto.Size(r); b > 3<<20 {
			t.Errorf("a request of %d bytes", b)
		}
	}
}

func TestPartialSuccess(t *testing.T) {
	s := newServer(t)
	s.answer = func(int) (*coltracepb.ExportTraceServiceResponse, error) {
		return &coltracepb.ExportTraceServiceResponse{PartialSuccess: &coltracepb.ExportTracePartialSuccess{
			RejectedSpans: 7, ErrorMessage: "too\nold",
		}}, nil
	}
	var log bytes.Buffer
	x := newExporter(t, Options{Endpoint: s.addr, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	src, p := newEngine(t, x, testInfo)
	for n := uint64(1); n <= 4; n++ {
		src.push(simpleStep(n, 3)...)
	}
	poll(t, p)
	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(collector.SidecarCounts{Received: 16, Exported: 9, Rejected: 7}, p.Engine().Ledger().Counts()); d != "" {
		t.Errorf("ledger (-want +got):\n%s", d)
	}
	if l := log.String(); strings.Count(l, "took a request in part") != 1 || !strings.Contains(l, "too old") || !strings.Contains(l, "rejected=7") {
		t.Errorf("log: %s", l)
	}
	if s.tries != 1 {
		t.Errorf("%d tries: a partial success must not be sent again", s.tries)
	}
}

func retryInfo(c codes.Code, d time.Duration) error {
	st, err := status.New(c, "busy").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d)})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

func TestRetryOverGRPC(t *testing.T) {
	for _, tt := range []struct {
		name    string
		err     error
		again   bool
		minWait time.Duration
	}{
		{"unavailable", status.Error(codes.Unavailable, "later"), true, 0},
		{"data loss", status.Error(codes.DataLoss, ""), true, 0},
		{"exhausted, told when", retryInfo(codes.ResourceExhausted, 30*time.Millisecond), true, 30 * time.Millisecond},
		{"exhausted, not told", status.Error(codes.ResourceExhausted, ""), false, 0},
		{"invalid", status.Error(codes.InvalidArgument, "no"), false, 0},
		{"unimplemented", status.Error(codes.Unimplemented, "no"), false, 0},
		{"denied", status.Error(codes.PermissionDenied, "no"), false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t)
			s.answer = func(n int) (*coltracepb.ExportTraceServiceResponse, error) {
				if n <= 2 {
					return nil, tt.err
				}
				return nil, nil
			}
			x := newExporter(t, Options{Endpoint: s.addr, MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond, FlushEvery: time.Millisecond})
			src, p := newEngine(t, x, testInfo)
			began := time.Now()
			src.push(simpleStep(1, 3)...)
			poll(t, p)
			want := collector.SidecarCounts{Received: 4}
			if tt.again {
				s.wait(t, 3)
				want.Exported = 4
			} else {
				s.wait(t, 1)
				want.Dropped[collector.DropRefused] = 4
			}
			if d := time.Since(began); d < 2*tt.minWait {
				t.Errorf("tried again after %v, told %v twice", d, tt.minWait)
			}
			if err := shutdown(t, x); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, p.Engine().Ledger().Counts()); d != "" {
				t.Errorf("ledger (-want +got):\n%s", d)
			}
		})
	}
}

// TestRetryDelays: what a receiver may ask for is bounded.
func TestRetryDelays(t *testing.T) {
	for _, tt := range []struct {
		err  error
		wait time.Duration
	}{
		{retryInfo(codes.Unavailable, time.Minute), time.Minute},
		{retryInfo(codes.Unavailable, -time.Minute), 0},
		{retryInfo(codes.ResourceExhausted, 1000*time.Hour), maxRetryAfter},
		{&httpError{status: 503, retryAfter: 5 * time.Second}, 5 * time.Second},
		{errors.New("connection refused"), 0},
	} {
		if again, wait := retryable(tt.err); !again || wait != tt.wait {
			t.Errorf("%v: again %v after %v, want %v", tt.err, again, wait, tt.wait)
		}
	}
}

// neverSent has x export a step of four spans to a receiver that is away, until that
// was tried three times, and shuts x down, which says what was not sent.
func neverSent(t *testing.T, x *Exporter) (*source, *collector.Processor) {
	t.Helper()
	src, p := newEngine(t, x, testInfo)
	src.push(simpleStep(1, 3)...)
	poll(t, p)
	deadline := time.After(time.Minute)
	for x.Stats().Requests[1] < 3 {
		select {
		case <-deadline:
			t.Fatal("not tried three times within a minute")
		case <-time.After(time.Millisecond):
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := x.Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "4 spans were not sent") {
		t.Errorf("Shutdown: %v", err)
	}
	return src, p
}

// nobody is where no receiver listens. A port that was free a moment ago may have
// become another test's.
const nobody = "http://127.0.0.1:1"

// TestUnreachable: nobody listens. Export does not wait, one warning is logged,
// and Shutdown says what was not sent.
func TestUnreachable(t *testing.T) {
	var log lockedBuffer
	x := newExporter(t, Options{
		Endpoint: nobody, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond, FlushEvery: time.Millisecond,
	})
	src, p := neverSent(t, x)
	want := collector.SidecarCounts{Received: 4}
	want.Dropped[collector.DropShutdown] = 4
	if d := cmp.Diff(want, p.Engine().Ledger().Counts()); d != "" {
		t.Errorf("ledger (-want +got):\n%s", d)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings: %s", n, log.String())
	}
	// What comes afterwards is dropped too, and the second Shutdown is the first.
	src.push(simpleStep(2, 3)...)
	poll(t, p)
	if c := p.Engine().Ledger().Counts(); c.Dropped[collector.DropShutdown] != 8 || c.Pending != 0 {
		t.Errorf("ledger %+v", c)
	}
	if err := x.Shutdown(context.Background()); err == nil {
		t.Error("the second Shutdown forgot the first's error")
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// fakeClient answers as a test says, without a network.
type fakeClient struct {
	mu     sync.Mutex
	at     []time.Time
	spans  []int
	steps  [][]int64
	answer func(try int) error
	hold   chan struct{} // when not nil, a request waits for it or its context
	stops  int
}

func (f *fakeClient) Start(context.Context) error { return nil }
func (f *fakeClient) Stop(context.Context) error  { f.stops++; return nil }
func (f *fakeClient) UploadTraces(ctx context.Context, rs []*tracepb.ResourceSpans) error {
	b, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: rs})
	if err != nil {
		return err
	}
	var m tracepb.TracesData
	if err := proto.Unmarshal(b, &m); err != nil {
		return err
	}
	n := 0
	var steps []int64
	for _, r := range m.ResourceSpans {
		n += len(r.ScopeSpans[0].Spans)
		for _, s := range r.ScopeSpans[0].Spans {
			if s.Name == spanStep {
				steps = append(steps, s.Attributes[0].Value.GetIntValue())
			}
		}
	}
	f.mu.Lock()
	f.steps = append(f.steps, steps)
	f.at = append(f.at, time.Now())
	f.spans = append(f.spans, n)
	try := len(f.at)
	hold := f.hold
	f.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if f.answer != nil {
		return f.answer(try)
	}
	return nil
}

// seen is when requests came, and how many spans they held.
func (f *fakeClient) seen() (at []time.Time, spans []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.at), slices.Clone(f.spans)
}

// TestBatching on a false clock: spans wait for company, but not for long, and
// not when there are many.
func TestBatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		x := newExporter(t, Options{Client: f, FlushEvery: time.Second, FlushBytes: 20_000})
		src, p := newEngine(t, x, testInfo)
		start := time.Now()
		export := func(n uint64, lanes int) {
			src.push(simpleStep(n, lanes)...)
			poll(t, p)
		}
		export(1, 1)
		time.Sleep(300 * time.Millisecond)
		export(2, 1)
		time.Sleep(5 * time.Second)
		export(3, 200) // enough at once
		synctest.Wait()
		time.Sleep(time.Second)
		at, spans := f.seen()
		var got []time.Duration
		for _, a := range at {
			got = append(got, a.Sub(start))
		}
		if d := cmp.Diff([]time.Duration{time.Second, 5300 * time.Millisecond}, got); d != "" {
			t.Errorf("requests (-want +got):\n%s", d)
		}
		if d := cmp.Diff([]int{6, 202}, spans); d != "" {
			t.Errorf("spans (-want +got):\n%s", d)
		}
	})
}

// TestBackoff on a false clock: the wait doubles up to its bound, with jitter,
// and begins anew after a success.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{answer: func(try int) error {
			if try == 9 {
				return nil
			}
			return status.Error(codes.Unavailable, "")
		}}
		x := newExporter(t, Options{Client: f, FlushEvery: time.Second, MinBackoff: time.Second, MaxBackoff: 30 * time.Second})
		src, p := newEngine(t, x, testInfo)
		src.push(simpleStep(1, 1)...)
		poll(t, p)
		time.Sleep(5 * time.Minute)
		at, _ := f.seen()
		if c := p.Engine().Ledger().Counts(); c.Exported != 2 {
			t.Fatalf("ledger %+v after %d tries", c, len(at))
		}
		for i, most := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
			most *= time.Second
			if d := at[i+1].Sub(at[i]); d < most/2 || d > most {
				t.Errorf("try %d came %v after the one before, want %v to %v", i+2, d, most/2, most)
			}
		}
		// A new failure begins at the shortest wait.
		n := len(at)
		src.push(simpleStep(2, 1)...)
		poll(t, p)
		time.Sleep(3 * time.Second)
		if at, _ = f.seen(); len(at) < n+2 || at[n+1].Sub(at[n]) > time.Second {
			t.Errorf("tries at %v", at[n:])
		}
	})
}

// TestQueueDropsTheOldest while the receiver is away, and keeps what is on its
// way.
func TestQueueDropsTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{hold: make(chan struct{})}
		x := newExporter(t, Options{Client: f, FlushEvery: time.Millisecond, QueueBytes: 20_000, MaxRequestBytes: 6500})
		src, p := newEngine(t, x, testInfo)
		export := func(from, to uint64) {
			for n := from; n <= to; n++ {
				src.push(simpleStep(n, 3)...)
			}
			poll(t, p)
		}
		export(1, 3)
		time.Sleep(10 * time.Millisecond) // on its way, and held
		export(4, 100)
		synctest.Wait()
		st := x.Stats()
		c := p.Engine().Ledger().Counts()
		dropped := c.Dropped[collector.DropQueueFull]
		if st.QueueBytes > 20_000 || st.QueueBytes < 15_000 || dropped == 0 || c.Pending+dropped != 400 {
			t.Fatalf("queue %d bytes, ledger %+v", st.QueueBytes, c)
		}
		close(f.hold)
		f.mu.Lock()
		f.hold = nil
		f.mu.Unlock()
		if err := x.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		// Steps 1 to 3 were on their way, the newest were kept.
		if _, spans := f.seen(); spans[0] != 3*5 {
			t.Errorf("first request had %d spans", spans[0])
		}
		c = p.Engine().Ledger().Counts()
		if c.Pending != 0 || c.Exported+dropped != 400 || c.Dropped[collector.DropQueueFull] != dropped {
			t.Errorf("ledger %+v", c)
		}
		if a := p.Engine().Account(); len(a.Unbalanced()) > 0 {
			t.Errorf("unbalanced %v", a.Unbalanced())
		}
		if f.stops != 1 {
			t.Errorf("client stopped %d times", f.stops)
		}
	})
}

// TestQueueDropsWhatWaitsForARetry: in an outage the oldest go first, those of
// the request that failed among them.
func TestQueueDropsWhatWaitsForARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		f := &fakeClient{answer: func(int) error {
			if up.Load() {
				return nil
			}
			return errors.New("connection refused")
		}}
		x := newExporter(t, Options{Client: f, FlushEvery: time.Millisecond, QueueBytes: 10_000, MinBackoff: time.Minute, MaxBackoff: time.Minute})
		src, p := newEngine(t, x, testInfo)
		src.push(simpleStep(1, 3)...)
		poll(t, p)
		time.Sleep(time.Second)
		for n := uint64(2); n <= 100; n++ {
			src.push(simpleStep(n, 3)...)
		}
		poll(t, p)
		kept := p.Engine().Ledger().Counts().Pending
		up.Store(true)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		c := p.Engine().Ledger().Counts()
		if c.Exported != kept || c.Pending != 0 || c.Exported+c.Dropped[collector.DropQueueFull] != 400 {
			t.Errorf("kept %d, ledger %+v", kept, c)
		}
		sent := 0
		_, spans := f.seen()
		// The newest are there and nothing else, step 1 not among them.
		first := 100 - int64(kept)/4 + 1
		for _, steps := range f.steps[1:] {
			for _, n := range steps {
				if n != first {
					t.Fatalf("step %d sent, want %d", n, first)
				}
				first++
			}
		}
		if d := cmp.Diff([]int64{1}, f.steps[0]); d != "" || first != 101 {
			t.Errorf("sent up to step %d; the first request (-want +got):\n%s", first-1, d)
		}
		for _, n := range spans[1:] {
			sent += n
		}
		if want := int(kept) / 4 * 5; sent != want {
			t.Errorf("%d spans sent after the outage, want %d", sent, want)
		}
	})
}

// TestShutdownFlushesAtOnce: nothing waits for company any more.
func TestShutdownFlushesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		x := newExporter(t, Options{Client: f, FlushEvery: time.Hour})
		src, p := newEngine(t, x, testInfo)
		src.push(simpleStep(1, 3)...)
		poll(t, p)
		start := time.Now()
		if err := x.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("took %v", d)
		}
		if c := p.Engine().Ledger().Counts(); c.Exported != 4 {
			t.Errorf("ledger %+v", c)
		}
	})
}

func TestOversizeIsDroppedAndCounted(t *testing.T) {
	f := &fakeClient{}
	x := newExporter(t, Options{Client: f, MaxRequestBytes: 600})
	src, p := newEngine(t, x, testInfo)
	src.push(simpleStep(1, 3)...)
	poll(t, p)
	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	c := p.Engine().Ledger().Counts()
	if c.Dropped[collector.DropOversize] == 0 || c.Pending != 0 || c.Exported+c.Dropped[collector.DropOversize] != 4 {
		t.Errorf("ledger %+v", c)
	}
}

func TestBadEndpoint(t *testing.T) {
	for _, e := range []string{"localhost:4317", "127.0.0.1:4317", "http://", "ftp://h:1", "://", "http:///x"} {
		if x, err := NewExporter(Options{Endpoint: e}); err == nil || !strings.Contains(err.Error(), "want a URL") {
			t.Errorf("%q: %v", e, err)
			if x != nil {
				x.Shutdown(context.Background())
			}
		}
		if _, err := NewMetricReader(MetricOptions{Endpoint: e}); err == nil {
			t.Errorf("metrics: %q accepted", e)
		}
	}
}

func TestProtocolThatIsNotSpoken(t *testing.T) {
	for env, ok := range map[string]bool{
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc": true, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf": true, "OTEL_EXPORTER_OTLP_PROTOCOL=http": false,
		"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json": false, "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/json": true,
	} {
		k, v, _ := strings.Cut(env, "=")
		x, err := NewExporter(Options{Endpoint: nobody, Getenv: func(n string) string {
			if n == k {
				return v
			}
			return ""
		}})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), k) {
			t.Errorf("%s: %v", env, err)
		}
		if x != nil {
			shutdown(t, x)
		}
	}
}

func TestConfigured(t *testing.T) {
	for _, tt := range []struct {
		endpoint        string
		env             string
		traces, metrics bool
	}{
		{"", "", false, false},
		{"http://h:1", "", true, true},
		{"", "OTEL_EXPORTER_OTLP_ENDPOINT=http://h:1", true, true},
		{"", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://h:1", true, false},
		{"", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://h:1", false, true},
		{"http://h:1", "OTEL_TRACES_EXPORTER=none", false, true},
		{"http://h:1", "OTEL_METRICS_EXPORTER=none", true, false},
		{"http://h:1", "OTEL_SDK_DISABLED=true", false, false},
		{"http://h:1", "OTEL_SDK_DISABLED=True", false, false},
		{"http://h:1", "OTEL_SDK_DISABLED=1", true, true},
	} {
		k, v, _ := strings.Cut(tt.env, "=")
		tr, me := Configured(tt.endpoint, func(n string) string {
			if n == k {
				return v
			}
			return ""
		})
		if tr != tt.traces || me != tt.metrics {
			t.Errorf("%q, %s: %v %v, want %v %v", tt.endpoint, tt.env, tr, me, tt.traces, tt.metrics)
		}
	}
}

func TestForgetKeepsWhatIsQueued(t *testing.T) {
	f := &fakeClient{}
	x := newExporter(t, Options{Client: f, FlushEvery: time.Hour})
	for i := range 20 {
		info := testInfo
		info.RunID[1] = byte(i)
		src, p := newEngine(t, x, info)
		src.push(simpleStep(1, 1)...)
		poll(t, p)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(x.engines); n != 0 {
		t.Errorf("%d engines kept", n)
	}
	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff("[60]", fmt.Sprint(f.spans)); d != "" {
		t.Errorf("spans (-want +got):\n%s", d)
	}
}
