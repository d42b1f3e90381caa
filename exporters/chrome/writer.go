package chrome

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/collector"
)

// The least time between two samples of an engine's memory counters: each is a
// scan of its table of allocations.
const counterEveryNS = int64(time.Second)

// ahead is how long before the first step the times begin, so that a step that was
// closed late, by its time-out, still has a time over 0.
const ahead = time.Minute

// maxTracks bounds the streams of an engine that have a track of their own.
const maxTracks = 1024

// maxRows is how many tracks a stream has at most. Of lanes that share an event
// every other one is placed some nanoseconds over the one before it (on an H200, 7
// in the median and 228 at most), which is well within what the clock is sure of;
// the second row takes those, kernels and all.
const maxRows = 3

// Thread ids: the host track, the streams in order of appearance, and the one of
// those beyond maxTracks.
const (
	hostTID  = 1
	firstTID = 2
	restTID  = firstTID + maxTracks*maxRows
)

// Writer writes steps as they come, one event a line. It is a
// collector.Exporter; what was written counts as exported. It keeps a bounded
// state for each engine and stream, however much is written. Its methods may be
// called from any goroutine.
type Writer struct {
	mu      sync.Mutex
	w       *bufio.Writer
	err     error
	closed  bool
	begun   bool
	events  bool  // there was one, so the next needs a comma
	baseNS  int64 // Unix time
	engines map[*collector.Engine]*process
	pids    int
	asyncs  uint64
	buf     []byte
	order   []placed
	rows    []*track // of the spans of the step at hand, nil if asynchronous
}

// process is what is kept of an engine.
type process struct {
	pid       int
	offsetNS  int64 // added to CLOCK_MONOTONIC it gives the time since baseNS
	host      track
	streams   map[streamKey]*track
	rest      *track
	sampled   bool
	sampledNS int64
}

type streamKey struct {
	context uint8
	stream  uint16
}

// placed is a span of the step at hand.
type placed struct {
	track          *track
	startNS, endNS int64 // CLOCK_MONOTONIC
	index          int   // in Step.Spans
}

// NewWriter writes to w, buffered: Close ends the document and flushes.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: bufio.NewWriterSize(w, 64<<10), engines: make(map[*collector.Engine]*process)}
}

var errClosed = errors.New("trace-event writer is closed")

// Export writes one step. After an error nothing more is written; the spans are
// dropped, and Close returns the error.
func (w *Writer) Export(s *collector.Step, reason collector.ExportReason) {
	w.mu.Lock()
	defer w.mu.Unlock()
	units := s.Units()
	err := w.err
	if err == nil && w.closed {
		err = errClosed
	}
	if err == nil {
		if err = w.step(s, reason); err != nil {
			err = fmt.Errorf("write step %d: %w", s.Number, err)
			w.err = err
		}
	}
	if err != nil {
		s.Engine.Ledger().Drop(collector.DropRefused, units)
		return
	}
	s.Engine.Ledger().Export(units)
}

// Forget lets go of what is kept of an engine that has ended. Should a step of it
// come nevertheless, it is a process of its own.
func (w *Writer) Forget(e *collector.Engine) {
	w.mu.Lock()
	delete(w.engines, e)
	w.mu.Unlock()
}

// Close ends the document, flushes, and returns the first error there was. It does
// not close what was written to. Only the first call writes.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return w.err
	}
	w.closed = true
	if w.err == nil {
		w.begin(0)
		w.buf = append(w.buf, "\n]}\n"...)
		w.err = w.flush()
	}
	if err := w.w.Flush(); err != nil && w.err == nil {
		w.err = fmt.Errorf("write trace events: %w", err)
	}
	return w.err
}

// begin writes what stands before the events, once.
func (w *Writer) begin(firstUnixNS int64) {
	if w.begun {
		return
	}
	w.begun = true
	if firstUnixNS != 0 {
		w.baseNS = time.Unix(0, firstUnixNS).Add(-ahead).Truncate(time.Second).UnixNano()
	}
	w.buf = append(w.buf, `{"displayTimeUnit":"ns","otherData":{"producer":"lanetrace","base_unix_ns":"`...)
	w.buf = strconv.AppendInt(w.buf, w.baseNS, 10)
	w.buf = append(w.buf, `"},"traceEvents":[`...)
}

func (w *Writer) flush() error {
	_, err := w.w.Write(w.buf)
	w.buf = w.buf[:0]
	return err
}

// process is what is kept of an engine; wallOffsetNS makes Unix time of its first
// event's.
func (w *Writer) process(e *collector.Engine, wallOffsetNS int64) *process {
	if p, ok := w.engines[e]; ok {
		return p
	}
	w.pids++
	p := &process{
		pid: w.pids, offsetNS: wallOffsetNS - w.baseNS, host: track{tid: hostTID}, streams: make(map[streamKey]*track),
	}
	w.engines[e] = p
	w.meta(p.pid, hostTID, "process_name", "name", e.Label())
	info := e.Info()
	text := "run " + info.RunID.String()
	if info.GPUName != "" {
		text += ", " + info.GPUName
	}
	if info.Model != "" {
		text += ", " + collector.CleanText(info.Model)
	}
	w.meta(p.pid, hostTID, "process_labels", "labels", text)
	w.metaInt(p.pid, hostTID, "process_sort_index", "sort_index", p.pid)
	w.thread(p.pid, hostTID, "host")
	return p
}

func (w *Writer) thread(pid, tid int, name string) {
	w.meta(pid, tid, "thread_name", "name", name)
	w.metaInt(pid, tid, "thread_sort_index", "sort_index", tid)
}

// track is the one of a stream.
func (w *Writer) track(p *process, sp *collector.Span) *track {
	k := streamKey{sp.Context, sp.Stream}
	if t, ok := p.streams[k]; ok {
		return t
	}
	if len(p.streams) >= maxTracks {
		if p.rest == nil {
			p.rest = &track{tid: restTID, shared: true}
			w.thread(p.pid, restTID, "other streams")
		}
		return p.rest
	}
	t := &track{tid: firstTID + len(p.streams)*maxRows}
	p.streams[k] = t
	name := "stream " + strconv.Itoa(int(sp.Stream))
	if sp.Context != 0 {
		name = "context " + strconv.Itoa(int(sp.Context)) + " " + name
	}
	t.name = name
	w.thread(p.pid, t.tid, name)
	return t
}

// row is a track of the stream of t on which the span at index i of s nests: the one
// of the lane around it, else the first. It is nil when there is none.
func (w *Writer) row(p *process, t *track, s *collector.Step, i int, o *placed) *track {
	if t.shared {
		return nil
	}
	if j := s.ParentOf(i); j >= 0 {
		r := w.rows[j]
		if r != nil && (r == t || slices.Contains(t.more, r)) && r.nests(o.startNS, o.endNS) {
			return r
		}
	}
	if t.nests(o.startNS, o.endNS) {
		return t
	}
	for _, r := range t.more {
		if r.nests(o.startNS, o.endNS) {
			return r
		}
	}
	if len(t.more)+1 == maxRows {
		return nil
	}
	r := &track{tid: t.tid + len(t.more) + 1}
	t.more = append(t.more, r)
	w.thread(p.pid, r.tid, t.name+" ("+strconv.Itoa(len(t.more)+1)+")")
	r.nests(o.startNS, o.endNS) // of an empty track it does
	return r
}

// step writes all of a step.
func (w *Writer) step(s *collector.Step, reason collector.ExportReason) error {
	startNS, endNS := s.Bounds()
	w.begin(s.UnixNS(startNS))
	p := w.process(s.Engine, s.WallOffsetNS)

	w.async(p, hostTID, "step", "step", startNS, endNS, func() { w.stepArgs(s, reason) })
	if s.HasEnd {
		args := func() { w.int("step", int64(s.Number)) }
		if p.host.free(s.BeginMonoNS, s.EndMonoNS) {
			p.host.take(s.BeginMonoNS, s.EndMonoNS)
			w.complete(p, hostTID, "host", "host", s.BeginMonoNS, s.EndMonoNS, args)
		} else {
			w.async(p, hostTID, "host", "host", s.BeginMonoNS, s.EndMonoNS, args)
		}
	}
	w.spans(p, s)
	for i := range s.Failed {
		f := &s.Failed[i]
		w.instant(p, "failed", "failed: "+f.Text.Title(), f.EnqueueMonoNS, func() {
			w.int("step", int64(s.Number))
			w.text("kind", f.SpanKind.String())
			w.text("reason", f.Reason.String())
			w.int("stream", int64(f.Stream))
		})
	}
	for i := range s.LaunchDiffs {
		d := &s.LaunchDiffs[i]
		w.instant(p, "launchtrace", "launch diff: "+d.Text.String(), d.MonoNS, func() {
			w.int("step", int64(s.Number))
			w.int("before", int64(d.Before))
			w.int("after", int64(d.After))
			w.int("inserted", int64(d.Inserted))
			w.int("removed", int64(d.Removed))
			w.int("changed", int64(d.Changed))
		})
	}
	w.counters(p, s)
	return w.flush()
}

// spans writes the spans of a step, track by track and parents first.
func (w *Writer) spans(p *process, s *collector.Step) {
	w.order = w.order[:0]
	w.rows = append(w.rows[:0], make([]*track, len(s.Spans))...)
	for i := range s.Spans {
		sp := &s.Spans[i]
		w.order = append(w.order, placed{w.track(p, sp), sp.StartMonoNS, sp.StartMonoNS + int64(sp.DurationNS()), i})
	}
	slices.SortFunc(w.order, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.track.tid, b.track.tid), cmp.Compare(a.startNS, b.startNS), cmp.Compare(b.endNS, a.endNS), cmp.Compare(a.index, b.index))
	})
	for from := 0; from < len(w.order); {
		to := from
		for to < len(w.order) && w.order[to].track == w.order[from].track {
			to++
		}
		w.spansOf(p, s, w.order[from:to])
		from = to
	}
}

// spansOf writes the spans of a step on one track, in order of their start.
func (w *Writer) spansOf(p *process, s *collector.Step, order []placed) {
	t := order[0].track
	t.begin()
	for i := range order {
		o := &order[i]
		sp := &s.Spans[o.index]
		args := func() { spanArgs(w, s, sp) }
		if r := w.row(p, t, s, o.index, o); r != nil {
			w.rows[o.index] = r
			w.complete(p, r.tid, sp.Kind.String(), sp.Text.Title(), o.startNS, o.endNS, args)
		} else {
			w.async(p, t.tid, sp.Kind.String(), sp.Text.Title(), o.startNS, o.endNS, args)
		}
	}
	t.end()
}

func (w *Writer) stepArgs(s *collector.Step, reason collector.ExportReason) {
	w.int("step", int64(s.Number))
	w.text("trace_id", collector.StepTraceID(s.Engine.RunID(), s.Number).String())
	w.bool("armed", s.Armed)
	w.text("why", reason.String())
	if s.Level != 0 {
		w.text("level", collector.LevelText(s.Level))
	}
	if s.Untimed {
		w.bool("lanes_untimed", true)
	}
	if s.HasAttrs {
		w.int("batch_size", int64(s.Attrs.BatchSize))
		w.int("decode_tokens", int64(s.Attrs.DecodeTokens))
		w.int("prefill_tokens", int64(s.Attrs.PrefillTokens))
		w.text("graph_mode", s.Attrs.GraphMode.String())
	}
	if s.Incomplete != collector.Complete {
		w.text("incomplete", s.Incomplete.String())
	}
	w.int("spans_landed", int64(s.Landed()))
	w.int("spans_failed", int64(s.FailedCount))
	w.int("spans_dropped", int64(s.Dropped))
	w.int("spans_missing", int64(s.Missing()))
	w.int("spans_left_out", int64(s.LeftOut))
	if len(s.Spans) > 0 {
		w.int("gpu_lane_ns", s.Derived.LaneNS)
		w.int("gpu_outside_ns", s.Derived.OutsideNS)
	}
	if len(s.Links) > 0 {
		w.texts("requests", len(s.Links), func(i int) string { return requestName(&s.Links[i].TraceContext) })
	}
	if n := s.LinksDropped(); n > 0 {
		w.int("requests_left_out", int64(n))
	}
}

func spanArgs(w *Writer, s *collector.Step, sp *collector.Span) {
	w.int("step", int64(s.Number))
	if sp.Text.Title() != sp.Text.Text {
		w.text("name", sp.Text.Text)
	}
	if sp.Kind != collector.KindLane {
		if sp.LaneText != nil {
			w.text("lane", sp.LaneText.Text)
		}
		w.text("gap", sp.Gap.String())
		w.int("raw_ns", int64(sp.RawNS))
		w.text("calibration", sp.Calibration.String())
	}
	if sp.Kind == collector.KindGraph {
		w.int("graph_id", int64(sp.Text.GraphID))
		w.int("graph_nodes", int64(sp.Text.GraphNodes))
	}
	w.int("queue_delay_ns", sp.LeadNS)
	w.int("duration_uncertainty_ns", int64(sp.DurationUncertaintyNS))
	w.int("start_uncertainty_ns", int64(sp.PlaceUncertaintyNS))
	if sp.SharedStart {
		w.bool("shared_start", true)
	}
	if sp.InGraph {
		w.bool("in_graph", true)
	}
}

// counters writes the engine's memory as of the step's closing, now and then.
func (w *Writer) counters(p *process, s *collector.Step) {
	atNS := s.ClosedMonoNS
	if p.sampled && atNS-p.sampledNS < counterEveryNS {
		return
	}
	p.sampled, p.sampledNS = true, atNS
	m := s.Engine.Memory()
	if m.State != collector.MemoryPublished {
		return
	}
	t := &m.Totals
	w.counter(p, "device memory (bytes)", atNS, func() {
		w.uint("live", t.LiveBytes)
		w.uint("guard bands", t.GuardBytes)
	})
	w.counter(p, "memory slack (bytes)", atNS, func() {
		w.uint("chunk", t.ChunkSlackBytes)
		w.uint("rounding", t.RoundingSlackBytes)
	})
}
