package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/lanetrace/lanetrace/collector"
)

// Options configure an Exporter.
type Options struct {
	// Endpoint is a URL, http for plain text and https for TLS; over HTTP it is what
	// v1/traces is added to. Default: the OTEL_EXPORTER_OTLP_* variables, which also
	// give the protocol, headers, TLS, compression and the time-out of a request.
	Endpoint string
	// Version is the instrumentation scope's. Default none.
	Version string
	// HostName is the resource attribute host.name. Default os.Hostname.
	HostName string

	// QueueBytes bounds the encoded spans that wait; the oldest are dropped first.
	// Default 16 MiB.
	QueueBytes int
	// MaxRequestBytes is where a request is cut. Receivers refuse more than 4 MiB
	// by default. Default 3 MiB.
	MaxRequestBytes int
	// FlushEvery is how long spans wait for company. Default 1 s.
	FlushEvery time.Duration
	// FlushBytes is how much is sent before FlushEvery has passed. Default 512 KiB.
	FlushBytes int
	// MinBackoff and MaxBackoff bound the wait before a request is sent again; it
	// doubles in between. Defaults 1 s and 30 s.
	MinBackoff, MaxBackoff time.Duration

	// Client sends requests. Default: OTLP over the protocol that
	// OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or OTEL_EXPORTER_OTLP_PROTOCOL names, grpc or
	// http/protobuf; grpc if neither is set. A client that cannot tell how
	// many spans of a request were rejected counts as having sent all.
	Client otlptrace.Client

	// Getenv looks up the protocol's variables. Default os.Getenv.
	Getenv Getenv
	// Logger takes warnings. Default discards.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.HostName == "" {
		o.HostName, _ = os.Hostname()
	}
	if o.QueueBytes == 0 {
		o.QueueBytes = 16 << 20
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = 3 << 20
	}
	if o.FlushEvery == 0 {
		o.FlushEvery = time.Second
	}
	if o.FlushBytes == 0 {
		o.FlushBytes = min(512<<10, o.QueueBytes/2)
	}
	if o.MinBackoff == 0 {
		o.MinBackoff = time.Second
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// chunkBytes is where one step's spans are cut into several queue entries.
const chunkBytes = 256 << 10

// Exporter sends steps to an OTLP receiver. Export only encodes and queues: it
// never waits for the network. A goroutine of its own sends, and sends again what
// may be sent again, for as long as the queue has room.
type Exporter struct {
	o      Options
	client otlptrace.Client
	q      *queue
	scope  []byte

	enginesMu sync.Mutex
	engines   map[*collector.Engine]*engineState

	some   chan struct{} // something was queued
	enough chan struct{} // enough for a request was queued

	stop    context.CancelFunc // ends the sender at once
	closing chan struct{}      // tells it to send what is there and end
	done    chan struct{}
	once    sync.Once
	stopErr error

	stats requests
	warn  *warner
}

// requests counts requests by what came of them.
type requests struct {
	ok, retried, refused atomic.Uint64
	bytes                atomic.Uint64 // of those that are ok

	// Spans, by what came of them.
	sent, rejected, refusedSpans, oversize atomic.Uint64
}

// SpanCounts are spans, as the loss account counts them, by what came of them. What
// is in none of them still waits.
type SpanCounts struct {
	// Sent are those that a receiver took.
	Sent uint64
	// Rejected and Refused are those that it did not: out of a request that it took,
	// and with the whole request.
	Rejected, Refused uint64
	// QueueFull, Oversize and Shutdown are those that never reached it.
	QueueFull, Oversize, Shutdown uint64
}

// Missed is how many spans no receiver took.
func (c SpanCounts) Missed() uint64 {
	return c.Rejected + c.Refused + c.QueueFull + c.Oversize + c.Shutdown
}

// Spans are the spans of all engines so far.
func (x *Exporter) Spans() SpanCounts {
	return SpanCounts{
		Sent: x.stats.sent.Load(), Rejected: x.stats.rejected.Load(), Refused: x.stats.refusedSpans.Load(),
		QueueFull: x.q.lost(collector.DropQueueFull), Oversize: x.stats.oversize.Load(), Shutdown: x.q.lost(collector.DropShutdown),
	}
}

// NewExporter makes an exporter and starts its sender. It does not connect yet: an
// endpoint that cannot be reached is a warning later, never an error here. An
// endpoint that is no URL is an error.
func NewExporter(o Options) (*Exporter, error) {
	o = o.withDefaults()
	client := o.Client
	if client == nil {
		var err error
		if client, err = newClient(o.Endpoint, o.Getenv); err != nil {
			return nil, err
		}
	}
	if err := client.Start(context.Background()); err != nil {
		return nil, fmt.Errorf("start OTLP client: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &Exporter{
		o: o, client: client, q: newQueue(o.QueueBytes), scope: appendScope(nil, o.Version),
		engines: make(map[*collector.Engine]*engineState),
		some:    make(chan struct{}, 1), enough: make(chan struct{}, 1),
		stop: cancel, closing: make(chan struct{}), done: make(chan struct{}),
		warn: newWarner(o.Logger),
	}
	go e.send(ctx)
	return e, nil
}

// engine is what is kept of e, made at its first step.
func (x *Exporter) engine(e *collector.Engine) *engineState {
	x.enginesMu.Lock()
	defer x.enginesMu.Unlock()
	if st, ok := x.engines[e]; ok {
		return st
	}
	i := e.Info()
	st := &engineState{engine: e, resource: appendResource(nil, e.Label(), x.o.HostName, &i)}
	st.enc.maxBytes = min(chunkBytes, x.o.MaxRequestBytes-resourceSpansSize(len(st.resource), len(x.scope), 0)-16)
	st.enc.traceBytes = maxTraceBytes - traceParts*(resourceSpansSize(len(st.resource), len(x.scope), 0)+16)
	st.enc.model = collector.CleanText(i.Model)
	x.engines[e] = st
	return st
}

// Forget lets go of what is kept of an engine that has ended. What is queued of
// it is still sent.
func (x *Exporter) Forget(e *collector.Engine) {
	x.enginesMu.Lock()
	delete(x.engines, e)
	x.enginesMu.Unlock()
}

// Export encodes s and queues it. It implements collector.Exporter.
func (x *Exporter) Export(s *collector.Step, reason collector.ExportReason) {
	st := x.engine(s.Engine)
	st.mu.Lock()
	defer st.mu.Unlock()
	note := collector.NoteTrace(s)
	st.enc.step(s, s.Engine.RunID(), reason, x.q.buffer, func(c chunk) {
		if c.spans == 0 {
			x.q.unused(c.buf)
			return
		}
		note.Part()
		if x.q.push(item{c, st, note}) {
			signal(x.some)
		}
	})
	if n := st.enc.leftOut; n > 0 {
		s.Engine.Ledger().Drop(collector.DropTraceLimit, n)
	}
	if n := st.enc.oversize; n > 0 {
		s.Engine.Ledger().Drop(collector.DropOversize, n)
		x.stats.oversize.Add(uint64(n))
	} else {
		note.Took() // every part of it is queued
	}
	if b, _ := x.q.size(); b >= x.o.FlushBytes {
		signal(x.enough)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// itemSize is how many bytes it takes in a request, as if it were a message of
// its own: a little too much where neighbours share one.
func (x *Exporter) itemSize(it item) int {
	n := resourceSpansSize(len(it.eng.resource), len(x.scope), len(it.buf))
	return n + 1 + protowire.SizeVarint(uint64(n))
}

// send is the sender's goroutine: it ends when ctx does, or when the exporter is
// closing and the queue is empty.
func (x *Exporter) send(ctx context.Context) {
	defer close(x.done)
	s := sender{x: x, ctx: ctx, closing: x.closing, timer: time.NewTimer(time.Hour), backoff: x.o.MinBackoff}
	defer s.timer.Stop()
	for s.work() {
		// Company is worth waiting for.
		if s.closing != nil && !s.wait(x.o.FlushEvery, x.enough) {
			return
		}
		if !s.sendAll() {
			return
		}
	}
}

// sender is the state of the sender's goroutine.
type sender struct {
	x       *Exporter
	ctx     context.Context
	closing <-chan struct{} // nil once it was seen closed
	timer   *time.Timer
	backoff time.Duration
}

// work waits until something is queued; false means the end.
func (s *sender) work() bool {
	for {
		if _, n := s.x.q.size(); n > 0 {
			return s.ctx.Err() == nil
		}
		if s.closing == nil {
			return false
		}
		select {
		case <-s.ctx.Done():
			return false
		case <-s.closing:
			s.close()
		case <-s.x.some:
		}
	}
}

// wait waits for d, less when enough is signalled or the exporter begins to
// close; false means that ctx has ended.
func (s *sender) wait(d time.Duration, enough <-chan struct{}) bool {
	s.timer.Reset(d)
	select {
	case <-s.ctx.Done():
		return false
	case <-s.closing:
		s.close()
	case <-enough:
	case <-s.timer.C:
	}
	return true
}

// close notes that the exporter is closing: from now on nothing waits for
// company, and tries begin anew at short intervals.
func (s *sender) close() {
	s.closing = nil
	s.backoff = s.x.o.MinBackoff
}

// sendAll sends what is queued, again and again until it is settled; false means
// that ctx has ended.
func (s *sender) sendAll() bool {
	q := s.x.q
	for {
		items := q.take(s.x.o.MaxRequestBytes, s.x.itemSize)
		if len(items) == 0 {
			return true
		}
		wait, again := s.x.request(s.ctx, items)
		if !again {
			q.settle()
			s.backoff = s.x.o.MinBackoff
			if b, _ := q.size(); s.closing != nil && b < s.x.o.FlushBytes {
				return true
			}
			continue
		}
		q.release()
		if wait == 0 {
			// Jitter keeps many sidecars from coming back at once.
			wait = s.backoff/2 + rand.N(s.backoff/2+1)
			s.backoff = min(2*s.backoff, s.x.o.MaxBackoff)
		}
		if !s.wait(wait, nil) {
			return false
		}
	}
}

// request sends items once. again is true when they are to be sent again, after
// wait if that is not 0; otherwise they are settled in their ledgers.
func (x *Exporter) request(ctx context.Context, items []item) (wait time.Duration, again bool) {
	rs, size := x.build(items)
	o := upload(ctx, x.client, rs)
	if o.err == nil {
		x.stats.ok.Add(1)
		x.stats.bytes.Add(uint64(size))
		x.settle(items, o)
		return 0, false
	}
	if ctx.Err() != nil {
		return 0, true
	}
	if ok, wait := retryable(o.err); ok {
		x.stats.retried.Add(1)
		b, _ := x.q.size()
		x.warn.say("OTLP export fails and will be tried again", "error", o.err, "queued_bytes", b, "tries", x.stats.retried.Load())
		return wait, true
	}
	x.stats.refused.Add(1)
	units := 0
	for i := range items {
		items[i].eng.engine.Ledger().Drop(collector.DropRefused, items[i].units)
		units += items[i].units
	}
	x.stats.refusedSpans.Add(uint64(units))
	x.warn.say("OTLP receiver refused spans for good, they are dropped", "error", o.err, "spans", units)
	return 0, false
}

// build makes the request: one ResourceSpans for each engine.
func (x *Exporter) build(items []item) (rs []*tracepb.ResourceSpans, size int) {
	var bufs [][]byte
	for i := range items {
		if seenBefore(items, i) {
			continue
		}
		bufs = bufs[:0]
		for j := i; j < len(items); j++ {
			if items[j].eng == items[i].eng {
				bufs = append(bufs, items[j].buf)
			}
		}
		b := appendResourceSpans(nil, items[i].eng.resource, x.scope, bufs...)
		m := new(tracepb.ResourceSpans)
		m.ProtoReflect().SetUnknown(b)
		rs = append(rs, m)
		size += len(b)
	}
	return rs, size
}

func seenBefore(items []item, i int) bool {
	for j := range i {
		if items[j].eng == items[i].eng {
			return true
		}
	}
	return false
}

// settle counts the items of a request that the server took. Which spans it
// rejected is not told: they are taken from the front. The host's part of a step
// is a span on the wire but none of the account, so no more units are rejected
// than there are.
func (x *Exporter) settle(items []item, o outcome) {
	rejected := max(0, int(o.rejected))
	if rejected > 0 || o.message != "" {
		x.warn.say("OTLP receiver took a request in part", "rejected", rejected, "message", collector.CleanText(o.message))
	}
	whole := rejected == 0
	for i := range items {
		if whole {
			items[i].note.Took()
		}
		r := min(rejected, items[i].units)
		rejected -= r
		l := items[i].eng.engine.Ledger()
		l.Reject(r)
		l.Export(items[i].units - r)
		x.stats.rejected.Add(uint64(r))
		x.stats.sent.Add(uint64(items[i].units - r))
	}
}

// Stats are what collector.RegisterExport shows of the exporter.
func (x *Exporter) Stats() collector.ExportStats {
	b, _ := x.q.size()
	return collector.ExportStats{
		QueueBytes: uint64(b), QueueLimit: uint64(x.o.QueueBytes), SentBytes: x.stats.bytes.Load(),
		Requests: [3]uint64{x.stats.ok.Load(), x.stats.retried.Load(), x.stats.refused.Load()},
	}
}

// Shutdown sends what is queued and ends. When ctx ends first, the rest is
// dropped, counted as shutdown, and the error says how many spans were not sent.
// Export calls afterwards drop. Only the first call does anything; the others
// wait for it and return the same.
func (x *Exporter) Shutdown(ctx context.Context) error {
	x.once.Do(func() { x.stopErr = x.shutdown(ctx) })
	return x.stopErr
}

func (x *Exporter) shutdown(ctx context.Context) error {
	close(x.closing)
	select {
	case <-x.done:
	case <-ctx.Done():
	}
	x.stop()
	<-x.done
	units := x.q.close()
	// The client has nothing in flight now, so that it ends at once.
	err := x.client.Stop(context.WithoutCancel(ctx))
	if units > 0 {
		return errors.Join(fmt.Errorf("%d spans were not sent to the OTLP endpoint before the deadline", units), err)
	}
	if err != nil {
		return fmt.Errorf("stop OTLP client: %w", err)
	}
	return nil
}
