// SPDX-License-Identifier: Apache-2.0
//
// The ledger of device memory: entries and their totals here, their way to the ring
// below, physical memory and its mappings at the end.
#include "ledger.h"

#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include "entry.h"
#include "hub.h"

// A hash table of numbers by address or handle. A deletion leaves nothing behind, so
// that one whose size stays the same never grows. All zero is empty.
typedef struct cell {
  uint64_t key; // 0 is empty
  uint32_t val;
} cell;

typedef struct map {
  cell *cells;
  uint64_t mask, used; // at most half of mask + 1 cells are in use
  unsigned shift;      // so that a hash's upper bits are a cell
} map;

static uint64_t home(const map *m, uint64_t key) { return key * UINT64_C(0x9e3779b97f4a7c15) >> m->shift; }

// map_at returns the cell of key, or NULL.
static cell *map_at(const map *m, uint64_t key) {
  if (m->cells == NULL || key == 0)
    return NULL;
  for (uint64_t at = home(m, key);; at = (at + 1) & m->mask) {
    if (m->cells[at].key == key)
      return &m->cells[at];
    if (m->cells[at].key == 0)
      return NULL;
  }
}

static void map_insert(map *m, uint64_t key, uint32_t val) {
  uint64_t at = home(m, key);
  while (m->cells[at].key != 0)
    at = (at + 1) & m->mask;
  m->cells[at] = (cell){key, val};
}

// map_put sets the value of key, which must not be 0; false when there is no memory.
static bool map_put(map *m, uint64_t key, uint32_t val) {
  cell *c = map_at(m, key);
  if (c != NULL) {
    c->val = val;
    return true;
  }
  uint64_t size = m->cells == NULL ? 0 : m->mask + 1;
  if (2 * (m->used + 1) > size) {
    map bigger = {.mask = (size == 0 ? 64 : 2 * size) - 1};
    bigger.shift = (unsigned)__builtin_clzll(bigger.mask);
    bigger.cells = calloc(bigger.mask + 1, sizeof(cell));
    if (bigger.cells == NULL)
      return false;
    for (uint64_t i = 0; i < size; i++)
      if (m->cells[i].key != 0)
        map_insert(&bigger, m->cells[i].key, m->cells[i].val);
    free(m->cells);
    bigger.used = m->used;
    *m = bigger;
  }
  map_insert(m, key, val);
  m->used++;
  return true;
}

// map_delete empties a cell in use, and moves those behind it up that would not be
// found over the gap.
static void map_delete(map *m, cell *c) {
  uint64_t gap = (uint64_t)(c - m->cells);
  m->used--;
  for (uint64_t at = (gap + 1) & m->mask; m->cells[at].key != 0; at = (at + 1) & m->mask) {
    uint64_t from_home = (at - home(m, m->cells[at].key)) & m->mask;
    if (from_home >= ((at - gap) & m->mask)) {
      m->cells[gap] = m->cells[at];
      gap = at;
    }
  }
  m->cells[gap] = (cell){0};
}

// An array of records that are used again. Index 0 is never handed out.
typedef struct pool {
  void *v;
  uint32_t n, room, free; // free: head of the list of unused ones
} pool;

#define PHYSICAL 3 // a source of its own, behind lt_mem_source: memory from cuMemCreate
enum { NOT_LISTED = -1 };

typedef struct entry {
  uint64_t addr; // or handle; 0: unused
  uint64_t bytes, index;
  int64_t mono_ns;
  lt_name_id site;
  int32_t place; // on the ring's table
  uint32_t next; // of the unused ones
  uint8_t kind, context, source;
} entry;

// Physical memory.
typedef struct object {
  uint32_t next, entry; // entry 0: counts for nothing
  uint64_t handle;      // 0: no reference is left
  uint32_t refs, leaving, maps;
} object;

typedef struct mapping {
  uint32_t next, object;
  uint64_t addr, size;
  bool leaving; // the driver is being asked to unmap it
} mapping;

enum { FIRST = LT_CTR_MEM_LIVE_BYTES, TOTALS = LT_CTR_REDZONE_SCANS + 1 - FIRST };

struct lt_ledger {
  unsigned born; // forks before it was made
  pthread_mutex_t mu;

  map by_addr; // entries but those of physical memory
  pool entries;
  uint32_t live; // entries in use
  uint64_t next_index;
  map chunks; // live small allocations of each chunk, by number + 1
  unsigned chunk_shift;
  int64_t small_bytes;
  int64_t context_live[LT_MAX_CONTEXTS];

  map by_handle, by_mapped; // objects; mappings
  pool objects, mappings;

  int64_t total[TOTALS], in_ring[TOTALS];
  uint32_t dirty; // a bit for each total that may have changed since the ring had it

  lt_ring *ring; // NULL while detached
  bool on, wrote;
  int32_t *orphans; // places whose allocations were freed since the fall
  uint32_t n_orphans, orphan_room;
};

static atomic_uint forks;
static void after_fork_child(void) { atomic_fetch_add(&forks, 1); }
static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;
static void watch(void) { pthread_atfork(NULL, NULL, after_fork_child); }

// enter takes the lock; false, without it, for a ledger that is none or the parent's,
// whose lock may have been held by a thread that the child does not have.
static bool enter(lt_ledger *l) {
  if (l == NULL || l->born != atomic_load_explicit(&forks, memory_order_relaxed))
    return false;
  pthread_mutex_lock(&l->mu);
  return true;
}

static void leave(lt_ledger *l) { pthread_mutex_unlock(&l->mu); }

static bool chunk_ok(uint64_t n) { return n >= 4 << 10 && n <= 1 << 30 && (n & (n - 1)) == 0; }

lt_ledger *lt_ledger_new(uint64_t chunk_bytes) {
  if (!chunk_ok(chunk_bytes))
    chunk_bytes = 2 << 20;
  lt_ledger *l = calloc(1, sizeof *l);
  if (l == NULL)
    return NULL;
  pthread_once(&watch_forks, watch);
  l->born = atomic_load(&forks);
  pthread_mutex_init(&l->mu, NULL);
  l->chunk_shift = (unsigned)__builtin_ctzll(chunk_bytes);
  l->total[LT_CTR_MEM_CHUNK_BYTES - FIRST] = (int64_t)chunk_bytes;
  return l;
}

// Totals ------------------------------------------------------------------------------

static int64_t get(const lt_ledger *l, unsigned c) { return l->total[c - FIRST]; }

static void set(lt_ledger *l, unsigned c, int64_t v) {
  l->total[c - FIRST] = v;
  l->dirty |= UINT32_C(1) << (c - FIRST);
}

static void add(lt_ledger *l, unsigned c, int64_t n) { set(l, c, get(l, c) + n); }

// Slack, of plain device memory only: see package ledger.
static void count_chunk(lt_ledger *l, uint64_t number, int sign) {
  cell *c = map_at(&l->chunks, number + 1);
  if (c == NULL) {
    if (sign > 0)
      map_put(&l->chunks, number + 1, 1);
  } else if ((c->val += (uint32_t)sign) == 0) {
    map_delete(&l->chunks, c);
  }
}

static void slack(lt_ledger *l, const entry *e, int sign) {
  if (e->kind != LT_ALLOC_DEVICE || e->source != LT_MEM_PLAIN)
    return;
  uint64_t chunk = UINT64_C(1) << l->chunk_shift;
  if (e->bytes >= chunk) {
    add(l, LT_CTR_MEM_ROUNDING_SLACK_BYTES, sign * (int64_t)(-e->bytes & (chunk - 1)));
    return;
  }
  uint64_t first = e->addr >> l->chunk_shift, last = (e->addr + e->bytes - 1) >> l->chunk_shift;
  count_chunk(l, first, sign);
  if (last != first)
    count_chunk(l, last, sign);
  l->small_bytes += sign * (int64_t)e->bytes;
  set(l, LT_CTR_MEM_CHUNK_SLACK_BYTES, (int64_t)(l->chunks.used << l->chunk_shift) - l->small_bytes);
}

static void reckon(lt_ledger *l, const entry *e, int sign) {
  add(l, LT_CTR_MEM_LIVE_BYTES, sign * (int64_t)e->bytes);
  add(l, LT_CTR_MEM_LIVE_COUNT, sign);
  if (get(l, LT_CTR_MEM_LIVE_BYTES) > get(l, LT_CTR_MEM_PEAK_BYTES))
    set(l, LT_CTR_MEM_PEAK_BYTES, get(l, LT_CTR_MEM_LIVE_BYTES));
  l->context_live[e->context] += sign * (int64_t)e->bytes;
  slack(l, e, sign);
}

// Records -------------------------------------------------------------------------------

// Each record of a pool has a uint32_t next at the same offset.
static uint32_t pool_take(pool *p, size_t size, size_t next_off) {
  if (p->free != 0) {
    uint32_t i = p->free;
    memcpy(&p->free, (char *)p->v + i * size + next_off, sizeof p->free);
    return i;
  }
  if (p->n + 1 >= p->room) {
    uint32_t room = p->room == 0 ? 64 : 2 * p->room;
    void *v = room > 1u << 28 ? NULL : realloc(p->v, room * size);
    if (v == NULL)
      return 0;
    p->v = v;
    p->room = room;
  }
  return ++p->n;
}

static void pool_give(pool *p, uint32_t i, size_t size, size_t next_off) {
  char *rec = (char *)p->v + i * size;
  memset(rec, 0, size);
  memcpy(rec + next_off, &p->free, sizeof p->free);
  p->free = i;
}

#define TAKE(p, type) pool_take(p, sizeof(type), offsetof(type, next))
#define GIVE(p, type, i) pool_give(p, i, sizeof(type), offsetof(type, next))
#define AT(p, type, i) (&((type *)(p)->v)[i])

// The way to the ring ----------------------------------------------------------------------
//
// Entries keep their place on the table while the ledger does not write, so that a
// rise has to write only what has changed since the fall.

static lt_alloc record(const entry *e) {
  return (lt_alloc){.addr = e->addr, .bytes = e->bytes, .site = e->site, .index = e->index, .mono_ns = e->mono_ns, .kind = e->kind, .context = e->context};
}

static void sync_totals(lt_ledger *l) {
  while (l->dirty != 0) {
    unsigned i = (unsigned)__builtin_ctz(l->dirty), c = FIRST + i;
    l->dirty &= l->dirty - 1;
    int64_t delta = l->total[i] - l->in_ring[i];
    if (delta == 0)
      continue;
    l->in_ring[i] = l->total[i];
    switch (c) {
    case LT_CTR_MEM_PEAK_BYTES:
    case LT_CTR_MEM_CHUNK_BYTES:
      lt_allocs_raise(l->ring, c, (uint64_t)l->total[i]);
      break;
    case LT_CTR_MEM_LIVE_BYTES:
      lt_allocs_add(l->ring, c, delta);
      lt_allocs_raise(l->ring, LT_CTR_MEM_PEAK_BYTES, lt_ring_counter(l->ring, c));
      break;
    default:
      lt_allocs_add(l->ring, c, delta);
    }
  }
}

// list puts e on the table, unlist takes it off or remembers to. The table's lock is
// held while the ledger writes.
static void list(lt_ledger *l, entry *e) {
  lt_alloc a = record(e);
  e->place = lt_allocs_put(l->ring, &a);
  if (e->place < 0) {
    e->place = NOT_LISTED;
    add(l, LT_CTR_ALLOCS_UNLISTED, 1);
    add(l, LT_CTR_MEM_UNLISTED_BYTES, (int64_t)e->bytes);
    add(l, LT_CTR_MEM_UNLISTED_COUNT, 1);
  }
}

static void orphan(lt_ledger *l, int32_t place) {
  if (l->n_orphans == l->orphan_room) {
    uint32_t room = l->orphan_room == 0 ? 64 : 2 * l->orphan_room;
    int32_t *v = realloc(l->orphans, room * sizeof *v);
    if (v == NULL)
      return; // a place too many on a table that says that it is stale
    l->orphans = v;
    l->orphan_room = room;
  }
  l->orphans[l->n_orphans++] = place;
}

static void unlist(lt_ledger *l, entry *e) {
  if (e->place == NOT_LISTED) {
    if (l->on) {
      add(l, LT_CTR_MEM_UNLISTED_BYTES, -(int64_t)e->bytes);
      add(l, LT_CTR_MEM_UNLISTED_COUNT, -1);
    }
  } else if (l->on) {
    lt_allocs_remove(l->ring, e->place);
  } else {
    orphan(l, e->place);
  }
  e->place = NOT_LISTED;
}

static void publish_totals(lt_ledger *l) {
  if (!l->on)
    return;
  lt_allocs_lock(l->ring);
  sync_totals(l);
  lt_allocs_unlock(l->ring);
}

// publish_alloc writes e, which is in the totals already, to table and log.
static void publish_alloc(lt_ledger *l, entry *e) {
  if (!l->on)
    return;
  lt_allocs_lock(l->ring);
  list(l, e);
  sync_totals(l);
  lt_allocs_unlock(l->ring);
  lt_alloc a = record(e);
  lt_words w = lt_mem_words(LT_KIND_ALLOC, &a, (uint64_t)l->context_live[e->context], false);
  lt_ring_append(l->ring, &w);
}

// publish_free takes e, which is no longer in the totals, off the table and writes
// that to the log.
static void publish_free(lt_ledger *l, entry *e) {
  if (!l->on) {
    unlist(l, e);
    return;
  }
  lt_allocs_lock(l->ring);
  unlist(l, e);
  sync_totals(l);
  lt_allocs_unlock(l->ring);
  lt_alloc a = record(e);
  a.mono_ns = lt_mono_ns();
  lt_words w = lt_mem_words(LT_KIND_FREE, &a, (uint64_t)l->context_live[e->context], false);
  lt_ring_append(l->ring, &w);
}

static void rise(lt_ledger *l) {
  l->on = l->wrote = true;
  lt_allocs_lock(l->ring);
  for (uint32_t i = 0; i < l->n_orphans; i++)
    lt_allocs_remove(l->ring, l->orphans[i]);
  l->n_orphans = 0;
  for (uint32_t i = 1; i <= l->entries.n; i++) {
    entry *e = AT(&l->entries, entry, i);
    if (e->addr != 0 && e->place == NOT_LISTED)
      list(l, e);
  }
  lt_allocs_track(l->ring, 0, 1);
  l->dirty = (UINT32_C(1) << TOTALS) - 1;
  sync_totals(l);
  lt_allocs_unlock(l->ring);
}

// Off the table now is only what is not there yet.
static void forget_unlisted(lt_ledger *l) {
  set(l, LT_CTR_MEM_UNLISTED_BYTES, 0);
  set(l, LT_CTR_MEM_UNLISTED_COUNT, 0);
}

static void fall(lt_ledger *l) {
  l->on = false;
  lt_allocs_lock(l->ring);
  lt_allocs_track(l->ring, 0, -1);
  lt_allocs_unlock(l->ring);
  forget_unlisted(l);
}

static void detach(lt_ledger *l) {
  if (l->ring == NULL)
    return;
  // Nothing is left: the table can be put right whatever the level.
  if (!l->on && l->wrote && l->live == 0)
    rise(l);
  lt_allocs_lock(l->ring);
  if (l->on)
    lt_allocs_track(l->ring, -1, -1);
  else if (!l->wrote && l->live == 0)
    lt_allocs_track(l->ring, -1, 0);
  lt_allocs_unlock(l->ring);
  // Else it stays stale, for nobody will put it right any more.
  l->ring = NULL;
  l->on = l->wrote = false;
  l->n_orphans = 0;
  memset(l->in_ring, 0, sizeof l->in_ring);
  for (uint32_t i = 1; i <= l->entries.n; i++)
    AT(&l->entries, entry, i)->place = NOT_LISTED;
  forget_unlisted(l);
}

void lt_ledger_attach(lt_ledger *l, lt_ring *r, bool publish) {
  if (r == NULL || !enter(l))
    return;
  detach(l);
  l->ring = r;
  lt_allocs_lock(r);
  lt_allocs_track(r, 1, 0);
  lt_allocs_unlock(r);
  if (publish)
    rise(l);
  leave(l);
}

void lt_ledger_set_publishing(lt_ledger *l, bool on) {
  if (!enter(l))
    return;
  if (l->ring != NULL && on != l->on) {
    if (on)
      rise(l);
    else
      fall(l);
  }
  leave(l);
}

void lt_ledger_level(int level, void *ledger) { lt_ledger_set_publishing(ledger, level >= LT_LEVEL_BASIC); }

void lt_ledger_detach(lt_ledger *l) {
  if (!enter(l))
    return;
  detach(l);
  leave(l);
}

// Allocations --------------------------------------------------------------------------------

static uint8_t context_index(int context) { return context >= 0 && context < LT_MAX_CONTEXTS ? (uint8_t)context : 0; }

// insert puts an entry on the ledger and returns its number; 0 without memory, and
// then it was no allocation.
static uint32_t insert(lt_ledger *l, const entry *e) {
  uint32_t i = TAKE(&l->entries, entry);
  if (i == 0) {
    add(l, LT_CTR_ALLOCS, -1);
    return 0;
  }
  entry *at = AT(&l->entries, entry, i);
  *at = *e;
  at->place = NOT_LISTED;
  l->live++;
  reckon(l, at, 1);
  publish_alloc(l, at);
  return i;
}

// take takes entry i off the ledger. What counts it says which total that adds to.
static entry take(lt_ledger *l, uint32_t i, unsigned counts) {
  entry e = *AT(&l->entries, entry, i);
  GIVE(&l->entries, entry, i);
  l->live--;
  reckon(l, &e, -1);
  add(l, counts, 1);
  publish_free(l, &e);
  return e;
}

// put_entry is insert for what is found by its address.
static void put_entry(lt_ledger *l, const entry *e) {
  cell *c = map_at(&l->by_addr, e->addr);
  if (c != NULL) {
    uint32_t old = c->val;
    map_delete(&l->by_addr, c);
    take(l, old, LT_CTR_ALLOCS_REPLACED);
  }
  // A place in the map first: it is what can still fail.
  if (!map_put(&l->by_addr, e->addr, 0)) {
    add(l, LT_CTR_ALLOCS, -1);
    return;
  }
  uint32_t i = insert(l, e);
  if (i != 0)
    map_put(&l->by_addr, e->addr, i);
  else
    map_delete(&l->by_addr, map_at(&l->by_addr, e->addr));
}

static entry new_entry(lt_ledger *l, int context, unsigned kind, unsigned source, uint64_t addr, uint64_t bytes, lt_name_id site) {
  return (entry){.addr = addr,
                 .bytes = bytes > LT_MAX_ALLOC_BYTES ? LT_MAX_ALLOC_BYTES : bytes,
                 .index = l->next_index++,
                 .mono_ns = lt_mono_ns(),
                 .site = site,
                 .kind = kind == LT_ALLOC_MANAGED ? LT_ALLOC_MANAGED : LT_ALLOC_DEVICE,
                 .context = context_index(context),
                 .source = (uint8_t)source};
}

void lt_mem_alloc(lt_ledger *l, int context, unsigned kind, enum lt_mem_source source, uint64_t addr, uint64_t bytes, lt_name_id site) {
  if (addr == 0 || bytes == 0 || !enter(l))
    return;
  entry e = new_entry(l, context, kind, source, addr, bytes, site);
  add(l, LT_CTR_ALLOCS, 1);
  put_entry(l, &e);
  leave(l);
}

void lt_mem_alloc_failed(lt_ledger *l) {
  if (!enter(l))
    return;
  add(l, LT_CTR_ALLOCS_FAILED, 1);
  publish_totals(l);
  leave(l);
}

void lt_mem_take(lt_ledger *l, uint64_t addr, lt_mem_taken *t) {
  memset(t, 0, sizeof *t);
  t->alloc.addr = addr;
  if (addr == 0 || !enter(l))
    return;
  cell *c = map_at(&l->by_addr, addr);
  if (c != NULL) {
    uint32_t i = c->val;
    map_delete(&l->by_addr, c);
    entry e = take(l, i, LT_CTR_FREES);
    t->alloc = record(&e);
    t->source = e.source;
    t->known = 1;
  }
  leave(l);
}

void lt_mem_freed(lt_ledger *l, const lt_mem_taken *t, bool refused) {
  if (t->alloc.addr == 0 || (t->known && !refused) || !enter(l))
    return;
  if (!t->known) {
    add(l, LT_CTR_FREES_UNKNOWN, 1);
    publish_totals(l);
  } else {
    // Back on the ledger, unless its address has been handed out again.
    add(l, LT_CTR_FREES_FAILED, 1);
    if (map_at(&l->by_addr, t->alloc.addr) != NULL) {
      add(l, LT_CTR_ALLOCS_REPLACED, 1);
      publish_totals(l);
    } else {
      const lt_alloc *a = &t->alloc;
      entry e = {.addr = a->addr, .bytes = a->bytes, .index = a->index, .mono_ns = a->mono_ns, .site = a->site, .kind = a->kind, .context = a->context, .source = t->source};
      put_entry(l, &e);
    }
  }
  leave(l);
}

void lt_mem_context_end(lt_ledger *l, int context) {
  if (context < 0 || context >= LT_MAX_CONTEXTS || !enter(l))
    return;
  for (uint32_t i = 1; i <= l->entries.n; i++) {
    const entry *e = AT(&l->entries, entry, i);
    if (e->addr == 0 || e->context != context || e->source == PHYSICAL)
      continue;
    cell *c = map_at(&l->by_addr, e->addr);
    if (c != NULL && c->val == i)
      map_delete(&l->by_addr, c);
    take(l, i, LT_CTR_FREES);
  }
  leave(l);
}

// Physical memory ----------------------------------------------------------------------------
//
// An object lives while a reference or a mapping is left. What the driver is being
// asked to drop is marked first and dropped when it has agreed. In between its handle
// or address can come again, to another thread: that finds the mark, and drops what
// evidently is gone.

static void end_object(lt_ledger *l, uint32_t i) {
  object *o = AT(&l->objects, object, i);
  if (o->refs > 0 || o->maps > 0)
    return;
  if (o->entry != 0)
    take(l, o->entry, LT_CTR_FREES);
  GIVE(&l->objects, object, i);
}

static void drop_refs(lt_ledger *l, uint32_t i, uint32_t n) {
  object *o = AT(&l->objects, object, i);
  o->refs -= n < o->refs ? n : o->refs;
  if (o->leaving > o->refs)
    o->leaving = o->refs;
  if (o->refs == 0 && o->handle != 0) {
    // Its value may come again while the memory is still mapped.
    cell *c = map_at(&l->by_handle, o->handle);
    if (c != NULL && c->val == i)
      map_delete(&l->by_handle, c);
    o->handle = 0;
  }
  end_object(l, i);
}

static void drop_mapping(lt_ledger *l, uint32_t i) {
  mapping *m = AT(&l->mappings, mapping, i);
  cell *c = map_at(&l->by_mapped, m->addr);
  if (c != NULL && c->val == i)
    map_delete(&l->by_mapped, c);
  uint32_t o = m->object;
  GIVE(&l->mappings, mapping, i);
  AT(&l->objects, object, o)->maps--;
  end_object(l, o);
}

void lt_vm_create(lt_ledger *l, int context, uint64_t handle, uint64_t bytes, lt_name_id site) {
  if (handle == 0 || !enter(l))
    return;
  cell *c = map_at(&l->by_handle, handle);
  if (c != NULL && bytes == 0 && AT(&l->objects, object, c->val)->leaving == 0) {
    // The driver gives one handle for memory imported twice.
    AT(&l->objects, object, c->val)->refs++;
    leave(l);
    return;
  }
  if (c != NULL)
    drop_refs(l, c->val, UINT32_MAX);
  entry e = {0};
  if (bytes != 0) {
    e = new_entry(l, context, LT_ALLOC_DEVICE, PHYSICAL, handle, bytes, site);
    add(l, LT_CTR_ALLOCS, 1);
  }
  uint32_t i = TAKE(&l->objects, object);
  if (i != 0) {
    *AT(&l->objects, object, i) = (object){.handle = handle, .refs = 1};
    if (!map_put(&l->by_handle, handle, i)) {
      GIVE(&l->objects, object, i);
      i = 0;
    }
  }
  if (bytes != 0 && i == 0)
    add(l, LT_CTR_ALLOCS, -1);
  else if (bytes != 0)
    AT(&l->objects, object, i)->entry = insert(l, &e);
  leave(l);
}

// mapped_at returns the mapping that holds addr, 0 if there is none.
static uint32_t mapped_at(const lt_ledger *l, uint64_t addr) {
  cell *c = map_at(&l->by_mapped, addr);
  if (c != NULL)
    return c->val;
  for (uint32_t i = 1; i <= l->mappings.n; i++) {
    const mapping *m = AT(&l->mappings, mapping, i);
    if (m->size != 0 && addr >= m->addr && addr - m->addr < m->size)
      return i;
  }
  return 0;
}

void lt_vm_retain(lt_ledger *l, uint64_t addr, uint64_t handle) {
  if (handle == 0 || !enter(l))
    return;
  uint32_t m = mapped_at(l, addr);
  if (m != 0) {
    uint32_t i = AT(&l->mappings, mapping, m)->object;
    object *o = AT(&l->objects, object, i);
    if (o->handle == 0 && map_put(&l->by_handle, handle, i))
      o->handle = handle;
    if (o->handle == handle)
      o->refs++;
  }
  leave(l);
}

void lt_vm_map(lt_ledger *l, uint64_t addr, uint64_t size, uint64_t handle) {
  if (addr == 0 || size == 0 || !enter(l))
    return;
  cell *h = map_at(&l->by_handle, handle);
  if (h != NULL) {
    uint32_t o = h->val;
    // Before the old mapping at the address is dropped: it may be of the same object.
    AT(&l->objects, object, o)->maps++;
    cell *c = map_at(&l->by_mapped, addr);
    if (c != NULL)
      drop_mapping(l, c->val);
    uint32_t i = TAKE(&l->mappings, mapping);
    if (i != 0) {
      *AT(&l->mappings, mapping, i) = (mapping){.object = o, .addr = addr, .size = size};
      if (!map_put(&l->by_mapped, addr, i)) {
        GIVE(&l->mappings, mapping, i);
        i = 0;
      }
    }
    if (i == 0)
      AT(&l->objects, object, o)->maps--;
  }
  leave(l);
}

// each_within calls f for the mappings within [addr, addr+size). The driver unmaps
// whole mappings that follow one another, so mostly each is found at the end of the
// one before; else all are looked at.
static bool each_within(lt_ledger *l, uint64_t addr, uint64_t size, void (*f)(lt_ledger *, uint32_t)) {
  uint64_t at = addr, end = size > UINT64_MAX - addr ? UINT64_MAX : addr + size;
  bool any = false;
  while (at < end) {
    cell *c = map_at(&l->by_mapped, at);
    if (c == NULL)
      break;
    uint32_t i = c->val;
    uint64_t n = AT(&l->mappings, mapping, i)->size;
    if (n > end - at)
      break;
    f(l, i);
    any = true;
    at += n;
  }
  for (uint32_t i = 1; at < end && i <= l->mappings.n; i++) {
    const mapping *m = AT(&l->mappings, mapping, i);
    if (m->size != 0 && m->addr >= at && m->size <= end - at && m->addr <= end - m->size) {
      f(l, i);
      any = true;
    }
  }
  return any;
}

static void mark_leaving(lt_ledger *l, uint32_t i) { AT(&l->mappings, mapping, i)->leaving = true; }
static void unmark_leaving(lt_ledger *l, uint32_t i) { AT(&l->mappings, mapping, i)->leaving = false; }
static void drop_leaving(lt_ledger *l, uint32_t i) {
  if (AT(&l->mappings, mapping, i)->leaving)
    drop_mapping(l, i);
}

void lt_vm_unmap_begin(lt_ledger *l, uint64_t addr, uint64_t size, lt_vm_taken *t) {
  *t = (lt_vm_taken){.addr = addr, .size = size};
  if (size == 0 || !enter(l))
    return;
  t->known = each_within(l, addr, size, mark_leaving);
  leave(l);
}

void lt_vm_unmap_done(lt_ledger *l, const lt_vm_taken *t, bool refused) {
  if (!t->known || !enter(l))
    return;
  each_within(l, t->addr, t->size, refused ? unmark_leaving : drop_leaving);
  leave(l);
}

void lt_vm_release_begin(lt_ledger *l, uint64_t handle, lt_vm_taken *t) {
  *t = (lt_vm_taken){.handle = handle};
  if (!enter(l))
    return;
  cell *c = map_at(&l->by_handle, handle);
  if (c != NULL) {
    object *o = AT(&l->objects, object, c->val);
    if (o->leaving < o->refs) {
      o->leaving++;
      t->known = 1;
    }
  }
  leave(l);
}

void lt_vm_release_done(lt_ledger *l, const lt_vm_taken *t, bool refused) {
  if (!enter(l))
    return;
  if (!t->known) {
    add(l, LT_CTR_FREES_UNKNOWN, 1);
    publish_totals(l);
  } else {
    cell *c = map_at(&l->by_handle, t->handle);
    if (c != NULL && AT(&l->objects, object, c->val)->leaving > 0) {
      AT(&l->objects, object, c->val)->leaving--;
      if (!refused)
        drop_refs(l, c->val, 1);
    }
  }
  leave(l);
}

void lt_mem_read(lt_ledger *l, lt_mem_totals *t) {
  memset(t, 0, sizeof *t);
  if (!enter(l))
    return;
  t->live_bytes = (uint64_t)get(l, LT_CTR_MEM_LIVE_BYTES);
  t->live_count = (uint64_t)get(l, LT_CTR_MEM_LIVE_COUNT);
  t->peak_bytes = (uint64_t)get(l, LT_CTR_MEM_PEAK_BYTES);
  t->allocs = (uint64_t)get(l, LT_CTR_ALLOCS);
  t->frees = (uint64_t)get(l, LT_CTR_FREES);
  t->allocs_failed = (uint64_t)get(l, LT_CTR_ALLOCS_FAILED);
  t->frees_failed = (uint64_t)get(l, LT_CTR_FREES_FAILED);
  t->frees_unknown = (uint64_t)get(l, LT_CTR_FREES_UNKNOWN);
  t->allocs_replaced = (uint64_t)get(l, LT_CTR_ALLOCS_REPLACED);
  leave(l);
}
