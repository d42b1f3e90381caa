// SPDX-License-Identifier: Apache-2.0
//
// The pool of event pairs, and the slots that they belong to.

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "events.h"
#include "say.h"

enum { EVENT_TIMING = 0, STREAM_NON_BLOCKING = 1 };

// create makes the stream and n events, all or none.
static lt_result create(lt_context *c, void **own, void **event, size_t n) {
  const lt_driver *d = lt_drv(c);
  lt_bound b;
  lt_result r = lt_bind_context(c, true, &b);
  if (r != 0)
    return r;
  r = d->cuStreamCreate(own, STREAM_NON_BLOCKING);
  size_t made = 0;
  if (r == 0) {
    while (made < n && (r = d->cuEventCreate(&event[made], EVENT_TIMING)) == 0)
      made++;
    if (r != 0) {
      while (made > 0)
        d->cuEventDestroy_v2(event[--made]);
      d->cuStreamDestroy_v2(*own);
    }
  }
  lt_unbind_context(c, &b);
  lt_count(c, LT_CTR_DRIVER_CALLS, 1 + n);
  return r;
}

static lt_pool *make_pool(lt_context *c, lt_result *r) {
  const uint32_t n = c->slots.count;
  const size_t events = 2 * (size_t)n + LT_ANCHOR_EVENTS;
  void **event = malloc(events * sizeof *event);
  lt_pool *p = c->kept;
  *r = 2; // out of memory, as the driver has it
  if (p == NULL && event != NULL) {
    p = aligned_alloc(64, sizeof *p);
    if (p != NULL) {
      memset(p, 0, sizeof *p);
      p->cell = aligned_alloc(64, n * sizeof *p->cell);
      p->spare_events = malloc(LT_ANCHOR_EVENTS * sizeof *p->spare_events);
    }
    if (p == NULL || p->cell == NULL || p->spare_events == NULL) {
      if (p != NULL) {
        free(p->cell);
        free(p->spare_events);
      }
      free(p);
      free(event);
      return NULL;
    }
    memset(p->cell, 0, n * sizeof *p->cell);
    // Never written again: a late end on a pool that is used again reads them.
    p->context = c;
    p->slots = c->slots;
    p->count = n;
  }
  void *own = NULL;
  if (event == NULL || (*r = create(c, &own, event, events)) != 0) {
    if (p != c->kept) {
      free(p->cell);
      free(p->spare_events);
      free(p);
    }
    free(event);
    return NULL;
  }
  c->kept = NULL;
  p->own = own;
  for (uint32_t i = 0; i < n; i++) {
    p->cell[i].start = event[2 * i];
    p->cell[i].end = event[2 * i + 1];
  }
  memcpy(p->spare_events, event + 2 * n, LT_ANCHOR_EVENTS * sizeof *event);
  free(event);
  atomic_store(&p->shut, 0);
  atomic_store(&p->closed, 0);
  return p;
}

void lt_pool_ensure(lt_context *c, int64_t wait_ns) {
  atomic_store(&c->wanted, 1);
  if (c->closed || c->failed || atomic_load(&c->pool) != NULL)
    return;
  for (int64_t end = lt_mono_ns() + wait_ns; lt_capturing();) {
    if (lt_mono_ns() >= end)
      return; // the thread comes back to it
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  lt_result r;
  lt_pool *p = make_pool(c, &r);
  if (p == NULL) {
    if (r == LT_NOT_ASKED)
      return;
    c->failed = true;
    lt_count(c, LT_CTR_POOLS_FAILED, 1);
    lt_say_once(&c->hub->said_pool, "GPU spans are off: %u event pairs on %s could not be made (driver result %d)",
                c->slots.count, c->name, (int)r);
    return;
  }
  lt_anchors_init(c, p->spare_events);
  lt_calibrate(c, p->own);
  c->state.updated_mono_ns = lt_mono_ns();
  lt_ring_set_context(c->hub->ring, &c->state);
  atomic_store(&c->wanted, 0);
  atomic_store(&c->pool, p);
}

lt_outcome lt_pool_take(lt_pool *p, uint32_t *slot, uint32_t *gen) {
  const lt_context *c = p->context;
  uint32_t i = (uint32_t)(atomic_fetch_add_explicit(&p->cursor, 1, memory_order_relaxed) % p->count);
  uint64_t w = lt_slot_word(p->slots, i);
  uint32_t g = lt_slot_gen(w) + 1;
  if (g == 0) // no handle's
    g = 1;
  if (lt_slot_state(w) != LT_SLOT_FREE || !lt_slot_cas(p->slots, i, w, lt_slot_make(g, LT_SLOT_DRAIN))) {
    if (atomic_load(&p->closed)) // closing takes every slot first
      return LT_BEGIN_OFF;
    lt_count(c, LT_CTR_BEGUN, 1);
    lt_count(c, LT_CTR_DROPPED, 1);
    return LT_BEGIN_FULL;
  }
  // Either closing saw this slot taken and waits for it, or closed is set.
  if (atomic_load(&p->closed)) {
    lt_pool_release(p, i, g);
    return LT_BEGIN_OFF;
  }
  *slot = i;
  *gen = g;
  return LT_BEGIN_OK;
}

void lt_pool_open(lt_pool *p, uint32_t slot, uint32_t gen, const lt_slot *v) {
  lt_slot_put(p->slots, slot, v);
  lt_slot_store(p->slots, slot, lt_slot_make(gen, LT_SLOT_OPEN));
}

bool lt_pool_close(lt_pool *p, uint32_t slot, uint32_t gen) {
  return slot < p->count &&
         lt_slot_cas(p->slots, slot, lt_slot_make(gen, LT_SLOT_OPEN), lt_slot_make(gen, LT_SLOT_CLOSED));
}

void lt_pool_drain(lt_pool *p, uint32_t slot, uint32_t gen, void *event) {
  p->cell[slot].wait = event;
  lt_slot_store(p->slots, slot, lt_slot_make(gen, LT_SLOT_DRAIN));
}

void lt_pool_release(lt_pool *p, uint32_t slot, uint32_t gen) {
  lt_slot_store(p->slots, slot, lt_slot_make(gen, LT_SLOT_FREE));
}

void *lt_pool_start_event(lt_pool *p, uint32_t slot) {
  const lt_cell *c = &p->cell[slot];
  return c->shared != 0 ? p->cell[c->shared - 1].end : c->start;
}

// A slot whose own end event is somebody's start stays in DRAIN until that one is
// finished too. Only a successor abandoned the moment it begins comes first.
void lt_pool_finish(lt_pool *p, uint32_t slot) {
  lt_cell *c = &p->cell[slot];
  c->done = true;
  uint32_t before = c->shared;
  if (before != 0) {
    c->shared = 0;
    p->cell[before - 1].held = false;
    if (p->cell[before - 1].done)
      lt_pool_free(p, before - 1);
  }
  if (c->held) {
    lt_slot_store(p->slots, slot, lt_slot_make(lt_slot_gen(lt_slot_word(p->slots, slot)), LT_SLOT_DRAIN));
    return;
  }
  lt_pool_free(p, slot);
}

void lt_pool_free(lt_pool *p, uint32_t slot) {
  lt_cell *c = &p->cell[slot];
  c->done = c->held = false;
  c->shared = 0;
  c->wait = NULL;
  atomic_store_explicit(&c->stream, NULL, memory_order_relaxed);
  lt_pool_release(p, slot, lt_slot_gen(lt_slot_word(p->slots, slot)));
}
