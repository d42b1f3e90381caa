// SPDX-License-Identifier: Apache-2.0
//
// Spans: what a server's thread does with a pair, and the launches that are timed.

#include <string.h>

#include "events.h"

static lt_slot slot_of(const lt_meta *m, const lt_context *c, const lt_stream *s, int64_t now, bool shared) {
  return (lt_slot){
      .kind = m->kind,
      .armed = m->armed,
      .shared_start = shared,
      .context = (uint8_t)c->index,
      .lane = m->lane,
      .stream = atomic_load_explicit(&s->num, memory_order_relaxed),
      .step = m->step,
      .enqueue_mono_ns = now,
      .name = m->name,
      .ordinal = m->ordinal,
      .parent = m->parent,
  };
}

void lt_span_count_begun(lt_context *c) {
  // Beside the context's own: the hub's tells the thread whether there is work.
  atomic_fetch_add(&c->in_flight, 1);
  atomic_fetch_add(&c->hub->in_flight, 1);
  lt_count(c, LT_CTR_BEGUN, 1);
  if (atomic_load_explicit(&c->hub->dozing, memory_order_relaxed))
    lt_hub_awake(c->hub);
}

static void in_flight_less(lt_context *c) {
  atomic_fetch_sub(&c->in_flight, 1);
  atomic_fetch_sub(&c->hub->in_flight, 1);
}

void lt_span_failed_now(lt_context *c, const lt_slot *v, unsigned why) {
  lt_span_failed f = {
      .span_kind = v->kind,
      .reason = (uint8_t)why,
      .context = v->context,
      .lane = v->lane,
      .stream = v->stream,
      .step = v->step,
      .enqueue_mono_ns = v->enqueue_mono_ns,
      .name = v->name,
      .ordinal = v->ordinal,
      .parent = v->parent,
  };
  lt_words e = lt_span_failed_words(&f);
  lt_ring_append(c->hub->ring, &e);
  lt_count(c, lt_fail_counter(why), 1);
  in_flight_less(c);
}

// started completes the begin of an open slot whose start is recorded. The context may
// have ended meanwhile, and no longer waited: then the span has failed.
static void started(lt_pool *p, uint32_t slot, uint32_t gen, lt_stream *s, lt_slot *v) {
  if (v->stream == 0) {
    lt_stream_number(p->context, s);
    v->stream = atomic_load_explicit(&s->num, memory_order_relaxed);
    lt_slot_put(p->slots, slot, v);
  }
  lt_span_count_begun(p->context);
  lt_cell *c = &p->cell[slot];
  atomic_store_explicit(&c->stream, s, memory_order_relaxed);
  atomic_store(&c->started, gen);
  if (atomic_load(&p->shut) && lt_pool_close(p, slot, gen))
    lt_stream_push(p, s, slot);
}

lt_outcome lt_span_begin(lt_pool *p, lt_stream *s, const lt_meta *m, uint32_t *slot, uint32_t *gen) {
  lt_context *c = p->context;
  lt_outcome o = lt_pool_take(p, slot, gen);
  if (o != LT_BEGIN_OK)
    return o;
  lt_slot v = slot_of(m, c, s, lt_mono_ns(), false);
  lt_pool_open(p, *slot, *gen, &v);
  lt_recorded rec = lt_record(c, p->cell[*slot].start, s);
  lt_count(c, LT_CTR_DRIVER_CALLS, (uint64_t)rec.calls);
  if (rec.capturing) {
    lt_pool_release(p, *slot, *gen);
    lt_count(c, LT_CTR_CAPTURING, 1);
    return LT_BEGIN_CAPTURING;
  }
  if (rec.result != 0) {
    lt_span_count_begun(c);
    lt_span_failed_now(c, &v, LT_FAIL_RECORD);
    lt_pool_release(p, *slot, *gen);
    return LT_BEGIN_FAILED;
  }
  started(p, *slot, *gen, s, &v);
  return LT_BEGIN_OK;
}

// end_failed accounts for a claimed span whose end was not recorded; its slot drains
// until the start is complete.
static void end_failed(lt_pool *p, uint32_t slot, uint32_t gen, bool capturing) {
  lt_slot v = lt_slot_get(p->slots, slot);
  lt_span_failed_now(p->context, &v, capturing ? LT_FAIL_CAPTURE : LT_FAIL_RECORD);
  lt_pool_drain(p, slot, gen, lt_pool_start_event(p, slot));
  lt_stream_push(p, atomic_load(&p->cell[slot].stream), slot);
}

bool lt_span_end(lt_pool *p, uint32_t slot, uint32_t gen) {
  lt_context *c = p->context;
  if (!lt_pool_close(p, slot, gen)) {
    lt_count(c, LT_CTR_STALE_ENDS, 1);
    return false;
  }
  lt_slot_set_closed(p->slots, slot, lt_mono_ns(), LT_GAP_UNKNOWN);
  lt_cell *cell = &p->cell[slot];
  lt_stream *s = atomic_load(&cell->stream);
  lt_recorded rec = lt_record(c, cell->end, s);
  lt_count(c, LT_CTR_DRIVER_CALLS, (uint64_t)rec.calls);
  if (rec.capturing || rec.result != 0)
    end_failed(p, slot, gen, rec.capturing);
  else
    lt_stream_push(p, s, slot);
  return true;
}

lt_outcome lt_span_switch(lt_pool *p, uint32_t *slot, uint32_t *gen, const lt_meta *m, bool *was) {
  lt_context *c = p->context;
  const uint32_t before = *slot, before_gen = *gen;
  *was = lt_pool_close(p, before, before_gen);
  if (!*was) {
    lt_count(c, LT_CTR_STALE_ENDS, 1);
    return LT_BEGIN_OFF;
  }
  lt_cell *cell = &p->cell[before];
  lt_stream *s = atomic_load(&cell->stream);
  int64_t now = lt_mono_ns();
  lt_slot_set_closed(p->slots, before, now, LT_GAP_UNKNOWN);

  uint32_t i = 0, g = 0;
  lt_slot v = {0};
  lt_outcome o = lt_pool_take(p, &i, &g);
  if (o == LT_BEGIN_OK) {
    v = slot_of(m, c, s, now, true);
    p->cell[i].shared = before + 1;
    lt_pool_open(p, i, g, &v);
  }
  lt_recorded rec = lt_record(c, cell->end, s);
  lt_count(c, LT_CTR_DRIVER_CALLS, (uint64_t)rec.calls);
  if (rec.capturing || rec.result != 0) {
    end_failed(p, before, before_gen, rec.capturing);
    if (o != LT_BEGIN_OK)
      return o;
    p->cell[i].shared = 0;
    if (rec.capturing) {
      lt_pool_release(p, i, g);
      lt_count(c, LT_CTR_CAPTURING, 1);
      return LT_BEGIN_CAPTURING;
    }
    lt_span_count_begun(c);
    lt_span_failed_now(c, &v, LT_FAIL_RECORD);
    lt_pool_release(p, i, g);
    return LT_BEGIN_FAILED;
  }
  if (o == LT_BEGIN_OK) {
    cell->held = true;
    started(p, i, g, s, &v);
  }
  lt_stream_push(p, s, before);
  *slot = i;
  *gen = g;
  return o;
}

// Launches -----------------------------------------------------------------------------

static lt_pool *timed_pool(lt_context *c) {
  lt_pool *p = atomic_load_explicit(&c->pool, memory_order_acquire);
  return p == NULL || atomic_load_explicit(&p->closed, memory_order_relaxed) ? NULL : p;
}

// untimed notes that a kernel is launched without a pair, and says so.
static int untimed(lt_stream *s, int kind) {
  if (kind == LT_LAUNCH_KERNEL)
    atomic_store(&s->untimed_ns, lt_mono_ns());
  return 0;
}

void lt_launch_untimed(void *stream) {
  lt_hub *h = lt_the_hub();
  lt_context *c = h != NULL ? lt_current_context(h) : NULL;
  lt_stream *s = c != NULL ? lt_stream_find(c, stream, false) : NULL;
  if (s != NULL)
    untimed(s, LT_LAUNCH_KERNEL);
}

int lt_launch_begin(lt_launch *l, int kind, void *stream, uint32_t name, lt_step own) {
  if (!lt_timing() || lt_hub_level() < LT_LEVEL_KERNEL)
    return 0;
  lt_hub *h = lt_the_hub();
  lt_context *c = h != NULL ? lt_current_context(h) : NULL;
  if (c == NULL)
    return 0;
  lt_count(c, LT_CTR_LAUNCHES, 1);
  lt_stream *s = lt_stream_find(c, stream, true);
  if (s == NULL)
    return 0;
  lt_meta m = {.kind = (uint8_t)kind, .armed = true, .name = name};
  pthread_mutex_lock(&s->mu);
  lt_step step = s->bound != 0 ? s->bound : own;
  if (s->lanes > 0) {
    const lt_open_lane *o = &s->lane[s->lanes - 1];
    step = o->step;
    m.parent = o->ordinal;
    m.lane = o->lane;
  }
  pthread_mutex_unlock(&s->mu);
  if (step == 0) {
    lt_count(c, LT_CTR_UNATTRIBUTED, 1);
    return untimed(s, kind);
  }
  if (!lt_step_armed(step) || !lt_step_open_span(h, step, &m.ordinal))
    return untimed(s, kind);
  m.step = lt_step_id(step);
  lt_pool *p = timed_pool(c);
  lt_outcome o = p != NULL ? lt_pool_take(p, &l->slot, &l->generation) : LT_BEGIN_OFF;
  if (!lt_step_began(h, step, o))
    return untimed(s, kind);
  lt_slot v = slot_of(&m, c, s, lt_mono_ns(), false);
  lt_pool_open(p, l->slot, l->generation, &v);
  lt_recorded rec = lt_record(c, p->cell[l->slot].start, s);
  l->calls = rec.calls;
  if (rec.capturing) { // it was no span
    lt_pool_release(p, l->slot, l->generation);
    lt_count(c, LT_CTR_DRIVER_CALLS, (uint64_t)rec.calls);
    lt_count(c, LT_CTR_CAPTURING, 1);
    lt_step_unopen(h, step);
    return 0;
  }
  lt_step_state *st = lt_step_at(h, step);
  if (st != NULL)
    atomic_fetch_add_explicit(&st->timed, 1, memory_order_relaxed);
  l->pool = p;
  l->stream = s;
  l->start = rec.result;
  return 1;
}

void lt_launch_end(lt_launch *l, lt_result result) {
  lt_pool *p = l->pool;
  lt_context *c = p->context;
  lt_cell *cell = &p->cell[l->slot];
  const bool begun = l->start == 0;
  bool pending = false, ended = false;
  if (begun && result == 0) {
    lt_recorded rec = lt_record(c, cell->end, l->stream);
    l->calls += rec.calls;
    ended = !rec.capturing && rec.result == 0;
    // Pending now: no gap of the host's can lie before the kernel, or behind it.
    l->calls++;
    pending = lt_pending(c, cell->start) == LT_NOT_READY;
  }
  lt_count(c, LT_CTR_DRIVER_CALLS, (uint64_t)l->calls);
  if (!lt_pool_close(p, l->slot, l->generation)) {
    lt_count(c, LT_CTR_STALE_ENDS, 1);
    return;
  }
  lt_slot v = lt_slot_get(p->slots, l->slot);
  const unsigned why = result != 0 ? LT_FAIL_LAUNCH : LT_FAIL_RECORD;
  if (!begun) {
    lt_span_count_begun(c);
    lt_span_failed_now(c, &v, why);
    lt_pool_release(p, l->slot, l->generation);
    return;
  }
  started(p, l->slot, l->generation, l->stream, &v);
  if (!ended) {
    lt_span_failed_now(c, &v, why);
    lt_pool_drain(p, l->slot, l->generation, cell->start);
    lt_stream_push(p, l->stream, l->slot);
    return;
  }
  lt_slot_set_closed(p->slots, l->slot, lt_mono_ns(), pending ? LT_GAP_QUEUED : LT_GAP_STARVED);
  lt_stream_push(p, l->stream, l->slot);
}
