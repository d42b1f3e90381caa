// SPDX-License-Identifier: Apache-2.0
//
// A step's handle: bit 63 says that it is armed, the seven below which hub it is of, the
// next two that it was asked for and that its lanes are left out; the rest is its number.

#include <string.h>

#include "events.h"

#define ARMED (UINT64_C(1) << 63)
#define EPOCH_SHIFT 56
#define ASKED (UINT64_C(1) << 55)
#define ID_MASK (LT_STEP_UNTIMED - 1)

uint64_t lt_step_id(lt_step s) { return s & ID_MASK; }

lt_step_state *lt_step_at(lt_hub *h, lt_step s) {
  if (s == 0 || ((s >> EPOCH_SHIFT) & 0x7f) != h->epoch)
    return NULL;
  lt_step_state *st = &h->step[lt_step_id(s) % LT_OPEN_STEPS];
  return atomic_load(&st->id) == lt_step_id(s) ? st : NULL;
}

bool lt_step_ended(lt_hub *h, uint64_t id, int64_t *ended_mono_ns) {
  const lt_step_state *st = &h->step[id % LT_OPEN_STEPS];
  *ended_mono_ns = 0;
  if (atomic_load(&st->id) != id)
    return true; // overtaken by a later step: it ended, or was given up, long ago
  *ended_mono_ns = atomic_load(&st->end_ns);
  return *ended_mono_ns != 0;
}

// forget accounts for a step whose place is needed though it never ended.
static void forget(lt_hub *h, lt_step_state *st) {
  if ((atomic_fetch_or(&st->opened, LT_STEP_ENDED) & LT_STEP_ENDED) != 0)
    return;
  lt_ring_add(h->ring, LT_CTR_MISUSE, 1);
  lt_ring_add(h->ring, lt_fail_counter(LT_FAIL_ABANDONED), 1);
  if (atomic_load(&st->armed))
    atomic_fetch_sub(&lt_hub_armed_open, 1);
}

lt_step lt_step_begin_by(unsigned source) {
  const int level = lt_hub_level();
  lt_hub *h = level != LT_LEVEL_OFF ? lt_the_hub() : NULL;
  if (h == NULL)
    return 0;
  const uint64_t id = atomic_fetch_add(&h->last_step, 1) + 1;
  lt_step_state *st = &h->step[id % LT_OPEN_STEPS];
  if (atomic_load(&st->id) != 0 && atomic_load(&st->end_ns) == 0)
    forget(h, st);
  const int64_t now = lt_mono_ns();
  bool asked = false, untimed = false;
  const bool armed = level >= LT_LEVEL_LANE && lt_overhead_begin(&h->over, level >= LT_LEVEL_KERNEL, &asked, &untimed);
  // The place is closed to its old step's spans before it takes the new number.
  atomic_store(&st->id, 0);
  atomic_store(&st->end_ns, 0);
  atomic_store(&st->begin_ns, now);
  atomic_store(&st->dropped, 0);
  atomic_store(&st->ordinal, 0);
  atomic_store(&st->timed, 0);
  atomic_store(&st->links, 0);
  atomic_store(&st->armed, armed);
  lt_step_cost_reset(&st->cost);
  atomic_store(&st->opened, 0);
  atomic_store(&st->id, id);
  lt_ring_add(h->ring, LT_CTR_BEGUN, 1);
  lt_ring_add(h->ring, LT_CTR_STEPS_BEGUN, 1);
  if (armed) {
    atomic_fetch_add(&lt_hub_armed_open, 1);
    lt_ring_add(h->ring, LT_CTR_STEPS_ARMED, 1);
    lt_publish_arming(h);
  }
  if (untimed)
    lt_ring_add(h->ring, LT_CTR_STEPS_UNTIMED, 1);
  const lt_step_begin_entry b = {.step = id,
                                 .mono_ns = now,
                                 .armed = armed,
                                 .asked = asked,
                                 .untimed = untimed,
                                 .level = (uint8_t)level,
                                 .source = (uint8_t)source};
  const lt_words e = lt_step_begin_words(&b);
  lt_ring_append(h->ring, &e);
  return id | (uint64_t)h->epoch << EPOCH_SHIFT | (armed ? ARMED : 0) | (asked ? ASKED : 0) | (untimed ? LT_STEP_UNTIMED : 0);
}

// spent reckons what the step that has ended cost.
static void spent(lt_hub *h, lt_step s, lt_step_state *st, int64_t begin_ns, int64_t end_ns, uint32_t opened) {
  uint32_t launches = atomic_load(&st->timed);
  if (launches > opened)
    launches = opened;
  const lt_ended_step e = {
      .begin_ns = begin_ns,
      .end_ns = end_ns,
      .armed = lt_step_armed(s),
      .asked = (s & ASKED) != 0,
      .untimed = lt_step_untimed(s),
      .lanes = opened - launches,
      .launches = launches,
  };
  lt_ring_add(h->ring, LT_CTR_STEP_TIME_NS, (uint64_t)lt_overhead_ended(&h->over, &st->cost, &e));
  if (e.lanes > 0)
    lt_ring_add(h->ring, LT_CTR_LANE_COST_NS, (uint64_t)e.lanes * LT_LANE_COST_NS);
  if (launches > 0)
    lt_ring_add(h->ring, LT_CTR_ARMED_COST_NS, (uint64_t)launches * LT_LAUNCH_COST_NS);
  if (h->config.lane_budget > 0)
    lt_publish_lanes(h);
}

void lt_step_end(lt_step s) {
  lt_hub *h = s != 0 ? lt_the_hub() : NULL;
  if (h == NULL)
    return;
  lt_step_state *st = lt_step_at(h, s);
  const uint32_t opened = st != NULL ? atomic_fetch_or(&st->opened, LT_STEP_ENDED) : LT_STEP_ENDED;
  if ((opened & LT_STEP_ENDED) != 0) {
    lt_ring_add(h->ring, LT_CTR_MISUSE, 1);
    return;
  }
  const int64_t now = lt_mono_ns(), begin = atomic_load(&st->begin_ns);
  const bool armed = lt_step_armed(s);
  atomic_store(&st->end_ns, now);
  const lt_step_end_entry end = {
      .step = lt_step_id(s),
      .mono_ns = now,
      .begin_ns = begin,
      .armed = armed,
      .untimed = lt_step_untimed(s),
      .opened = opened,
      .dropped = atomic_load(&st->dropped),
      .linked = atomic_load(&st->links),
  };
  const lt_words e = lt_step_end_words(&end);
  lt_ring_append(h->ring, &e);
  lt_ring_add(h->ring, LT_CTR_LANDED, 1);
  lt_ring_add(h->ring, LT_CTR_STEPS_ENDED, 1);
  spent(h, s, st, begin, now, opened);
  if (armed) {
    atomic_fetch_sub(&lt_hub_armed_open, 1);
    lt_publish_arming(h);
  }
}

void lt_step_attrs(lt_step s, const lt_attrs *a) {
  lt_hub *h = s != 0 ? lt_the_hub() : NULL;
  if (h == NULL)
    return;
  const lt_step_attrs_entry v = {
      .step = lt_step_id(s),
      .batch_size = a->batch_size,
      .decode_tokens = a->decode_tokens,
      .prefill_tokens = a->prefill_tokens,
      .graph_mode = (uint8_t)(a->graph_mode < LT_GRAPH_MIXED ? a->graph_mode : LT_GRAPH_MIXED),
  };
  const lt_words e = lt_step_attrs_words(&v);
  lt_ring_append(h->ring, &e);
}

// Requests -----------------------------------------------------------------------------

static bool valid(const lt_trace_context *c) {
  static const uint8_t zero[16];
  return memcmp(c->trace_id, zero, 16) != 0 && memcmp(c->span_id, zero, 8) != 0;
}

void lt_step_link(lt_step s, const lt_trace_context *c) {
  enum { SAMPLED = 1 };
  lt_hub *h = s != 0 ? lt_the_hub() : NULL;
  if (h == NULL || !valid(c) || (c->flags & SAMPLED) == 0)
    return;
  lt_step_state *st = lt_step_at(h, s);
  if (st == NULL || (atomic_load(&st->opened) & LT_STEP_ENDED) != 0) {
    lt_ring_add(h->ring, LT_CTR_MISUSE, 1);
    return;
  }
  if (atomic_fetch_add(&st->links, 1) >= LT_MAX_STEP_LINKS)
    return;
  lt_step_link_entry l = {.step = lt_step_id(s), .flags = c->flags};
  memcpy(l.trace_id, c->trace_id, sizeof l.trace_id);
  memcpy(l.span_id, c->span_id, sizeof l.span_id);
  const lt_words e = lt_step_link_words(&l);
  lt_ring_append(h->ring, &e);
}

void lt_request_end(const lt_request *r) {
  lt_hub *h = lt_hub_level() != LT_LEVEL_OFF ? lt_the_hub() : NULL;
  if (h == NULL || !valid(&r->context))
    return;
  int64_t end = r->end_mono_ns, begin = r->begin_mono_ns;
  if (end <= 0 || end < begin)
    end = lt_mono_ns();
  if (begin <= 0 || begin > end)
    begin = end;
  lt_request_end_entry v = {
      .flags = r->context.flags,
      .begin_ns = begin,
      .end_ns = end,
      .prompt_tokens = r->prompt_tokens,
      .output_tokens = r->output_tokens,
  };
  memcpy(v.trace_id, r->context.trace_id, sizeof v.trace_id);
  memcpy(v.span_id, r->context.span_id, sizeof v.span_id);
  const lt_words e = lt_request_end_words(&v);
  lt_ring_add(h->ring, LT_CTR_BEGUN, 1);
  lt_ring_append(h->ring, &e);
  lt_ring_add(h->ring, LT_CTR_LANDED, 1);
  lt_ring_add(h->ring, LT_CTR_REQUESTS, 1);
}

// Spans of a step ------------------------------------------------------------------------

bool lt_step_open_span(lt_hub *h, lt_step s, uint32_t *ordinal) {
  lt_step_state *st = lt_step_at(h, s);
  uint32_t old = st != NULL ? atomic_load(&st->opened) : LT_STEP_ENDED;
  while ((old & LT_STEP_ENDED) == 0)
    if (atomic_compare_exchange_weak(&st->opened, &old, old + 1)) {
      *ordinal = atomic_fetch_add(&st->ordinal, 1) + 1;
      return true;
    }
  lt_ring_add(h->ring, LT_CTR_MISUSE, 1);
  return false;
}

void lt_step_unopen(lt_hub *h, lt_step s) {
  lt_step_state *st = lt_step_at(h, s);
  if (st != NULL)
    atomic_fetch_sub(&st->opened, 1);
}

bool lt_step_began(lt_hub *h, lt_step s, lt_outcome o) {
  if (o == LT_BEGIN_OK)
    return true;
  if (o == LT_BEGIN_FAILED) // an entry says so: it stays among the opened
    return false;
  lt_step_unopen(h, s);
  lt_step_state *st = lt_step_at(h, s);
  if (o == LT_BEGIN_FULL && st != NULL)
    atomic_fetch_add(&st->dropped, 1);
  return false;
}
