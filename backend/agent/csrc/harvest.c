// SPDX-License-Identifier: Apache-2.0
//
// The harvest: for each stream the oldest closed pair first, until one that has not
// completed. One elapsed call a pair is test and value in one, one more its place.

#include "events.h"

// A value coarser than this, months away, places a span worse than its own bounds.
#define COARSEST_NS 1e6
// Beyond a second a position is read again against the nearest anchor.
#define NEAR_MS 1000.0f

static float absf(float v) { return v < 0 ? -v : v; }

// judge_duration holds a duration against the time on the host from before its enqueue
// until after it was seen complete.
static unsigned judge_duration(float ms, int64_t host_ns) {
  const double d = (double)ms;
  if (__builtin_isnan(ms) || __builtin_isinf(ms))
    return LT_FAIL_NOT_FINITE;
  if (d < 0)
    return LT_FAIL_END_BEFORE_START;
  if (lt_round(d * 1e6) == 0)
    return LT_FAIL_ZERO;
  const double room = lt_quantum_ns(ms) + LT_TICK_NS + (double)host_ns * LT_MAX_RATE_PPB / 1e9;
  return d * 1e6 > (double)host_ns + room ? LT_FAIL_TOO_LONG : LT_FAIL_NONE;
}

// What was read of a complete pair.
typedef struct reading {
  float duration_ms;
  float since_ms; // from the anchor by to the start
  lt_result since;
  const lt_anchor *by;
} reading;

// locate finds a start's place on the timeline. false: no anchor is of use.
static bool locate(lt_context *c, void *start, const reading *t, lt_harvest_stats *h, int64_t *gpu_ns, double *err_ns,
                   const lt_anchor **a) {
  *a = t->by;
  if (t->by->event == NULL || t->since != 0)
    return false;
  float ms = t->since_ms;
  *gpu_ns = t->by->gpu_ns + lt_round((double)ms * 1e6);
  if (absf(ms) > NEAR_MS) {
    const lt_anchor *near = lt_anchors_nearest(c, *gpu_ns);
    float m;
    if (near != t->by) {
      h->calls++;
      if (lt_since(c, near->event, start, &m) == 0) {
        *a = near;
        ms = m;
        *gpu_ns = near->gpu_ns + lt_round((double)m * 1e6);
      }
    }
  }
  *err_ns = lt_quantum_ns(ms);
  return *err_ns <= COARSEST_NS; // false of NaN too
}

// place makes a span of a pair's values, or says why it cannot be one.
static unsigned place(lt_context *c, lt_pool *p, lt_span *s, void *start, const lt_slot *v, const reading *t,
                      int64_t seen, lt_harvest_stats *h) {
  *s = (lt_span){
      .kind = v->kind,
      .armed = v->armed,
      .shared_start = v->shared_start,
      .gap = v->gap,
      .context = v->context,
      .lane = v->lane,
      .stream = v->stream,
      .step = v->step,
      .name = v->name,
      .ordinal = v->ordinal,
      .parent = v->parent,
  };
  unsigned why = judge_duration(t->duration_ms, seen - v->enqueue_mono_ns);
  if (why != LT_FAIL_NONE)
    return why;
  const int64_t dur = lt_round((double)t->duration_ms * 1e6);
  s->raw_ns = (uint64_t)dur;

  lt_bounds b = {
      .enqueue_mono_ns = v->enqueue_mono_ns,
      // A lane's end was not recorded before that; a launch's close is read after it.
      .closed_mono_ns = v->kind == LT_KIND_LANE ? v->closed_mono_ns : v->enqueue_mono_ns,
      .seen_mono_ns = seen,
      .dur_ns = dur,
  };
  const lt_anchor *a;
  double err_ns;
  int64_t gpu_ns;
  if (!locate(c, start, t, h, &gpu_ns, &err_ns, &a)) {
    // No anchor to be had at all: the span's own bounds place it.
    const int64_t room = seen - dur - b.enqueue_mono_ns;
    s->start_mono_ns = b.enqueue_mono_ns + room / 2;
    s->place_uncertainty_ns = (uint64_t)(room > 0 ? room / 2 : 0) + LT_TICK_NS;
  } else {
    b.gpu_ns = gpu_ns;
    b.err_ns = err_ns + lt_quantum_ns(t->duration_ms) + LT_TICK_NS;
    if (!lt_anchor_allows(lt_anchors_judge(c, a, gpu_ns), &b) &&
        !(lt_anchors_look_again(c, p, h) && lt_anchor_allows(lt_anchors_judge(c, a, gpu_ns), &b)))
      return LT_FAIL_MISPLACED;
    if (!lt_clock_span(&c->clock, &b, a->segment))
      c->anchors.due_mono_ns = INT64_MIN;
    uint64_t u;
    s->start_mono_ns = lt_clock_place(&c->clock, gpu_ns, a->segment, &u);
    s->place_uncertainty_ns = u + (uint64_t)lt_ceil(err_ns) + LT_TICK_NS;
  }
  if (s->start_mono_ns < 0)
    return LT_FAIL_MISPLACED;
  s->lead_ns = s->start_mono_ns - v->enqueue_mono_ns;
  return LT_FAIL_NONE;
}

// land judges and writes one complete pair, which is off the list of its stream st.
static void land(lt_context *c, lt_pool *p, uint32_t slot, lt_stream *st, const reading *t, int64_t seen,
                 lt_harvest_stats *h) {
  const lt_slot v = lt_slot_get(p->slots, slot);
  lt_span s;
  unsigned why = place(c, p, &s, lt_pool_start_event(p, slot), &v, t, seen, h);
  if (why != LT_FAIL_NONE) {
    lt_span_failed_now(c, &v, why);
    h->failed++;
    return;
  }
  lt_correct(c, p, st, &v, &s, t->duration_ms);
  lt_words e = lt_span_words(&s);
  lt_ring_append(c->hub->ring, &e);
  lt_count(c, LT_CTR_LANDED, 1);
  if (s.gap == LT_GAP_QUEUED)
    lt_count(c, LT_CTR_QUEUED, 1);
  else if (s.gap == LT_GAP_STARVED)
    lt_count(c, LT_CTR_STARVED, 1);
  atomic_fetch_sub(&c->in_flight, 1);
  atomic_fetch_sub(&c->hub->in_flight, 1);
  h->landed++;
  lt_landed(c, &s);
}

// harvest_stream lands what has completed on one stream. unbound is why the context
// could not be bound, 0 if it was. false: the exit has begun.
static bool harvest_stream(lt_context *c, lt_pool *p, lt_stream *st, lt_result unbound, lt_harvest_stats *h) {
  lt_stream_collect(p, st);
  while (st->head != 0) {
    const uint32_t i = st->head - 1;
    lt_cell *cell = &p->cell[i];
    const uint64_t w = lt_slot_word(p->slots, i);
    lt_result r = unbound;
    if (lt_slot_state(w) != LT_SLOT_CLOSED) { // accounted for: its last event is waited for
      if (r == 0) {
        h->calls++;
        r = lt_pending(c, cell->wait);
      }
      if (r == LT_NOT_ASKED)
        return false;
      if (r == LT_NOT_READY)
        return true;
      lt_stream_pop(p, st);
      lt_pool_finish(p, i);
      continue;
    }
    reading t = {.by = lt_anchors_latest(c)};
    void *start = lt_pool_start_event(p, i);
    if (r == 0) {
      h->calls++;
      r = lt_since(c, start, cell->end, &t.duration_ms);
    }
    if (r == LT_NOT_ASKED)
      return false;
    if (r == LT_NOT_READY)
      return true;
    if (r != 0) {
      // Nothing is known of an unreadable pair but what its end event says itself: only
      // a plain not-ready keeps the slot.
      const lt_slot v = lt_slot_get(p->slots, i);
      lt_span_failed_now(c, &v, LT_FAIL_UNREADABLE);
      h->failed++;
      lt_pool_drain(p, i, lt_slot_gen(w), cell->end);
      continue;
    }
    if (t.by->event != NULL) {
      h->calls++;
      t.since = lt_since(c, t.by->event, start, &t.since_ms);
    }
    const int64_t seen = lt_mono_ns();
    lt_stream_collect(p, st); // all that was enqueued before this one ended
    lt_stream_pop(p, st);
    land(c, p, i, st, &t, seen, h);
    lt_pool_finish(p, i);
  }
  return true;
}

// sweep abandons lanes that were never ended and lets go of destroyed streams. A slot
// with which a caller is inside the driver is never touched.
static void sweep(lt_context *c, lt_pool *p, int64_t now, lt_harvest_stats *h) {
  c->next_sweep = now + LT_ABANDON_NS / LT_SWEEPS_PER_ABANDON;
  for (lt_stream *s = atomic_load(&c->streams.first); s != NULL; s = atomic_load(&s->next))
    s->seen = false;
  for (uint32_t i = 0; i < p->count; i++) {
    const uint64_t w = lt_slot_word(p->slots, i);
    const uint32_t gen = lt_slot_gen(w);
    lt_cell *cell = &p->cell[i];
    if (lt_slot_state(w) != LT_SLOT_OPEN || atomic_load(&cell->started) != gen)
      continue;
    lt_stream *st = atomic_load(&cell->stream);
    st->seen = true;
    const lt_slot v = lt_slot_get(p->slots, i);
    int64_t ended;
    if (!lt_step_ended(c->hub, v.step, &ended) || now - ended < LT_ABANDON_NS || !lt_pool_close(p, i, gen))
      continue;
    lt_span_failed_now(c, &v, LT_FAIL_ABANDONED);
    h->failed++;
    lt_pool_drain(p, i, gen, lt_pool_start_event(p, i));
    lt_stream_append(p, st, i);
  }
  lt_streams_retire(c);
}

// busy says whether there may be something to ask the driver about.
static bool has_work(lt_context *c) {
  if (atomic_load(&c->in_flight) > 0 || c->anchors.pending.event != NULL)
    return true;
  for (lt_stream *s = atomic_load(&c->streams.first); s != NULL; s = atomic_load(&s->next)) {
    const uint32_t top = atomic_load(&s->stack);
    if (s->head != 0 || (top != 0 && top != LT_RETIRED))
      return true;
  }
  return false;
}

void lt_harvest(lt_context *c, lt_harvest_stats *h) {
  lt_pool *p = atomic_load(&c->pool);
  if (c->closed)
    return;
  if (p == NULL) {
    if (atomic_load(&c->wanted))
      lt_pool_ensure(c, 0);
    return;
  }
  const int64_t begin = lt_mono_ns();
  if (has_work(c)) {
    lt_bound b;
    const lt_result unbound = lt_bind_context(c, false, &b);
    if (unbound == LT_NOT_ASKED)
      return;
    if (unbound != 0 || lt_anchors_keep(c, p, h)) {
      bool on = true;
      c->ended_ns = c->last_end_ns;
      for (lt_stream *s = atomic_load(&c->streams.first); s != NULL && on; s = atomic_load(&s->next))
        on = harvest_stream(c, p, s, unbound, h);
      if (c->clock.known && lt_clock_stale(&c->clock)) {
        const int64_t g = c->clock.cur.ref_gpu > c->clock.mapped ? c->clock.cur.ref_gpu : c->clock.mapped;
        lt_clock_set_residual(&c->clock, g);
        lt_clock_refit(&c->clock);
        lt_clock_publish(c, g);
      }
    }
    if (unbound == 0)
      lt_unbind_context(c, &b);
    h->calls += (uint32_t)b.calls;
  }
  const int64_t end = lt_mono_ns();
  if (end >= c->next_sweep)
    sweep(c, p, end, h);
  lt_count(c, LT_CTR_DRIVER_CALLS, h->calls);
  lt_count(c, LT_CTR_HARVESTS, 1);
  lt_count(c, LT_CTR_HARVEST_CALLS, h->calls);
  lt_count(c, LT_CTR_HARVEST_NS, (uint64_t)(lt_mono_ns() - begin));
}
