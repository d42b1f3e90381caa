// SPDX-License-Identifier: Apache-2.0
//
// The encodings of log entries, as package spanring has them in Go. Each function
// gives the seven words for lt_ring_append; none can fail. Values beyond their
// field are cut to its end where Go cuts them.
#ifndef LANETRACE_AGENT_ENTRY_H
#define LANETRACE_AGENT_ENTRY_H

#include "ring.h"

#define LT_SET(e, field, v) ((e).w[LT_##field##_WORD] |= (uint64_t)(v) << LT_##field##_SHIFT)

static inline lt_words lt_entry_head(unsigned kind, unsigned context, unsigned lane, unsigned stream) {
  lt_words e = {{0}};
  LT_SET(e, HEAD_KIND, (uint8_t)kind);
  LT_SET(e, HEAD_CONTEXT, (uint8_t)context);
  LT_SET(e, HEAD_LANE, (uint16_t)lane);
  LT_SET(e, HEAD_STREAM, (uint16_t)stream);
  return e;
}

// lt_pack_uncertainty keeps 11 significant bits, rounded up, and an exponent of 5
// bits.
static inline uint16_t lt_pack_uncertainty(uint64_t ns) {
  unsigned n = ns == 0 ? 0 : 64 - (unsigned)__builtin_clzll(ns);
  if (n <= LT_UNCERTAINTY_BITS)
    return (uint16_t)ns;
  unsigned e = n - LT_UNCERTAINTY_BITS;
  uint64_t m = (ns >> e) + ((ns & ((UINT64_C(1) << e) - 1)) != 0);
  if (m == UINT64_C(1) << LT_UNCERTAINTY_BITS) {
    m >>= 1;
    e++;
  }
  if (e > 31)
    return UINT16_MAX;
  return (uint16_t)(m | (uint64_t)e << LT_UNCERTAINTY_BITS);
}

// A landed lane, kernel or graph launch; the fields are spanring.Span's.
typedef struct lt_span {
  uint8_t kind; // LT_KIND_LANE, LT_KIND_KERNEL or LT_KIND_GRAPH
  bool armed, shared_start, in_graph;
  uint8_t gap;         // LT_GAP_…
  uint8_t calibration; // LT_CALIBRATION_…
  uint8_t context;
  uint16_t lane, stream;
  uint64_t step;
  lt_name_id name;
  uint32_t ordinal; // from 1
  uint32_t parent;  // ordinal of the lane around it, 0: the step itself
  int64_t start_mono_ns;
  uint64_t raw_ns;
  uint16_t correction_ns;
  int64_t lead_ns;
  uint64_t place_uncertainty_ns, duration_uncertainty_ns;
} lt_span;

static inline lt_words lt_span_words(const lt_span *s) {
  lt_words e = lt_entry_head(s->kind, s->context, s->lane, s->stream);
  const int64_t edge = INT64_C(1) << 47;
  int64_t lead = s->lead_ns < -edge ? -edge : s->lead_ns > edge - 1 ? edge - 1 : s->lead_ns;
  LT_SET(e, SPAN_GAP, s->gap & LT_GAP_MASK);
  LT_SET(e, SPAN_CALIBRATION, s->calibration & 3);
  LT_SET(e, SPAN_ARMED, s->armed);
  LT_SET(e, SPAN_SHARED_START, s->shared_start);
  LT_SET(e, SPAN_IN_GRAPH, s->in_graph);
  LT_SET(e, SPAN_STEP, s->step);
  LT_SET(e, SPAN_START_MONO_NS, s->start_mono_ns);
  LT_SET(e, SPAN_RAW_NS, s->raw_ns > LT_MAX_48 ? LT_MAX_48 : s->raw_ns);
  LT_SET(e, SPAN_CORRECTION_NS, s->correction_ns);
  LT_SET(e, SPAN_LEAD_NS, (uint64_t)lead & LT_MAX_48);
  LT_SET(e, SPAN_PLACE_UNCERTAINTY_NS, lt_pack_uncertainty(s->place_uncertainty_ns));
  LT_SET(e, SPAN_NAME, s->name);
  LT_SET(e, SPAN_ORDINAL, s->ordinal);
  LT_SET(e, SPAN_PARENT, s->parent);
  LT_SET(e, SPAN_DURATION_UNCERTAINTY_NS, lt_pack_uncertainty(s->duration_uncertainty_ns));
  return e;
}

// A span that had begun and will never land.
typedef struct lt_span_failed {
  uint8_t span_kind;
  uint8_t reason; // LT_FAIL_…
  uint8_t context;
  uint16_t lane, stream;
  uint64_t step;
  int64_t enqueue_mono_ns;
  lt_name_id name;
  uint32_t ordinal, parent;
} lt_span_failed;

static inline lt_words lt_span_failed_words(const lt_span_failed *f) {
  lt_words e = lt_entry_head(LT_KIND_SPAN_FAILED, f->context, f->lane, f->stream);
  LT_SET(e, SPAN_FAILED_SPAN_KIND, f->span_kind);
  LT_SET(e, SPAN_FAILED_REASON, f->reason);
  LT_SET(e, SPAN_FAILED_STEP, f->step);
  LT_SET(e, SPAN_FAILED_ENQUEUE_MONO_NS, f->enqueue_mono_ns);
  LT_SET(e, SPAN_FAILED_NAME, f->name);
  LT_SET(e, SPAN_FAILED_ORDINAL, f->ordinal);
  LT_SET(e, SPAN_FAILED_PARENT, f->parent);
  return e;
}

typedef struct lt_step_begin_entry {
  uint64_t step; // from 1
  int64_t mono_ns;
  bool armed;
  bool asked;   // armed because somebody asked for it
  bool untimed; // the budget for lanes left its lanes out
  uint8_t level;
  uint8_t source; // LT_STEP_…: what marked it
} lt_step_begin_entry;

static inline lt_words lt_step_begin_words(const lt_step_begin_entry *s) {
  lt_words e = lt_entry_head(LT_KIND_STEP_BEGIN, 0, 0, 0);
  LT_SET(e, STEP_BEGIN_ARMED, s->armed);
  LT_SET(e, STEP_BEGIN_ASKED, s->asked);
  // What is measured of an untimed step is what level basic measures.
  const bool lower = s->untimed && s->level > LT_STEP_BEGIN_UNTIMED_LEVEL;
  LT_SET(e, STEP_BEGIN_LEVEL, lower ? LT_STEP_BEGIN_UNTIMED_LEVEL : s->level);
  LT_SET(e, STEP_BEGIN_UNTIMED, s->untimed);
  LT_SET(e, STEP_BEGIN_SOURCE, s->source);
  LT_SET(e, STEP_BEGIN_STEP, s->step);
  LT_SET(e, STEP_BEGIN_MONO_NS, s->mono_ns);
  return e;
}

typedef struct lt_step_end_entry {
  uint64_t step;
  int64_t mono_ns, begin_ns;
  bool armed, untimed;
  uint32_t opened;  // spans begun in it that land or fail, each with an entry
  uint32_t dropped; // spans that found no free slot
  uint32_t linked;  // trace contexts, of which LT_MAX_STEP_LINKS have entries
} lt_step_end_entry;

static inline lt_words lt_step_end_words(const lt_step_end_entry *s) {
  lt_words e = lt_entry_head(LT_KIND_STEP_END, 0, 0, 0);
  LT_SET(e, STEP_END_ARMED, s->armed);
  LT_SET(e, STEP_END_UNTIMED, s->untimed);
  LT_SET(e, STEP_END_STEP, s->step);
  LT_SET(e, STEP_END_MONO_NS, s->mono_ns);
  LT_SET(e, STEP_END_BEGIN_NS, s->begin_ns);
  LT_SET(e, STEP_END_OPENED, s->opened);
  LT_SET(e, STEP_END_DROPPED, s->dropped);
  LT_SET(e, STEP_END_LINKED, s->linked);
  return e;
}

typedef struct lt_step_attrs_entry {
  uint64_t step;
  uint32_t batch_size, decode_tokens, prefill_tokens;
  uint8_t graph_mode; // LT_GRAPH_MODE_…
} lt_step_attrs_entry;

static inline lt_words lt_step_attrs_words(const lt_step_attrs_entry *a) {
  lt_words e = lt_entry_head(LT_KIND_STEP_ATTRS, 0, 0, 0);
  LT_SET(e, STEP_ATTRS_GRAPH_MODE, a->graph_mode);
  LT_SET(e, STEP_ATTRS_STEP, a->step);
  LT_SET(e, STEP_ATTRS_BATCH_SIZE, a->batch_size);
  LT_SET(e, STEP_ATTRS_DECODE_TOKENS, a->decode_tokens);
  LT_SET(e, STEP_ATTRS_PREFILL_TOKENS, a->prefill_tokens);
  return e;
}

// lt_id_word is eight bytes of an id as a word of the ring has them.
static inline uint64_t lt_id_word(const uint8_t *b) {
  uint64_t w = 0;
  for (int i = 0; i < 8; i++)
    w |= (uint64_t)b[i] << (8 * i);
  return w;
}

// A trace context that a step worked for.
typedef struct lt_step_link_entry {
  uint64_t step;
  uint8_t trace_id[16], span_id[8], flags;
} lt_step_link_entry;

static inline lt_words lt_step_link_words(const lt_step_link_entry *l) {
  lt_words e = lt_entry_head(LT_KIND_TRACE_CONTEXT, 0, 0, 0);
  LT_SET(e, STEP_LINK_FLAGS, l->flags);
  LT_SET(e, STEP_LINK_STEP, l->step);
  LT_SET(e, STEP_LINK_TRACE_ID, lt_id_word(l->trace_id));
  LT_SET(e, STEP_LINK_TRACE_ID_2, lt_id_word(l->trace_id + 8));
  LT_SET(e, STEP_LINK_SPAN_ID, lt_id_word(l->span_id));
  return e;
}

// The end of a request.
typedef struct lt_request_end_entry {
  uint8_t trace_id[16], span_id[8], flags;
  int64_t begin_ns, end_ns; // CLOCK_MONOTONIC
  uint32_t prompt_tokens, output_tokens;
} lt_request_end_entry;

static inline lt_words lt_request_end_words(const lt_request_end_entry *r) {
  lt_words e = lt_entry_head(LT_KIND_REQUEST_END, 0, 0, 0);
  LT_SET(e, REQUEST_END_FLAGS, r->flags);
  LT_SET(e, REQUEST_END_TRACE_ID, lt_id_word(r->trace_id));
  LT_SET(e, REQUEST_END_TRACE_ID_2, lt_id_word(r->trace_id + 8));
  LT_SET(e, REQUEST_END_SPAN_ID, lt_id_word(r->span_id));
  LT_SET(e, REQUEST_END_BEGIN_NS, r->begin_ns);
  LT_SET(e, REQUEST_END_END_NS, r->end_ns);
  LT_SET(e, REQUEST_END_PROMPT_TOKENS, r->prompt_tokens);
  LT_SET(e, REQUEST_END_OUTPUT_TOKENS, r->output_tokens);
  return e;
}

typedef struct lt_anchor_entry {
  uint8_t context;
  int64_t gpu_ns, mono_ns, rate_ppb, residual_ns;
  uint64_t uncertainty_ns;
} lt_anchor_entry;

static inline lt_words lt_anchor_words(const lt_anchor_entry *a) {
  lt_words e = lt_entry_head(LT_KIND_ANCHOR, a->context, 0, 0);
  LT_SET(e, ANCHOR_GPU_NS, a->gpu_ns);
  LT_SET(e, ANCHOR_MONO_NS, a->mono_ns);
  LT_SET(e, ANCHOR_RATE_PPB, a->rate_ppb);
  LT_SET(e, ANCHOR_RESIDUAL_NS, a->residual_ns);
  LT_SET(e, ANCHOR_UNCERTAINTY_NS, a->uncertainty_ns);
  return e;
}

// An allocation made (LT_KIND_ALLOC) or freed (LT_KIND_FREE, whose mono_ns is when
// it was freed; swept: the engine never did, and mono_ns is when it was made).
static inline lt_words lt_mem_words(unsigned kind, const lt_alloc *a, uint64_t live_bytes, bool swept) {
  lt_words e = lt_entry_head(kind, a->context, 0, 0);
  LT_SET(e, MEM_ALLOC_KIND, a->kind);
  LT_SET(e, MEM_SWEPT, swept);
  LT_SET(e, MEM_ADDR, a->addr);
  LT_SET(e, MEM_BYTES, a->bytes > LT_MAX_ALLOC_BYTES ? LT_MAX_ALLOC_BYTES : a->bytes);
  LT_SET(e, MEM_GUARD_BYTES, a->guard_bytes);
  LT_SET(e, MEM_SITE, a->site);
  LT_SET(e, MEM_INDEX, a->index);
  LT_SET(e, MEM_MONO_NS, a->mono_ns);
  LT_SET(e, MEM_LIVE_BYTES, live_bytes);
  return e;
}

#endif
