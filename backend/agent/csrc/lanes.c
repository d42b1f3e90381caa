// SPDX-License-Identifier: Apache-2.0
//
// Lanes: which are open on which stream, innermost last.

#include <stdlib.h>
#include <string.h>

#include "events.h"

static void misuse(lt_hub *h) { lt_ring_add(h->ring, LT_CTR_MISUSE, 1); }

uint16_t lt_lane_id(const char *name, uint32_t bytes) {
  lt_hub *h = lt_the_hub();
  if (h == NULL)
    return 0;
  pthread_mutex_lock(&h->names_mu);
  const uint32_t n = atomic_load(&h->lanes);
  uint32_t id = 0;
  for (uint32_t i = 1; i <= n && id == 0; i++)
    if (h->lane[i].bytes == bytes && memcmp(h->lane[i].text, name, bytes) == 0)
      id = i;
  if (id == 0 && bytes != 0 && n + 1 < LT_MAX_LANES) {
    char *text = malloc(bytes);
    if (text != NULL) {
      memcpy(text, name, bytes);
      id = n + 1;
      h->lane[id].text = text;
      h->lane[id].bytes = bytes;
      h->lane[id].id = lt_ring_name(h->ring, LT_NAME_LANE, name, bytes);
      atomic_store(&h->lanes, id);
    }
  }
  pthread_mutex_unlock(&h->names_mu);
  if (id == 0)
    misuse(h);
  return (uint16_t)id;
}

// drop_at takes a lane out of the stack. The caller holds the stream's lock.
static void drop_at(lt_stream *s, int i) {
  memmove(&s->lane[i], &s->lane[i + 1], (size_t)(s->lanes - i - 1) * sizeof s->lane[0]);
  s->lanes--;
}

// prune takes lanes off the stack that were never ended: those of steps that ended
// longer ago than the harvest waits for them and, should that not make room, the oldest
// one, which is misuse. The caller holds the stream's lock.
static void prune(lt_hub *h, lt_stream *s) {
  const int64_t now = lt_mono_ns();
  for (int i = 0; i < s->lanes;) {
    int64_t ended;
    if (lt_step_ended(h, lt_step_id(s->lane[i].step), &ended) && now - ended > LT_ABANDON_NS)
      drop_at(s, i);
    else
      i++;
  }
  if (s->lanes >= LT_MAX_NESTING) {
    drop_at(s, 0);
    misuse(h);
  }
}

// off_stack takes a lane off its stream's stack, wherever it lies in it.
static bool off_stack(lt_stream *s, uint32_t slot, uint32_t gen, lt_open_lane *was) {
  bool found = false;
  pthread_mutex_lock(&s->mu);
  for (int i = s->lanes - 1; i >= 0 && !found; i--)
    if (s->lane[i].slot == slot && s->lane[i].generation == gen) {
      *was = s->lane[i];
      drop_at(s, i);
      found = true;
    }
  pthread_mutex_unlock(&s->mu);
  return found;
}

// begin_on begins a lane of the step; before, if it is one, is already off the stack and
// ends with the event that begins the new one. *capturing is set for a capture.
static lt_lane begin_on(lt_hub *h, lt_context *c, lt_stream *s, lt_step step, uint16_t lane, lt_lane before, bool *capturing) {
  const lt_lane none = {0};
  lt_meta m = {.kind = LT_KIND_LANE, .armed = lt_step_armed(step), .lane = lane, .step = lt_step_id(step)};
  bool ok = lane != 0 && lane <= atomic_load(&h->lanes);
  if (ok) {
    m.name = h->lane[lane].id;
    pthread_mutex_lock(&s->mu);
    if (s->lanes >= LT_MAX_NESTING / 2)
      prune(h, s);
    for (int i = 0; i < s->lanes; i++)
      if (s->lane[i].step == step) {
        m.parent = s->lane[i].ordinal;
        ok = ok && s->lane[i].lane != lane;
      }
    if (s->lanes > 0 && s->lane[s->lanes - 1].step != step)
      m.parent = 0; // another step's lane lies between
    pthread_mutex_unlock(&s->mu);
  }
  if (!ok)
    misuse(h);
  if (!ok || !lt_step_open_span(h, step, &m.ordinal)) {
    if (lt_lane_is_open(before))
      lt_span_end(before.pool, before.slot, before.generation);
    return none;
  }
  lt_pool *p = lt_lane_is_open(before) ? before.pool : atomic_load_explicit(&c->pool, memory_order_acquire);
  lt_lane l = {.pool = p, .stream = s, .slot = before.slot, .generation = before.generation};
  lt_outcome o = LT_BEGIN_OFF;
  bool was = false;
  if (p != NULL && lt_lane_is_open(before))
    o = lt_span_switch(p, &l.slot, &l.generation, &m, &was);
  if (p != NULL && !was && !atomic_load_explicit(&p->closed, memory_order_relaxed) &&
      !atomic_load_explicit(&s->gone, memory_order_relaxed))
    o = lt_span_begin(p, s, &m, &l.slot, &l.generation);
  *capturing = o == LT_BEGIN_CAPTURING;
  if (!lt_step_began(h, step, o))
    return none;
  pthread_mutex_lock(&s->mu);
  if (s->lanes == LT_MAX_NESTING) {
    drop_at(s, 0);
    misuse(h);
  }
  s->lane[s->lanes++] = (lt_open_lane){
      .step = step, .slot = l.slot, .generation = l.generation, .ordinal = m.ordinal, .lane = lane};
  pthread_mutex_unlock(&s->mu);
  return l;
}

lt_lane lt_lane_begin(lt_step step, uint16_t lane, void *stream) {
  bool capturing;
  return lt_lane_try(step, lane, stream, &capturing);
}

lt_lane lt_lane_try(lt_step step, uint16_t lane, void *stream, bool *capturing) {
  const lt_lane none = {0};
  *capturing = false;
  if (step == 0 || lt_hub_level() < LT_LEVEL_LANE || lt_step_untimed(step))
    return none;
  lt_hub *h = lt_the_hub();
  lt_context *c = h != NULL ? lt_current_context(h) : NULL;
  lt_stream *s = c != NULL ? lt_stream_find(c, stream, true) : NULL;
  return s != NULL ? begin_on(h, c, s, step, lane, none, capturing) : none;
}

bool lt_stream_is_captured(void *stream) {
  lt_hub *h = lt_the_hub();
  lt_context *c = h != NULL ? lt_current_context(h) : NULL;
  lt_stream *s = c != NULL ? lt_stream_find(c, stream, true) : NULL;
  if (s == NULL)
    return false;
  lt_recorded r = lt_record(c, NULL, s);
  lt_count(c, LT_CTR_DRIVER_CALLS, (uint64_t)r.calls);
  return r.capturing;
}

void lt_lane_end(lt_lane l) {
  if (!lt_lane_is_open(l) || lt_the_hub() != l.pool->context->hub)
    return;
  lt_open_lane was;
  off_stack(l.stream, l.slot, l.generation, &was);
  lt_span_end(l.pool, l.slot, l.generation);
}

lt_lane lt_lane_next(lt_lane l, uint16_t lane) {
  const lt_lane none = {0};
  if (!lt_lane_is_open(l) || lt_the_hub() != l.pool->context->hub)
    return none;
  lt_hub *h = l.pool->context->hub;
  lt_open_lane was;
  if (!off_stack(l.stream, l.slot, l.generation, &was) || lt_hub_level() < LT_LEVEL_LANE) {
    lt_span_end(l.pool, l.slot, l.generation);
    return none;
  }
  bool capturing = false;
  return begin_on(h, l.pool->context, l.stream, was.step, lane, l, &capturing);
}

void lt_bind(lt_step step, void *stream) {
  lt_hub *h = lt_hub_level() != LT_LEVEL_OFF ? lt_the_hub() : NULL;
  lt_context *c = h != NULL ? lt_current_context(h) : NULL;
  lt_stream *s = c != NULL ? lt_stream_find(c, stream, true) : NULL;
  if (s == NULL)
    return;
  pthread_mutex_lock(&s->mu);
  s->bound = step;
  pthread_mutex_unlock(&s->mu);
}

// The outermost lanes of a step bound its length from the GPU's side. A step's are taken
// in when the next one's land. Only the harvest calls it.
void lt_landed(lt_context *c, const lt_span *s) {
  if (s->kind != LT_KIND_LANE || s->parent != 0)
    return;
  const int64_t end = s->start_mono_ns + (int64_t)s->raw_ns;
  if (s->step == c->landing) {
    if (s->start_mono_ns < c->land_from)
      c->land_from = s->start_mono_ns;
    if (end > c->land_to)
      c->land_to = end;
    return;
  }
  lt_hub *h = c->hub;
  lt_step_state *st = &h->step[c->landing % LT_OPEN_STEPS];
  if (c->landing != 0 && atomic_load(&st->id) == c->landing) {
    const lt_step_state *next = &h->step[(c->landing + 1) % LT_OPEN_STEPS];
    const lt_landed_step l = {
        .armed = c->landing_armed,
        .from_ns = c->land_from,
        .to_ns = c->land_to,
        .end_ns = atomic_load(&st->end_ns),
        .next_ns = atomic_load(&next->id) == c->landing + 1 ? atomic_load(&next->begin_ns) : 0,
    };
    const int64_t known = lt_overhead_on_gpu(&h->over, &st->cost, &l);
    if (known > 0)
      lt_ring_add(h->ring, LT_CTR_STEP_TIME_NS, (uint64_t)known);
  }
  c->landing = s->step;
  c->landing_armed = s->armed;
  c->land_from = s->start_mono_ns;
  c->land_to = end;
}
