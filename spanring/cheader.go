package spanring

import (
	"bytes"
	"fmt"
	"math/bits"
	"strings"
)

// CHeader is the layout as a C header, so that a producer in C has no second
// definition of it: offsets, sizes, kinds, counters, reasons, and where each
// field of a record lies. The last are found by encoding records that hold
// nothing but that field. It is for a generator of source; it allocates, and
// cannot fail.
func CHeader() []byte {
	h := &cheader{}
	h.line("/* Generated from the ring's layout in Go by \"go generate\". Do not edit. */")
	h.line("/* SPDX-License-Identifier: Apache-2.0 */")
	h.line("#ifndef LANETRACE_AGENT_LAYOUT_H")
	h.line("#define LANETRACE_AGENT_LAYOUT_H")
	h.header()
	h.enums()
	h.counters()
	h.entries()
	h.tables()
	h.line("")
	h.line("#endif")
	return h.b.Bytes()
}

type cheader struct{ b bytes.Buffer }

func (h *cheader) line(format string, args ...any) { fmt.Fprintf(&h.b, format+"\n", args...) }

func (h *cheader) section(comment string) { h.line("\n/* %s */", comment) }

func (h *cheader) num(name string, v uint64) { h.line("#define LT_%s %d", name, v) }
func (h *cheader) hex(name string, v uint64) { h.line("#define LT_%s 0x%x", name, v) }

// wide is for what exceeds 31 bits.
func (h *cheader) wide(name string, v uint64) { h.line("#define LT_%s UINT64_C(0x%x)", name, v) }

type named struct {
	name string
	v    uint64
}

func (h *cheader) header() {
	h.section("Sizes in bytes, and what they may be.")
	for _, n := range []named{
		{"LAYOUT_VERSION", LayoutVersion}, {"HEADER_SIZE", HeaderSize}, {"ENTRY_SIZE", EntrySize}, {"SLOT_SIZE", SlotSize},
		{"ALLOC_SIZE", AllocSize}, {"NAME_ALIGN", nameAlign}, {"MAX_NAME_BYTES", MaxNameBytes}, {"MAX_FILE_BYTES", MaxFileBytes},
		{"MAX_CONTEXTS", MaxContexts}, {"CONTEXT_SIZE", contextSize}, {"EXE_BYTES", exeBytes}, {"SERVICE_BYTES", serviceBytes},
		{"GPU_UUID_BYTES", gpuUUIDBytes}, {"GPU_NAME_BYTES", gpuNameBytes}, {"PRODUCER_BYTES", producerBytes},
		{"MAX_CONTROL_BYTES", maxControlBytes}, {"KEEP_DEAD", keepDead}, {"STALE_TEMPORARY_S", uint64(staleTemporary.Seconds())},
		{"DEFAULT_LOG_ENTRIES", uint64(DefaultGeometry.LogEntries)}, {"DEFAULT_SLOTS", uint64(DefaultGeometry.Slots)},
		{"DEFAULT_NAME_BYTES", uint64(DefaultGeometry.NameBytes)}, {"DEFAULT_ALLOCS", uint64(DefaultGeometry.Allocs)},
	} {
		h.num(n.name, n.v)
	}
	h.line("#define LT_RING_SUFFIX %q", Suffix)
	h.line("#define LT_CONTROL_SUFFIX %q", ControlSuffix)
	h.wide("MAGIC", magic)

	h.section("Offsets into the header.")
	for _, n := range []named{
		{"MAGIC", offMagic}, {"VERSION", offVersion}, {"FILE_BYTES", offFileBytes}, {"LOG_OFF", offLogOff}, {"LOG_ENTRIES", offLogEntries},
		{"SLOT_OFF", offSlotOff}, {"SLOT_COUNT", offSlotCount}, {"NAME_OFF", offNameOff}, {"NAME_BYTES", offNameBytes},
		{"ALLOC_OFF", offAllocOff}, {"ALLOC_COUNT", offAllocCount}, {"RUN_ID", offRunID}, {"PID", offPID}, {"PID_NS", offPIDNS},
		{"START_TICKS", offStartTicks}, {"MADE_UNIX_NS", offMadeUnixNS}, {"MADE_MONO_NS", offMadeMonoNS}, {"EXE", offExe},
		{"SERVICE", offService}, {"GPU_UUID", offGPUUUID}, {"GPU_NAME", offGPUName}, {"RANK", offRank}, {"PRODUCER", offProducer}, {"MODEL", offModel},
		{"STATE", offState}, {"ARMING", offArming}, {"LANES", offLanes}, {"HEAD", offHead}, {"NAMES_USED", offNamesUsed}, {"COUNTERS", offCounters},
		{"ALLOC_MUT", offAllocMut}, {"ALLOC_USE", offAllocUse}, {"CONTEXTS", offContexts},
	} {
		h.hex("OFF_"+n.name, n.v)
	}
	h.section("The state word beside its level, and the words that publish.")
	h.wide("STATE_CLEAN", stateClean)
	h.num("WORD_CLAIMED", wordClaimed)
	h.num("WORD_SHIFT", wordShift)
	h.wide("ALLOC_TRACKED", allocTracked)
	h.wide("ALLOC_STALE", allocStale)
	h.num("ALLOC_LIVE", allocLive)
	h.num("ALLOC_WORD_MASK", allocWordMask)
	h.num("ALLOC_GEN", allocGen)
	h.wide("MAX_ALLOC_BYTES", MaxAllocBytes)
}

func (h *cheader) enums() {
	h.section("Kinds of log entry.")
	for k := KindStepBegin; k < numKinds; k++ {
		h.num("KIND_"+strings.ToUpper(k.String()), uint64(k))
	}
	h.section("Why a begun span did not land.")
	for r := FailNone; r < numReasons; r++ {
		h.num("FAIL_"+strings.ToUpper(r.String()), uint64(r))
	}
	h.num("NUM_REASONS", uint64(numReasons))
	h.section("Kinds of name.")
	for _, n := range []named{
		{"LANE", uint64(NameLane)}, {"KERNEL", uint64(NameKernel)}, {"SITE", uint64(NameSite)}, {"GRAPH", uint64(NameGraph)},
		{"OTHER", uint64(NameOther)},
	} {
		h.num("NAME_"+n.name, n.v)
	}
	h.num("NAME_MARK", nameMark)
	h.num("GRAPH_PAYLOAD", graphPayload)
	h.section("Enumerations of fields.")
	for _, g := range []Gap{GapUnknown, GapQueued, GapStarved} {
		h.num("GAP_"+strings.ToUpper(g.String()), uint64(g))
	}
	for _, c := range []Calibration{CalibrationNone, CalibrationMeasured, CalibrationAssumed} {
		h.num("CALIBRATION_"+strings.ToUpper(c.String()), uint64(c))
	}
	for _, g := range []GraphMode{GraphUnknown, GraphEager, GraphReplay, GraphMixed} {
		h.num("GRAPH_MODE_"+strings.ToUpper(g.String()), uint64(g))
	}
	for s := range StepSource(NumStepSources) {
		h.num("STEP_"+strings.ToUpper(s.String()), uint64(s))
	}
	for _, s := range []SlotState{SlotFree, SlotOpen, SlotClosed, SlotDrain} {
		h.num("SLOT_"+strings.ToUpper(s.String()), uint64(s))
	}
	for _, k := range []AllocKind{AllocDevice, AllocManaged} {
		h.num("ALLOC_"+strings.ToUpper(k.String()), uint64(k))
	}
	h.num("MEM_SWEPT", memSwept)
}

func (h *cheader) counters() {
	h.section("Counters.")
	for c := range NumCounters {
		if t := c.String(); t != "reserved" {
			h.num("CTR_"+strings.ToUpper(t), uint64(c))
		}
	}
	h.num("CTR_FAILED_FIRST", uint64(CtrFailedFirst))
	h.num("CTR_MEM_FIRST", uint64(ctrMemFirst))
	h.num("CTR_MEM_END", uint64(ctrMemEnd))
	h.num("NUM_COUNTERS", uint64(NumCounters))
}

// field says where a field lies: with is a record that holds 1 in it and nothing
// else, without the same with 0.
func (h *cheader) field(name string, with, without []uint64) {
	for i := range with {
		if d := with[i] ^ without[i]; d != 0 {
			h.line("#define LT_%s_WORD %d", name, i)
			h.line("#define LT_%s_SHIFT %d", name, bits.TrailingZeros64(d))
			return
		}
	}
}

type fieldOf struct {
	name string
	with Words
}

func (h *cheader) record(comment, name string, zero Words, fields []fieldOf) {
	h.section(comment)
	for _, f := range fields {
		h.field(name+"_"+f.name, f.with[:], zero[:])
	}
}

func (h *cheader) entries() {
	first := func(k Kind, fl, re, c uint8, l, s uint16) Words { return Words{head(k, fl, re, c, l, s)} }
	h.record("The first word of every entry. A field is LT_x_WORD of the payload's seven, from bit LT_x_SHIFT on.", "HEAD", Words{}, []fieldOf{
		{"KIND", first(1, 0, 0, 0, 0, 0)}, {"FLAGS", first(0, 1, 0, 0, 0, 0)}, {"REASON", first(0, 0, 1, 0, 0, 0)},
		{"CONTEXT", first(0, 0, 0, 1, 0, 0)}, {"LANE", first(0, 0, 0, 0, 1, 0)}, {"STREAM", first(0, 0, 0, 0, 0, 1)},
	})
	span := func(s Span) Words { return s.Words() }
	h.record("A lane, kernel or graph launch.", "SPAN", span(Span{}), []fieldOf{
		{"GAP", span(Span{Gap: 1})}, {"CALIBRATION", span(Span{Calibration: 1})}, {"ARMED", span(Span{Armed: true})},
		{"SHARED_START", span(Span{SharedStart: true})}, {"IN_GRAPH", span(Span{InGraph: true})},
		{"STEP", span(Span{Step: 1})}, {"NAME", span(Span{Name: 1})}, {"ORDINAL", span(Span{Ordinal: 1})}, {"PARENT", span(Span{Parent: 1})},
		{"START_MONO_NS", span(Span{StartMonoNS: 1})}, {"RAW_NS", span(Span{RawNS: 1})}, {"CORRECTION_NS", span(Span{CorrectionNS: 1})},
		{"LEAD_NS", span(Span{LeadNS: 1})}, {"PLACE_UNCERTAINTY_NS", span(Span{PlaceUncertaintyNS: 1})},
		{"DURATION_UNCERTAINTY_NS", span(Span{DurationUncertaintyNS: 1})},
	})
	h.wide("MAX_48", max48)
	h.num("UNCERTAINTY_BITS", uncertaintyExpSh)
	failed := func(f SpanFailed) Words { return f.Words() }
	h.record("A span that will never land.", "SPAN_FAILED", failed(SpanFailed{}), []fieldOf{
		{"SPAN_KIND", failed(SpanFailed{SpanKind: 1})}, {"REASON", failed(SpanFailed{Reason: 1})}, {"STEP", failed(SpanFailed{Step: 1})},
		{"ENQUEUE_MONO_NS", failed(SpanFailed{EnqueueMonoNS: 1})}, {"NAME", failed(SpanFailed{Name: 1})},
		{"ORDINAL", failed(SpanFailed{Ordinal: 1})}, {"PARENT", failed(SpanFailed{Parent: 1})},
	})
	begin := func(s StepBegin) Words { return s.Words() }
	h.record("A step's begin.", "STEP_BEGIN", begin(StepBegin{}), []fieldOf{
		{"ARMED", begin(StepBegin{Armed: true})}, {"ASKED", begin(StepBegin{Asked: true})}, {"LEVEL", begin(StepBegin{Level: 1})}, {"STEP", begin(StepBegin{Step: 1})},
		{"SOURCE", begin(StepBegin{Source: 1})}, {"UNTIMED", begin(StepBegin{Untimed: true})},
		{"MONO_NS", begin(StepBegin{MonoNS: 1})},
	})
	h.num("STEP_BEGIN_UNTIMED_LEVEL", levelBasic)
	end := func(s StepEnd) Words { return s.Words() }
	h.record("A step's end.", "STEP_END", end(StepEnd{}), []fieldOf{
		{"ARMED", end(StepEnd{Armed: true})}, {"STEP", end(StepEnd{Step: 1})}, {"MONO_NS", end(StepEnd{MonoNS: 1})},
		{"BEGIN_NS", end(StepEnd{BeginNS: 1})}, {"OPENED", end(StepEnd{Opened: 1})}, {"DROPPED", end(StepEnd{Dropped: 1})},
		{"LINKED", end(StepEnd{Linked: 1})}, {"UNTIMED", end(StepEnd{Untimed: true})},
	})
	attrs := func(a StepAttrs) Words { return a.Words() }
	h.record("A step's attributes.", "STEP_ATTRS", attrs(StepAttrs{}), []fieldOf{
		{"GRAPH_MODE", attrs(StepAttrs{GraphMode: 1})}, {"STEP", attrs(StepAttrs{Step: 1})}, {"BATCH_SIZE", attrs(StepAttrs{BatchSize: 1})},
		{"DECODE_TOKENS", attrs(StepAttrs{DecodeTokens: 1})}, {"PREFILL_TOKENS", attrs(StepAttrs{PrefillTokens: 1})},
	})
	link := func(l StepLink) Words { return l.Words() }
	trace := TraceContext{TraceID: [16]byte{1}}
	half := TraceContext{TraceID: [16]byte{8: 1}}
	inner := TraceContext{SpanID: [8]byte{1}}
	flags := TraceContext{Flags: 1}
	h.record("A step's trace context. Ids lie as bytes in memory; the trace's second half follows.", "STEP_LINK", link(StepLink{}), []fieldOf{
		{"FLAGS", link(StepLink{TraceContext: flags})}, {"STEP", link(StepLink{Step: 1})}, {"TRACE_ID", link(StepLink{TraceContext: trace})},
		{"TRACE_ID_2", link(StepLink{TraceContext: half})}, {"SPAN_ID", link(StepLink{TraceContext: inner})},
	})
	h.num("MAX_STEP_LINKS", MaxStepLinks)
	over := func(r RequestEnd) Words { return r.Words() }
	h.record("The end of a request.", "REQUEST_END", over(RequestEnd{}), []fieldOf{
		{"FLAGS", over(RequestEnd{TraceContext: flags})}, {"TRACE_ID", over(RequestEnd{TraceContext: trace})},
		{"TRACE_ID_2", over(RequestEnd{TraceContext: half})}, {"SPAN_ID", over(RequestEnd{TraceContext: inner})},
		{"BEGIN_NS", over(RequestEnd{BeginNS: 1})}, {"END_NS", over(RequestEnd{EndNS: 1})},
		{"PROMPT_TOKENS", over(RequestEnd{PromptTokens: 1})}, {"OUTPUT_TOKENS", over(RequestEnd{OutputTokens: 1})},
	})
	anchor := func(a Anchor) Words { return a.Words() }
	h.record("A clock anchor.", "ANCHOR", anchor(Anchor{}), []fieldOf{
		{"GPU_NS", anchor(Anchor{GPUNS: 1})}, {"MONO_NS", anchor(Anchor{MonoNS: 1})}, {"RATE_PPB", anchor(Anchor{RatePPB: 1})},
		{"RESIDUAL_NS", anchor(Anchor{ResidualNS: 1})}, {"UNCERTAINTY_NS", anchor(Anchor{UncertaintyNS: 1})},
	})
	mem := func(a Alloc) Words { return (&MemEvent{Alloc: a}).Words() }
	h.record("An allocation or a free.", "MEM", mem(Alloc{}), []fieldOf{
		{"ALLOC_KIND", mem(Alloc{Kind: 1})}, {"ADDR", mem(Alloc{Addr: 1})}, {"BYTES", mem(Alloc{Bytes: 1})}, {"GUARD_BYTES", mem(Alloc{GuardBytes: 1})},
		{"SITE", mem(Alloc{Site: 1})}, {"INDEX", mem(Alloc{Index: 1})}, {"MONO_NS", mem(Alloc{MonoNS: 1})},
		{"LIVE_BYTES", (&MemEvent{LiveBytes: 1}).Words()}, {"SWEPT", (&MemEvent{Swept: true}).Words()},
	})
}

func (h *cheader) tables() {
	place := func(a Alloc) Words { return a.words() }
	h.record("A place of the table of allocations, behind its word.", "PLACE", place(Alloc{}), []fieldOf{
		{"ADDR", place(Alloc{Addr: 1})}, {"BYTES", place(Alloc{Bytes: 1})}, {"GUARD_BYTES", place(Alloc{GuardBytes: 1})},
		{"SITE", place(Alloc{Site: 1})}, {"INDEX", place(Alloc{Index: 1})}, {"MONO_NS", place(Alloc{MonoNS: 1})},
		{"KIND", place(Alloc{Kind: 1})}, {"CONTEXT", place(Alloc{Context: 1})},
	})

	h.section("A context record, behind its sequence word.")
	ctx := func(c ContextState) []uint64 { w := c.words(); return w[:] }
	zero := ctx(ContextState{})
	h.num("CONTEXT_WORDS", uint64(len(zero)))
	h.num("CONTEXT_USED", ctxUsed)
	for _, f := range []struct {
		name string
		c    ContextState
	}{
		{"UUID", ContextState{UUID: [16]byte{1}}}, {"MIG", ContextState{MIG: true}}, {"DEVICE", ContextState{Device: 1}},
		{"CAPABILITY", ContextState{Capability: 1}}, {"CALIBRATION", ContextState{Calibration: 1}}, {"CONSTANT_NS", ContextState{ConstantNS: 1}},
		{"SPREAD_NS", ContextState{SpreadNS: 1}}, {"FIRST_SLOT", ContextState{FirstSlot: 1}}, {"SLOTS", ContextState{Slots: 1}},
		{"GPU_REF_NS", ContextState{GPURefNS: 1}}, {"HOST_REF_NS", ContextState{HostRefNS: 1}}, {"RATE_PPB", ContextState{RatePPB: 1}},
		{"UPDATED_MONO_NS", ContextState{UpdatedMonoNS: 1}}, {"UNCERTAINTY_NS", ContextState{UncertaintyNS: 1}},
	} {
		h.field("CTX_"+f.name, ctx(f.c), zero)
	}
	// The word that says that a record is in use holds the flags.
	h.field("CTX_FLAGS", zero, make([]uint64, len(zero)))

	h.section("A pair slot: its word, and its payload behind it.")
	h.num("SLOT_GEN_SHIFT", uint64(bits.TrailingZeros64(uint64(MakeSlotWord(1, SlotFree)))))
	marked := func(s Slot, gen uint32) Words { return s.words(s.mark(gen)) }
	slot := func(s Slot) Words { return marked(s, 0) }
	h.record("The word of the mark is stored last.", "SLOTV", slot(Slot{}), []fieldOf{
		{"KIND", slot(Slot{Kind: 1})}, {"ARMED", slot(Slot{Armed: true})}, {"SHARED_START", slot(Slot{SharedStart: true})},
		{"GAP", slot(Slot{Gap: 1})}, {"CONTEXT", slot(Slot{Context: 1})}, {"GENERATION", marked(Slot{}, 1)},
		{"LANE", slot(Slot{Lane: 1})}, {"STREAM", slot(Slot{Stream: 1})}, {"STEP", slot(Slot{Step: 1})},
		{"ENQUEUE_MONO_NS", slot(Slot{EnqueueMonoNS: 1})}, {"CLOSED_MONO_NS", slot(Slot{ClosedMonoNS: 1})}, {"NAME", slot(Slot{Name: 1})},
		{"ORDINAL", slot(Slot{Ordinal: 1})}, {"PARENT", slot(Slot{Parent: 1})}, {"GRAPH", slot(Slot{Graph: 1})},
	})
	h.num("SLOT_MARK", slotMark)
	h.num("GAP_MASK", flagGapMask)
}
