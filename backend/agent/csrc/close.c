// SPDX-License-Identifier: Apache-2.0
//
// The end of a context: what is in flight lands or fails, every slot goes out of use.

#include <stdlib.h>
#include <time.h>

#include "events.h"

enum { WAIT_MS = 100, DRAIN_MS = 1000 };

static void doze_us(long us) { nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL); }

// fail_queued fails what closers have pushed and takes it out of use.
static uint32_t fail_queued(lt_context *c, lt_pool *p, uint8_t *shut) {
  uint32_t n = 0;
  for (lt_stream *s = atomic_load(&c->streams.first); s != NULL; s = atomic_load(&s->next)) {
    lt_stream_collect(p, s);
    while (s->head != 0) {
      const uint32_t i = lt_stream_pop(p, s);
      const uint64_t w = lt_slot_word(p->slots, i);
      if (lt_slot_state(w) == LT_SLOT_CLOSED) {
        const lt_slot v = lt_slot_get(p->slots, i);
        lt_span_failed_now(c, &v, LT_FAIL_CLOSED);
        lt_slot_store(p->slots, i, lt_slot_make(lt_slot_gen(w), LT_SLOT_DRAIN));
      }
      n += !shut[i];
      shut[i] = 1;
    }
  }
  return n;
}

// take_slot takes a slot that is in no queue out of use; false while a caller has it.
static bool take_slot(lt_context *c, lt_pool *p, uint32_t i) {
  const uint64_t w = lt_slot_word(p->slots, i);
  const uint32_t gen = lt_slot_gen(w);
  switch (lt_slot_state(w)) {
  case LT_SLOT_FREE:
    return lt_slot_cas(p->slots, i, w, lt_slot_make(gen, LT_SLOT_DRAIN));
  case LT_SLOT_OPEN:
    if (atomic_load(&p->cell[i].started) != gen || !lt_pool_close(p, i, gen))
      return false;
    const lt_slot v = lt_slot_get(p->slots, i);
    lt_span_failed_now(c, &v, LT_FAIL_CLOSED);
    lt_slot_store(p->slots, i, lt_slot_make(gen, LT_SLOT_DRAIN));
    return true;
  case LT_SLOT_DRAIN:
    return p->cell[i].done; // landed, and held for one that shares its event
  default:
    return false;
  }
}

// queued says whether spans whose end was recorded have not landed.
static bool queued(lt_context *c) {
  for (lt_stream *s = atomic_load(&c->streams.first); s != NULL; s = atomic_load(&s->next)) {
    const uint32_t top = atomic_load(&s->stack);
    if (s->head != 0 || (top != 0 && top != LT_RETIRED))
      return true;
  }
  return false;
}

void lt_context_shut(lt_context *c, bool driver) {
  lt_pool *p = atomic_load(&c->pool);
  if (p == NULL || c->closed) {
    c->closed = true;
    return;
  }
  atomic_store(&p->closed, 1);
  for (int64_t end = lt_mono_ns() + DRAIN_MS * LT_MS; driver && !lt_exiting();) {
    lt_harvest_stats h = {0};
    lt_harvest(c, &h);
    if (!queued(c) || lt_mono_ns() >= end)
      break;
    doze_us(200);
  }
  c->closed = true;
  uint8_t *shut = calloc(p->count, 1);
  if (shut == NULL)
    return; // what is in flight stays in flight
  uint32_t left = p->count;
  for (int64_t end = lt_mono_ns() + WAIT_MS * LT_MS; left > 0 && !atomic_load(&p->shut); doze_us(100)) {
    // Before all is looked at for the last time: who comes out of the driver later sees it.
    if (lt_mono_ns() >= end)
      atomic_store(&p->shut, 1);
    left -= fail_queued(c, p, shut);
    for (uint32_t i = 0; i < p->count; i++)
      if (!shut[i] && take_slot(c, p, i)) {
        shut[i] = 1;
        left--;
      }
  }
  lt_bound b;
  if (driver && lt_bind_context(c, true, &b) == 0) {
    const lt_driver *d = lt_drv(c);
    uint64_t calls = 1;
    for (uint32_t i = 0; i < p->count; i++)
      if (shut[i]) { // events with which a caller is inside the driver stay alive
        d->cuEventDestroy_v2(p->cell[i].start);
        d->cuEventDestroy_v2(p->cell[i].end);
        calls += 2;
      }
    for (int i = 0; i < LT_ANCHOR_EVENTS; i++, calls++)
      d->cuEventDestroy_v2(p->spare_events[i]);
    d->cuStreamDestroy_v2(p->own);
    // The spin kernel goes with its context: unloading a module waits for the GPU.
    lt_unbind_context(c, &b);
    lt_count(c, LT_CTR_DRIVER_CALLS, calls + (uint64_t)b.calls);
  }
  c->spin = c->spin_module = NULL;
  atomic_store(&p->shut, 1);
  atomic_store(&c->pool, NULL);
  // A pool with which nobody is under way is used again by the next context here.
  c->kept = left == 0 ? p : NULL;
  for (uint32_t i = 0; i < p->count; i++)
    if (shut[i])
      lt_pool_free(p, i);
  free(shut);
}

// late accounts for a slot whose closer comes after the end.
static void late(lt_context *c, lt_pool *p, uint32_t i) {
  if (lt_slot_state(lt_slot_word(p->slots, i)) == LT_SLOT_CLOSED) {
    const lt_slot v = lt_slot_get(p->slots, i);
    lt_span_failed_now(c, &v, LT_FAIL_CLOSED);
  }
  lt_pool_free(p, i);
}

void lt_shut_late(lt_pool *p, uint32_t slot) { late(p->context, p, slot); }

void lt_pushed_late(lt_pool *p) {
  lt_context *c = p->context;
  pthread_mutex_lock(&c->mu);
  if (atomic_load(&p->shut)) { // else the drain goes on, and finds it
    for (lt_stream *s = atomic_load(&c->streams.first); s != NULL; s = atomic_load(&s->next)) {
      lt_stream_collect(p, s);
      while (s->head != 0)
        late(c, p, lt_stream_pop(p, s));
    }
  }
  pthread_mutex_unlock(&c->mu);
}
