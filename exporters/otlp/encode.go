package otlp

import (
	"encoding/binary"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/lanetrace/lanetrace/collector"
)

// ScopeName is the instrumentation scope of everything that is exported.
const ScopeName = "github.com/lanetrace/lanetrace"

// Names of the spans that have none of their own.
const (
	spanStep    = "step"
	spanHost    = "host"
	spanRequest = "request"

	eventFailed     = "lanetrace.span.failed"
	eventLaunchDiff = "lanetrace.launchtrace.diff"
)

// Attributes of spans. Times are whole nanoseconds and say so.
var (
	keyStep           = newKey("lanetrace.step.number")
	keyArmed          = newKey("lanetrace.step.armed")
	keySource         = newKey("lanetrace.step.source")
	keyReason         = newKey("lanetrace.export.reason")
	keyLevel          = newKey("lanetrace.level")
	keyUntimed        = newKey("lanetrace.step.lanes_untimed")
	keyBatch          = newKey("lanetrace.step.batch_size")
	keyDecodeTokens   = newKey("lanetrace.step.decode_tokens")
	keyPrefillTokens  = newKey("lanetrace.step.prefill_tokens")
	keyGraphMode      = newKey("lanetrace.step.graph_mode")
	keyGPUExtent      = newKey("lanetrace.step.gpu.extent_ns")
	keyGPULane        = newKey("lanetrace.step.gpu.lane_ns")
	keyGPUOutside     = newKey("lanetrace.step.gpu.outside_ns")
	keyGPUBusy        = newKey("lanetrace.step.gpu.busy_ns")
	keyGPULaneIdle    = newKey("lanetrace.step.gpu.lane_idle_ns")
	keyBound          = newKey("lanetrace.step.bound")
	keyIncomplete     = newKey("lanetrace.step.incomplete")
	keySpansLanded    = newKey("lanetrace.step.spans.landed")
	keySpansFailed    = newKey("lanetrace.step.spans.failed")
	keySpansDropped   = newKey("lanetrace.step.spans.dropped")
	keySpansMissing   = newKey("lanetrace.step.spans.missing")
	keySpansLeftOut   = newKey("lanetrace.step.spans.left_out")
	keySpanKind       = newKey("lanetrace.span.kind")
	keyLane           = newKey("lanetrace.lane")
	keyKernel         = newKey("lanetrace.kernel")
	keyStream         = newKey("lanetrace.stream")
	keyContext        = newKey("lanetrace.context")
	keyGraphID        = newKey("lanetrace.graph.id")
	keyGraphNodes     = newKey("lanetrace.graph.nodes")
	keyQueueDelay     = newKey("lanetrace.queue_delay_ns")
	keyGap            = newKey("lanetrace.gap")
	keyRaw            = newKey("lanetrace.duration.raw_ns")
	keyCalibration    = newKey("lanetrace.calibration")
	keyDurUncertain   = newKey("lanetrace.duration.uncertainty_ns")
	keyPlaceUncertain = newKey("lanetrace.start.uncertainty_ns")
	keySharedStart    = newKey("lanetrace.start.shared")
	keyInGraph        = newKey("lanetrace.in_graph")
	keyFailReason     = newKey("lanetrace.reason")
	keyRegion         = newKey("lanetrace.region")
	keyOpsBefore      = newKey("lanetrace.launchtrace.ops.before")
	keyOpsAfter       = newKey("lanetrace.launchtrace.ops.after")
	keyOpsInserted    = newKey("lanetrace.launchtrace.ops.inserted")
	keyOpsRemoved     = newKey("lanetrace.launchtrace.ops.removed")
	keyOpsChanged     = newKey("lanetrace.launchtrace.ops.changed")
	keyOpsPartial     = newKey("lanetrace.launchtrace.partial")

	keySteps         = newKey("lanetrace.request.steps")
	keyStepsExported = newKey("lanetrace.request.steps.exported")
	keyStepsOpen     = newKey("lanetrace.request.steps.open")
	keyGapped        = newKey("lanetrace.request.gapped")
	keyStepsUntimed  = newKey("lanetrace.request.steps.lanes_untimed")
	keyRequestLane   = newKey("lanetrace.request.gpu.lane_ns")

	// Of OpenTelemetry's conventions for generative AI.
	keyModel        = newKey("gen_ai.request.model")
	keyInputTokens  = newKey("gen_ai.usage.input_tokens")
	keyOutputTokens = newKey("gen_ai.usage.output_tokens")
)

// chunk is a part of one step's spans: consecutive ScopeSpans.spans fields.
type chunk struct {
	buf   []byte
	units int // of the loss account
	spans int // as OTLP counts them
}

// encoder writes steps of one engine. It keeps nothing between calls but scratch.
type encoder struct {
	maxBytes int // of one chunk
	// traceBytes bounds all spans of a step together, 0 for no bound.
	traceBytes int
	model      string // the engine's, "" for none

	oversize int // spans left out of the last step because one alone was too large
	leftOut  int // spans left out of the last step because they were too many

	tmp []byte
	fit fitter
}

// step appends the spans of s to chunks taken from next, each at most maxBytes
// long, and calls done with each. A span that alone is longer is left out and
// counted in oversize. Of a step that as a whole is longer than traceBytes the
// lanes are kept, and of kernels and graph launches the longest; the others are
// counted in leftOut.
func (e *encoder) step(s *collector.Step, run collector.RunID, reason collector.ExportReason, next func() []byte, done func(chunk)) {
	e.oversize, e.leftOut = 0, 0
	trace := collector.StepTraceID(run, s.Number)
	c := chunk{buf: next()}
	add := func(units int, start int) {
		n := len(c.buf) - start
		switch {
		case n > e.maxBytes:
			c.buf = c.buf[:start]
			e.oversize += units
			return
		case len(c.buf) > e.maxBytes:
			e.tmp = append(e.tmp[:0], c.buf[start:]...)
			c.buf = c.buf[:start]
			done(c)
			c = chunk{buf: append(next(), e.tmp...)}
		}
		c.units += units
		c.spans++
	}

	rootUnits := s.Units() - len(s.Spans)
	start := len(c.buf)
	c.buf = appendRoot(c.buf, s, trace, reason, e.model, 0)
	if e.traceBytes > 0 {
		if e.leftOut = e.fit.choose(s, trace, e.traceBytes-len(c.buf)+start); e.leftOut > 0 {
			c.buf = appendRoot(c.buf[:start], s, trace, reason, e.model, e.leftOut)
		}
	}
	add(rootUnits, start)
	if s.HasEnd {
		start = len(c.buf)
		c.buf = appendHost(c.buf, s, trace)
		add(0, start)
	}
	for i := range s.Spans {
		if e.leftOut > 0 && !e.fit.keep[i] {
			continue
		}
		start = len(c.buf)
		c.buf = appendSpan(c.buf, s, i, trace)
		add(1, start)
	}
	done(c)
}

// appendHead begins a span message up to its end time.
func appendHead(b []byte, trace collector.TraceID, id collector.SpanID, parent *collector.SpanID, name string, startNS, endNS int64) ([]byte, int) {
	b, at := openMessage(b, tagSSSpans)
	b = append(b, tagSpanTraceID, byte(len(trace)))
	b = append(b, trace[:]...)
	b = append(b, tagSpanID, byte(len(id)))
	b = append(b, id[:]...)
	if parent != nil {
		b = append(b, tagSpanParent, byte(len(parent)))
		b = append(b, parent[:]...)
	}
	b = appendString(b, tagSpanName, name)
	b = append(b, tagSpanKind, spanKindInternal)
	b = appendFixed64(b, tagSpanStart, uint64(startNS))
	b = appendFixed64(b, tagSpanEnd, uint64(endNS))
	return b, at
}

// appendTail ends a span message.
func appendTail(b []byte, at int, flags uint32) []byte {
	b = append(b, byte(tagSpanFlags&0x7f|0x80), byte(tagSpanFlags>>7))
	b = binary.LittleEndian.AppendUint32(b, flags)
	return closeMessage(b, at)
}

func appendLink(b []byte, trace collector.TraceID, span collector.SpanID, flags uint32) []byte {
	b, at := openMessage(b, tagSpanLink)
	b = append(b, tagLinkTraceID, byte(len(trace)))
	b = append(b, trace[:]...)
	b = append(b, tagLinkSpanID, byte(len(span)))
	b = append(b, span[:]...)
	b = appendFixed32(b, tagLinkFlags, flags)
	return closeMessage(b, at)
}

// appendRoot writes the step's own span. leftOut is how many of its spans are not
// written.
func appendRoot(b []byte, s *collector.Step, trace collector.TraceID, reason collector.ExportReason, model string, leftOut int) []byte {
	startNS, endNS := s.Bounds()
	b, at := appendHead(b, trace, trace.RootID(), nil, spanStep, s.UnixNS(startNS), s.UnixNS(endNS))
	b = keyStep.appendInt(b, tagSpanAttribute, int64(s.Number))
	b = keyArmed.appendBool(b, tagSpanAttribute, s.Armed)
	b = keyReason.appendString(b, tagSpanAttribute, reason.String())
	b = keySpansLanded.appendInt(b, tagSpanAttribute, int64(s.Landed()))
	if s.Level != 0 {
		b = keyLevel.appendString(b, tagSpanAttribute, collector.LevelText(s.Level))
	}
	if s.Untimed {
		b = keyUntimed.appendBool(b, tagSpanAttribute, true)
	}
	if s.StandIn != "" {
		b = keySource.appendString(b, tagSpanAttribute, s.StandIn)
	}
	if model != "" {
		b = keyModel.appendString(b, tagSpanAttribute, model)
	}
	if s.HasAttrs {
		b = keyBatch.appendInt(b, tagSpanAttribute, int64(s.Attrs.BatchSize))
		b = keyDecodeTokens.appendInt(b, tagSpanAttribute, int64(s.Attrs.DecodeTokens))
		b = keyPrefillTokens.appendInt(b, tagSpanAttribute, int64(s.Attrs.PrefillTokens))
		b = keyGraphMode.appendString(b, tagSpanAttribute, s.Attrs.GraphMode.String())
	}
	b = appendDerived(b, s)
	if s.Incomplete != collector.Complete {
		b = keyIncomplete.appendString(b, tagSpanAttribute, s.Incomplete.String())
	}
	for _, c := range [...]struct {
		k key
		n int
	}{
		{keySpansFailed, s.FailedCount},
		{keySpansDropped, int(s.Dropped)},
		{keySpansMissing, s.Missing()},
		{keySpansLeftOut, s.LeftOut + leftOut},
	} {
		if c.n > 0 {
			b = c.k.appendInt(b, tagSpanAttribute, int64(c.n))
		}
	}
	for i := range s.Failed {
		b = appendFailed(b, s, &s.Failed[i])
	}
	for i := range s.LaunchDiffs {
		b = appendLaunchDiff(b, s, &s.LaunchDiffs[i])
	}
	if n := s.FailedCount - len(s.Failed) + s.LaunchDiffCount - len(s.LaunchDiffs); n > 0 {
		b = appendUint(b, tagSpanDropEvents, uint64(n))
	}
	for i := range s.Links {
		l := &s.Links[i]
		b = appendLink(b, l.TraceID, l.SpanID, uint32(l.Flags)|flagKnowsRemote|flagRemote)
	}
	if n := s.LinksDropped(); n > 0 {
		b = appendUint(b, tagSpanDropLinks, uint64(n))
	}
	if s.Faulty() {
		var in int
		b, in = openMessage(b, tagSpanStatus)
		b = appendString(b, tagStatusMessage, faults(s))
		b = append(b, tagStatusCode, statusError)
		b = closeMessage(b, in)
	}
	return appendTail(b, at, ownFlags)
}

// appendDerived writes what follows from the step's spans.
func appendDerived(b []byte, s *collector.Step) []byte {
	if len(s.Spans) == 0 {
		return b
	}
	d := &s.Derived
	b = keyGPUExtent.appendInt(b, tagSpanAttribute, d.ExtentNS)
	b = keyGPULane.appendInt(b, tagSpanAttribute, d.LaneNS)
	b = keyGPUOutside.appendInt(b, tagSpanAttribute, d.OutsideNS)
	if d.HasBusy {
		b = keyGPUBusy.appendInt(b, tagSpanAttribute, d.BusyNS)
		b = keyGPULaneIdle.appendInt(b, tagSpanAttribute, d.LaneIdleNS)
	}
	if d.HasQueue {
		b = keyQueueDelay.appendInt(b, tagSpanAttribute, d.QueueNS)
	}
	if d.Bound != collector.BoundUnknown {
		b = keyBound.appendString(b, tagSpanAttribute, d.Bound.String())
	}
	return b
}

// faults says in words what is wrong with a step.
func faults(s *collector.Step) string {
	var b []byte
	add := func(format string, args ...any) {
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = fmt.Appendf(b, format, args...)
	}
	if s.Incomplete != collector.Complete {
		add("closed early (%s)", s.Incomplete)
	}
	if s.FailedCount > 0 {
		add("%d spans failed", s.FailedCount)
		if len(s.Failed) > 0 {
			b = fmt.Appendf(b, " (%s)", s.Failed[0].Reason)
		}
	}
	if s.Dropped > 0 {
		add("%d spans found no event pair", s.Dropped)
	}
	if n := s.Missing(); n > 0 {
		add("%d spans missing", n)
	}
	if s.LeftOut > 0 {
		add("%d spans left out", s.LeftOut)
	}
	return string(b)
}

func appendFailed(b []byte, s *collector.Step, f *collector.FailedSpan) []byte {
	b, at := openMessage(b, tagSpanEvent)
	b = appendFixed64(b, tagEventTime, uint64(s.UnixNS(f.EnqueueMonoNS)))
	b = appendString(b, tagEventName, eventFailed)
	b = keySpanKind.appendString(b, tagEventAttribute, f.SpanKind.String())
	k := keyKernel
	if f.SpanKind == collector.KindLane {
		k = keyLane
	}
	b = k.appendString(b, tagEventAttribute, f.Text.String())
	b = keyFailReason.appendString(b, tagEventAttribute, f.Reason.String())
	b = keyStream.appendInt(b, tagEventAttribute, int64(f.Stream))
	return closeMessage(b, at)
}

func appendLaunchDiff(b []byte, s *collector.Step, d *collector.LaunchDiff) []byte {
	b, at := openMessage(b, tagSpanEvent)
	b = appendFixed64(b, tagEventTime, uint64(s.UnixNS(d.MonoNS)))
	b = appendString(b, tagEventName, eventLaunchDiff)
	b = keyRegion.appendString(b, tagEventAttribute, d.Text.String())
	for _, c := range [...]struct {
		k key
		n uint32
	}{{keyOpsBefore, d.Before}, {keyOpsAfter, d.After}, {keyOpsInserted, d.Inserted}, {keyOpsRemoved, d.Removed}, {keyOpsChanged, d.Changed}} {
		b = c.k.appendInt(b, tagEventAttribute, int64(c.n))
	}
	if d.Partial {
		b = keyOpsPartial.appendBool(b, tagEventAttribute, true)
	}
	return closeMessage(b, at)
}

func appendHost(b []byte, s *collector.Step, trace collector.TraceID) []byte {
	root := trace.RootID()
	b, at := appendHead(b, trace, trace.HostID(), &root, spanHost, s.UnixNS(s.BeginMonoNS), s.UnixNS(s.EndMonoNS))
	b = keySpanKind.appendString(b, tagSpanAttribute, spanHost)
	return appendTail(b, at, ownFlags)
}

func appendSpan(b []byte, s *collector.Step, i int, trace collector.TraceID) []byte {
	sp := &s.Spans[i]
	parent := trace.RootID()
	if j := s.ParentOf(i); j >= 0 {
		parent = trace.SpanID(s.Spans[j].Ordinal)
	}
	startNS := s.UnixNS(sp.StartMonoNS)
	b, at := appendHead(b, trace, trace.SpanID(sp.Ordinal), &parent, sp.Text.Title(), startNS, startNS+int64(sp.DurationNS()))
	b = keySpanKind.appendString(b, tagSpanAttribute, sp.Kind.String())
	if sp.LaneText != nil {
		b = keyLane.appendString(b, tagSpanAttribute, sp.LaneText.Text)
	}
	switch sp.Kind {
	case collector.KindKernel:
		b = keyKernel.appendString(b, tagSpanAttribute, sp.Text.String())
	case collector.KindGraph:
		b = keyGraphID.appendInt(b, tagSpanAttribute, int64(sp.Text.GraphID))
		b = keyGraphNodes.appendInt(b, tagSpanAttribute, int64(sp.Text.GraphNodes))
	}
	b = keyStream.appendInt(b, tagSpanAttribute, int64(sp.Stream))
	if sp.Context != 0 {
		b = keyContext.appendInt(b, tagSpanAttribute, int64(sp.Context))
	}
	b = keyQueueDelay.appendInt(b, tagSpanAttribute, sp.LeadNS)
	if sp.Kind != collector.KindLane {
		b = keyGap.appendString(b, tagSpanAttribute, sp.Gap.String())
		b = keyRaw.appendInt(b, tagSpanAttribute, int64(sp.RawNS))
		b = keyCalibration.appendString(b, tagSpanAttribute, sp.Calibration.String())
	}
	b = keyDurUncertain.appendInt(b, tagSpanAttribute, int64(sp.DurationUncertaintyNS))
	b = keyPlaceUncertain.appendInt(b, tagSpanAttribute, int64(sp.PlaceUncertaintyNS))
	if sp.SharedStart {
		b = keySharedStart.appendBool(b, tagSpanAttribute, true)
	}
	if sp.InGraph {
		b = keyInGraph.appendBool(b, tagSpanAttribute, true)
	}
	return appendTail(b, at, ownFlags)
}

const attrEngine = "lanetrace.engine"

// Attributes of resources.
var (
	keyService    = newKey("service.name")
	keyInstance   = newKey("service.instance.id")
	keyHost       = newKey("host.name")
	keyPID        = newKey("process.pid")
	keyExecutable = newKey("process.executable.name")
	keyHWID       = newKey("hw.id")
	keyHWName     = newKey("hw.name")
	keyHWType     = newKey("hw.type")
	keyEngine     = newKey(attrEngine)
	keyProducer   = newKey("lanetrace.producer")
	keyRankData   = newKey("lanetrace.rank.data")
	keyRankTensor = newKey("lanetrace.rank.tensor")
	keyRankPipe   = newKey("lanetrace.rank.pipeline")
	keyRankExpert = newKey("lanetrace.rank.expert")
)

// appendResource writes the ResourceSpans.resource field of an engine.
func appendResource(b []byte, label, host string, i *collector.Info) []byte {
	b, at := openMessage(b, tagRSResource)
	text := func(k key, v string) {
		if v = collector.CleanText(v); v != "" {
			b = k.appendString(b, tagResourceAttribute, v)
		}
	}
	service := i.Service
	if service == "" {
		service = i.Executable
	}
	if service == "" {
		service = "unknown_service"
	}
	text(keyService, service)
	text(keyInstance, i.RunID.String())
	text(keyHost, host)
	if i.PID != 0 {
		b = keyPID.appendInt(b, tagResourceAttribute, int64(i.PID))
	}
	text(keyExecutable, i.Executable)
	if i.GPUUUID != "" {
		text(keyHWID, i.GPUUUID)
		text(keyHWType, "gpu")
		text(keyHWName, i.GPUName)
	}
	text(keyEngine, label)
	text(keyProducer, i.Producer)
	for _, r := range [...]struct {
		k key
		n int32
	}{{keyRankData, i.Rank.Data}, {keyRankTensor, i.Rank.Tensor}, {keyRankPipe, i.Rank.Pipeline}, {keyRankExpert, i.Rank.Expert}} {
		if r.n >= 0 {
			b = r.k.appendInt(b, tagResourceAttribute, int64(r.n))
		}
	}
	return closeMessage(b, at)
}

// appendScope writes the ScopeSpans.scope field.
func appendScope(b []byte, version string) []byte {
	b, at := openMessage(b, tagSSScope)
	b = appendString(b, tagScopeName, ScopeName)
	if version != "" {
		b = appendString(b, tagScopeVersion, version)
	}
	return closeMessage(b, at)
}

// resourceSpansSize is how long a ResourceSpans message is whose chunks together
// have n bytes.
func resourceSpansSize(resource, scope, n int) int {
	ss := scope + n
	return resource + 1 + protowire.SizeVarint(uint64(ss)) + ss
}

// appendResourceSpans writes the fields of a ResourceSpans message.
func appendResourceSpans(b, resource, scope []byte, chunks ...[]byte) []byte {
	n := len(scope)
	for _, c := range chunks {
		n += len(c)
	}
	b = slices.Grow(b, resourceSpansSize(len(resource), 0, n))
	b = append(b, resource...)
	b = append(b, tagRSScopeSpans)
	b = protowire.AppendVarint(b, uint64(n))
	b = append(b, scope...)
	for _, c := range chunks {
		b = append(b, c...)
	}
	return b
}
