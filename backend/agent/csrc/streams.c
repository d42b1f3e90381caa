// SPDX-License-Identifier: Apache-2.0
//
// The streams of a context, told apart by handle: the hooks say when a handle is given
// up. A per-thread default stream has one handle for all threads, so that its key is
// the thread's number.

#include <stdlib.h>
#include <string.h>

#include "events.h"

enum { FIRST_SIZE = 64, MOST = 1 << 16, IDLE_SWEEPS = 4 };

static uintptr_t key_of(void *handle) {
  if (handle == NULL || handle == LT_STREAM_LEGACY)
    return 1; // no pointer, and no thread's key
  if (handle == LT_STREAM_PER_THREAD)
    return (uintptr_t)(2 * lt_thread_number() + 1);
  return (uintptr_t)handle;
}

bool lt_stream_elsewhere(const lt_stream *s) { return s->owner != 0 && s->owner != lt_thread_number(); }

static void stream_init(lt_stream *s, void *handle) {
  memset(s, 0, sizeof *s);
  pthread_mutex_init(&s->mu, NULL);
  s->handle = handle == LT_STREAM_LEGACY ? NULL : handle;
}

void lt_streams_init(lt_stream_table *t) {
  memset(t, 0, sizeof *t);
  pthread_mutex_init(&t->mu, NULL);
  stream_init(&t->orphans, NULL);
  t->orphans.listed = true;
  t->last = &t->orphans;
  atomic_store(&t->first, &t->orphans);
}

static uint32_t place_of(const lt_stream_table *t, uintptr_t key) {
  uint64_t h = (uint64_t)key * UINT64_C(0x9e3779b97f4a7c15);
  uint32_t i = (uint32_t)(h >> 32) & (t->size - 1);
  while (t->place[i] != NULL && t->place[i]->key != key)
    i = (i + 1) & (t->size - 1);
  return i;
}

static bool grow(lt_stream_table *t) {
  if (t->size != 0 && t->used < t->size / 2)
    return true;
  if (t->used >= MOST)
    return false;
  uint32_t was = t->size, size = was != 0 ? 2 * was : FIRST_SIZE;
  lt_stream **old = t->place, **place = calloc(size, sizeof *place);
  if (place == NULL)
    return false;
  t->place = place;
  t->size = size;
  for (uint32_t i = 0; i < was; i++)
    if (old[i] != NULL)
      place[place_of(t, old[i]->key)] = old[i];
  free(old);
  return true;
}

// unlink_place empties a place and moves up what had to go past it.
static void unlink_place(lt_stream_table *t, uint32_t i) {
  t->place[i] = NULL;
  t->used--;
  for (uint32_t j = (i + 1) & (t->size - 1); t->place[j] != NULL; j = (j + 1) & (t->size - 1)) {
    lt_stream *s = t->place[j];
    t->place[j] = NULL;
    t->place[place_of(t, s->key)] = s;
  }
}

lt_stream *lt_stream_find(lt_context *c, void *handle, bool make) {
  lt_stream_table *t = &c->streams;
  uintptr_t key = key_of(handle);
  lt_stream *s = NULL;
  pthread_mutex_lock(&t->mu);
  if (t->size != 0)
    s = t->place[place_of(t, key)];
  if (s == NULL && make && grow(t)) {
    s = t->spare;
    if (s != NULL) {
      t->spare = s->next;
      // Its lock stays: a thread that comes late may hold it.
      void *h = handle == LT_STREAM_LEGACY ? NULL : handle;
      s->handle = h;
      s->owner = 0;
      s->head = s->tail = 0;
      s->next = NULL;
      s->listed = s->seen = false;
      s->idle_sweeps = 0;
      pthread_mutex_lock(&s->mu);
      s->lanes = 0;
      s->bound = 0;
      pthread_mutex_unlock(&s->mu);
      atomic_store(&s->num, 0);
      atomic_store(&s->stack, 0);
      atomic_store(&s->gone, 0);
      atomic_store(&s->untimed_ns, 0);
      s->last_end_ns = 0;
    } else if ((s = malloc(sizeof *s)) != NULL) {
      stream_init(s, handle);
    }
    if (s != NULL) {
      s->key = key;
      s->owner = handle == LT_STREAM_PER_THREAD ? lt_thread_number() : 0;
      t->place[place_of(t, key)] = s;
      t->used++;
    }
  }
  pthread_mutex_unlock(&t->mu);
  return s;
}

static bool num_taken(const lt_stream_table *t, uint16_t num) {
  for (const lt_stream *s = atomic_load(&t->first); s != NULL; s = s->next)
    if (atomic_load_explicit(&s->num, memory_order_relaxed) == num)
      return true;
  return false;
}

// list puts a stream on the list, once. The caller holds the table's lock.
static void list(lt_stream_table *t, lt_stream *s) {
  if (s->listed)
    return;
  s->listed = true;
  atomic_store(&s->next, NULL);
  atomic_store(&t->last->next, s);
  t->last = s;
}

void lt_stream_number(lt_context *c, lt_stream *s) {
  lt_stream_table *t = &c->streams;
  if (atomic_load_explicit(&s->num, memory_order_relaxed) != 0)
    return;
  pthread_mutex_lock(&t->mu);
  if (atomic_load(&s->num) == 0) {
    // After 65,535 streams the numbers of streams long gone are given again.
    for (int tries = 0; tries < 1 << 16; tries++)
      if (++t->last_num != 0 && !num_taken(t, t->last_num))
        break;
    list(t, s);
    atomic_store(&s->num, t->last_num);
  }
  pthread_mutex_unlock(&t->mu);
}

static void forget(lt_stream_table *t, lt_stream *s) {
  atomic_store(&s->gone, 1);
  pthread_mutex_lock(&s->mu);
  s->lanes = 0;
  s->bound = 0;
  pthread_mutex_unlock(&s->mu);
  // Somebody may be about to begin on it: it goes through the sweep in any case.
  list(t, s);
}

static void forget_key(lt_context *c, uintptr_t key) {
  lt_stream_table *t = &c->streams;
  pthread_mutex_lock(&t->mu);
  if (t->size != 0) {
    uint32_t i = place_of(t, key);
    lt_stream *s = t->place[i];
    if (s != NULL) {
      unlink_place(t, i);
      forget(t, s);
    }
  }
  pthread_mutex_unlock(&t->mu);
}

void lt_stream_forget(lt_context *c, void *handle) { forget_key(c, key_of(handle)); }

void lt_stream_forget_thread(lt_context *c, uint64_t thread) { forget_key(c, (uintptr_t)(2 * thread + 1)); }

void lt_streams_forget_all(lt_context *c) {
  lt_stream_table *t = &c->streams;
  pthread_mutex_lock(&t->mu);
  for (uint32_t i = 0; i < t->size; i++) {
    if (t->place[i] != NULL)
      forget(t, t->place[i]);
    t->place[i] = NULL;
  }
  t->used = 0;
  pthread_mutex_unlock(&t->mu);
}

void lt_stream_push(lt_pool *p, lt_stream *s, uint32_t slot) {
  lt_cell *c = &p->cell[slot];
  if (atomic_load(&p->shut)) { // nobody looks at its streams any more
    lt_shut_late(p, slot);
    return;
  }
  for (;;) {
    uint32_t h = atomic_load(&s->stack);
    if (h == LT_RETIRED) {
      s = &p->context->streams.orphans;
      continue;
    }
    c->next = h;
    if (atomic_compare_exchange_weak(&s->stack, &h, slot + 1))
      break;
  }
  if (atomic_load(&p->closed))
    lt_pushed_late(p);
}

void lt_stream_collect(lt_pool *p, lt_stream *s) {
  uint32_t h = atomic_load(&s->stack);
  if (h == 0 || h == LT_RETIRED)
    return;
  h = atomic_exchange(&s->stack, 0);
  uint32_t first = 0, last = h;
  while (h != 0) {
    lt_cell *c = &p->cell[h - 1];
    uint32_t next = c->next;
    c->next = first;
    first = h;
    h = next;
  }
  if (s->tail == 0)
    s->head = first;
  else
    p->cell[s->tail - 1].next = first;
  s->tail = last;
}

void lt_stream_append(lt_pool *p, lt_stream *s, uint32_t slot) {
  p->cell[slot].next = 0;
  if (s->tail == 0)
    s->head = slot + 1;
  else
    p->cell[s->tail - 1].next = slot + 1;
  s->tail = slot + 1;
}

uint32_t lt_stream_pop(lt_pool *p, lt_stream *s) {
  uint32_t i = s->head - 1;
  s->head = p->cell[i].next;
  if (s->head == 0)
    s->tail = 0;
  return i;
}

// The sweep has marked the streams that an open slot refers to. One that is gone and
// not marked leaves the list; whoever still holds it pushes on the orphans. Some sweeps
// later it is used again.
void lt_streams_retire(lt_context *c) {
  lt_stream_table *t = &c->streams;
  pthread_mutex_lock(&t->mu);
  lt_stream *before = atomic_load(&t->first);
  for (lt_stream *s = before->next; s != NULL; s = before->next) {
    bool quiet = atomic_load(&s->gone) && !s->seen && s->head == 0;
    s->idle_sweeps = quiet ? s->idle_sweeps + 1 : 0;
    uint32_t none = 0;
    if (s->idle_sweeps >= IDLE_SWEEPS && atomic_compare_exchange_strong(&s->stack, &none, LT_RETIRED)) {
      before->next = s->next;
      if (t->last == s)
        t->last = before;
      s->next = t->spare;
      t->spare = s;
      continue;
    }
    before = s;
  }
  pthread_mutex_unlock(&t->mu);
}
