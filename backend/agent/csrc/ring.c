// SPDX-License-Identifier: Apache-2.0
//
// The log, the counters, the tables: everything that is written to a ring once it
// is there. ringfile.c makes and closes it.
#include "ring.h"

#include <string.h>
#include <time.h>

#include "ring_internal.h"

// The stores of an entry's payload lie between the claim of its place and its
// publication (see package spanring). On amd64 stores become visible in program
// order, so plain ones do: relaxed is that, and keeps the race detector content.
// Elsewhere each is a release, which keeps the claim before it.
#if defined(__x86_64__)
#define PAYLOAD memory_order_relaxed
#else
#define PAYLOAD memory_order_release
#endif

int64_t lt_mono_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void put_words(_Atomic uint64_t *p, const uint64_t w[7]) {
  for (int i = 0; i < 7; i++)
    atomic_store_explicit(&p[i + 1], w[i], PAYLOAD);
}

void lt_store_bytes(lt_ring *r, uint64_t off, uint64_t n, const void *b, uint64_t len) {
  const unsigned char *p = b;
  for (uint64_t i = 0; i < n; i += 8) {
    uint64_t w = 0;
    for (uint64_t j = 0; j < 8 && i + j < len; j++)
      w |= (uint64_t)p[i + j] << (8 * j);
    lt_store(r, off + i, w);
  }
}

static bool rune_start(unsigned char c) { return (c & 0xc0) != 0x80; }

// clip is how many of len bytes fit n without splitting a rune.
static uint64_t clip(const char *s, uint64_t len, uint64_t n) {
  if (len <= n)
    return len;
  for (uint64_t back = 0; back < 4 && back <= n; back++)
    if (rune_start((unsigned char)s[n - back]))
      return n - back;
  return n; // not UTF-8 anyway
}

void lt_store_text(lt_ring *r, uint64_t off, uint64_t n, const char *text) {
  if (text == NULL)
    text = "";
  lt_store_bytes(r, off, n, text, clip(text, strlen(text), n));
}

// The log --------------------------------------------------------------------------

static uint64_t published(uint64_t seq) { return (seq + 1) << LT_WORD_SHIFT; }

static _Atomic uint64_t *claim(lt_ring *r, uint64_t seq) {
  _Atomic uint64_t *p = lt_word(r, LT_HEADER_SIZE + (seq & r->mask) * LT_ENTRY_SIZE);
  uint64_t mine = published(seq), lap = (r->mask + 1) << LT_WORD_SHIFT;
  // Mostly the place shows the sequence number of one lap before: tried without a
  // load, its cache line comes over once.
  uint64_t old = mine - (mine < lap ? mine : lap);
  for (;;) {
    if (atomic_compare_exchange_strong(p, &old, mine | LT_WORD_CLAIMED))
      return p;
    if ((old & LT_WORD_CLAIMED) != 0 || old >= mine)
      return NULL;
  }
}

bool lt_ring_append(lt_ring *r, const lt_words *e) {
  if (r == NULL)
    return false;
  uint64_t seq = atomic_fetch_add(lt_word(r, LT_OFF_HEAD), 1);
  _Atomic uint64_t *p = claim(r, seq);
  if (p == NULL) {
    lt_ring_add(r, LT_CTR_GIVEN_UP, 1);
    return false;
  }
  put_words(p, e->w);
  // An exchange is what Go's publishing store is on amd64; a release store is
  // enough and does not wait for the stores to drain.
  atomic_store_explicit(p, published(seq), memory_order_release);
  return true;
}

uint64_t lt_ring_published(const lt_ring *r) { return r == NULL ? 0 : lt_load(r, LT_OFF_HEAD); }

void lt_ring_add(lt_ring *r, unsigned counter, uint64_t n) {
  if (r != NULL && counter < LT_NUM_COUNTERS)
    atomic_fetch_add(lt_word(r, LT_OFF_COUNTERS + 8 * (uint64_t)counter), n);
}

uint64_t lt_ring_counter(const lt_ring *r, unsigned counter) {
  return r == NULL || counter >= LT_NUM_COUNTERS ? 0 : lt_load(r, LT_OFF_COUNTERS + 8 * (uint64_t)counter);
}

// The header's words that change ---------------------------------------------------

void lt_ring_set_level(lt_ring *r, int level) {
  if (r == NULL)
    return;
  uint64_t old = lt_load(r, LT_OFF_STATE);
  while (!atomic_compare_exchange_weak(lt_word(r, LT_OFF_STATE), &old, (old & ~UINT64_C(0xff)) | (uint8_t)level)) {
  }
}

void lt_ring_set_arming(lt_ring *r, uint32_t every, uint32_t requested) {
  if (r != NULL)
    lt_store(r, LT_OFF_ARMING, every | (uint64_t)requested << 32);
}

void lt_ring_set_lanes(lt_ring *r, uint32_t every) {
  if (r != NULL)
    lt_store(r, LT_OFF_LANES, every);
}

void lt_ring_set_gpu(lt_ring *r, const char *uuid, const char *name) {
  if (r == NULL)
    return;
  lt_store_text(r, LT_OFF_GPU_UUID, LT_GPU_UUID_BYTES, uuid);
  lt_store_text(r, LT_OFF_GPU_NAME, LT_GPU_NAME_BYTES, name);
}

// Names ------------------------------------------------------------------------------
//
// A record is one header word (u16 payload bytes, u8 kind, u8 mark, u32 FNV-1a of
// the payload) and the payload, padded to 16 bytes.

static uint32_t hash32(uint32_t h, const void *b, uint64_t n) {
  const unsigned char *p = b;
  for (uint64_t i = 0; i < n; i++)
    h = (h ^ p[i]) * UINT32_C(16777619);
  return h;
}
#define HASH32 UINT32_C(2166136261)

static uint64_t hash64(const void *b, uint64_t n) {
  const unsigned char *p = b;
  uint64_t h = UINT64_C(14695981039346656037);
  for (uint64_t i = 0; i < n; i++)
    h = (h ^ p[i]) * UINT64_C(1099511628211);
  return h;
}

// A payload in two parts: of a graph its id and node count, and the text.
typedef struct payload {
  unsigned char before[LT_GRAPH_PAYLOAD];
  uint64_t n_before;
  const char *text;
  uint64_t n_text;
  unsigned kind;
  uint32_t hash;
} payload;

static uint64_t name_bytes_used(const lt_ring *r) { return lt_load(r, LT_OFF_NAMES_USED); }

// same says whether the record id is p. It was published before its id was.
static bool same(const lt_ring *r, lt_name_id id, const payload *p) {
  const unsigned char *rec = r->base + r->name_off + (uint64_t)(id - 1) * LT_NAME_ALIGN;
  uint64_t h = atomic_load_explicit((const _Atomic uint64_t *)rec, memory_order_relaxed);
  return (h & 0xffff) == p->n_before + p->n_text && (uint8_t)(h >> 16) == (uint8_t)p->kind &&
         memcmp(rec + 8, p->before, p->n_before) == 0 && memcmp(rec + 8 + p->n_before, p->text, p->n_text) == 0;
}

// find returns the id of p, or 0 and the empty cell where it belongs. At most half
// of the cells are in use.
static lt_name_id find_name(const lt_ring *r, const payload *p, uint64_t *cell) {
  for (uint64_t at = (p->hash ^ p->kind) & r->name_mask;; at = (at + 1) & r->name_mask) {
    uint64_t v = atomic_load_explicit(&r->name_ids[at], memory_order_acquire);
    if (v == 0) {
      *cell = at;
      return 0;
    }
    if ((uint32_t)(v >> 32) == p->hash && same(r, (lt_name_id)v, p))
      return (lt_name_id)v;
  }
}

static lt_name_id add_name(lt_ring *r, const payload *p) {
  uint64_t n = p->n_before + p->n_text, used = name_bytes_used(r);
  uint64_t need = (8 + n + LT_NAME_ALIGN - 1) / LT_NAME_ALIGN * LT_NAME_ALIGN;
  if (used + need > r->geo.name_bytes)
    return 0;
  unsigned char whole[LT_GRAPH_PAYLOAD + LT_MAX_NAME_BYTES];
  memcpy(whole, p->before, p->n_before);
  memcpy(whole + p->n_before, p->text, p->n_text);
  lt_store_bytes(r, r->name_off + used + 8, need - 8, whole, n);
  lt_store(r, r->name_off + used, n | (uint64_t)(uint8_t)p->kind << 16 | (uint64_t)LT_NAME_MARK << 24 | (uint64_t)p->hash << 32);
  lt_store(r, LT_OFF_NAMES_USED, used + need);
  return (lt_name_id)(used / LT_NAME_ALIGN) + 1;
}

static lt_name_id intern(lt_ring *r, payload *p, const char *text, size_t n) {
  char cut[LT_MAX_NAME_BYTES];
  if (atomic_load_explicit(&r->theirs, memory_order_relaxed))
    return 0;
  if (n > LT_MAX_NAME_BYTES) {
    // "…" and 16 digits.
    const uint64_t tail = 3 + 16;
    uint64_t h = hash64(text, n), keep = clip(text, n, LT_MAX_NAME_BYTES - tail);
    memcpy(cut, text, keep);
    memcpy(cut + keep, "\xe2\x80\xa6", 3);
    for (int i = 0; i < 16; i++)
      cut[keep + 3 + (uint64_t)i] = "0123456789abcdef"[h >> (60 - 4 * i) & 15];
    text = cut;
    n = keep + tail;
  }
  p->text = text;
  p->n_text = n;
  p->hash = hash32(hash32(HASH32, p->before, p->n_before), text, n);
  uint64_t cell;
  lt_name_id id = find_name(r, p, &cell);
  if (id != 0)
    return id;
  pthread_mutex_lock(&r->names_mu);
  id = find_name(r, p, &cell);
  if (id == 0 && (id = add_name(r, p)) != 0)
    atomic_store_explicit(&r->name_ids[cell], (uint64_t)p->hash << 32 | id, memory_order_release);
  pthread_mutex_unlock(&r->names_mu);
  if (id == 0)
    lt_ring_add(r, LT_CTR_NAMES_FULL, 1);
  return id;
}

lt_name_id lt_ring_name(lt_ring *r, unsigned kind, const char *text, size_t n) {
  if (r == NULL)
    return 0;
  if ((uint8_t)kind == LT_NAME_GRAPH)
    return lt_ring_graph_name(r, 0, 0, text, n);
  payload p = {.kind = kind};
  return intern(r, &p, text == NULL ? "" : text, text == NULL ? 0 : n);
}

lt_name_id lt_ring_name_z(lt_ring *r, unsigned kind, const char *text) {
  return lt_ring_name(r, kind, text, text == NULL ? 0 : strlen(text));
}

lt_name_id lt_ring_graph_name(lt_ring *r, uint64_t graph_id, uint32_t nodes, const char *label, size_t n) {
  if (r == NULL)
    return 0;
  payload p = {.kind = LT_NAME_GRAPH, .n_before = LT_GRAPH_PAYLOAD};
  for (int i = 0; i < 8; i++)
    p.before[i] = (unsigned char)(graph_id >> (8 * i));
  for (int i = 0; i < 4; i++)
    p.before[8 + i] = (unsigned char)(nodes >> (8 * i));
  return intern(r, &p, label == NULL ? "" : label, label == NULL ? 0 : n);
}

size_t lt_ring_name_text(const lt_ring *r, lt_name_id id, char *dst, size_t size) {
  if (size > 0)
    dst[0] = 0;
  uint64_t at = ((uint64_t)id - 1) * LT_NAME_ALIGN;
  if (r == NULL || id == 0 || at + 8 > name_bytes_used(r))
    return 0;
  const unsigned char *rec = r->base + r->name_off + at;
  uint64_t h = atomic_load((const _Atomic uint64_t *)rec), n = h & 0xffff, skip = 0;
  if ((h >> 24 & 0xff) != LT_NAME_MARK || at + 8 + n > r->geo.name_bytes)
    return 0;
  if ((h >> 16 & 0xff) == LT_NAME_GRAPH)
    skip = n < LT_GRAPH_PAYLOAD ? n : LT_GRAPH_PAYLOAD;
  n -= skip;
  if (size > 0) {
    size_t k = n < size - 1 ? n : size - 1;
    memcpy(dst, rec + 8 + skip, k);
    dst[k] = 0;
  }
  return n;
}

// Contexts ---------------------------------------------------------------------------

#define CTX(w, field, v) ((w)[LT_CTX_##field##_WORD] |= (uint64_t)(v) << LT_CTX_##field##_SHIFT)

// publish_context brackets the record's words with an odd and an even sequence.
static void publish_context(lt_ring *r, const lt_context_state *c) {
  uint64_t w[LT_CONTEXT_WORDS] = {0};
  for (int i = 0; i < 16; i++)
    w[LT_CTX_UUID_WORD + i / 8] |= (uint64_t)c->uuid[i] << (8 * (i % 8));
  CTX(w, FLAGS, LT_CONTEXT_USED);
  CTX(w, MIG, c->mig);
  CTX(w, DEVICE, (uint32_t)c->device);
  CTX(w, CAPABILITY, c->capability);
  CTX(w, CALIBRATION, c->calibration);
  CTX(w, CONSTANT_NS, c->constant_ns);
  CTX(w, SPREAD_NS, c->spread_ns);
  CTX(w, FIRST_SLOT, c->first_slot);
  CTX(w, SLOTS, c->slots);
  CTX(w, GPU_REF_NS, c->gpu_ref_ns);
  CTX(w, HOST_REF_NS, c->host_ref_ns);
  CTX(w, RATE_PPB, c->rate_ppb);
  CTX(w, UPDATED_MONO_NS, c->updated_mono_ns);
  CTX(w, UNCERTAINTY_NS, c->uncertainty_ns);
  uint64_t off = LT_OFF_CONTEXTS + (uint64_t)c->index * LT_CONTEXT_SIZE, seq = lt_load(r, off) | 1;
  lt_store(r, off, seq);
  for (uint64_t i = 0; i < LT_CONTEXT_WORDS; i++)
    lt_store(r, off + 8 + 8 * i, w[i]);
  lt_store(r, off, seq + 1);
}

int lt_ring_new_context(lt_ring *r, lt_context_state *c, uint32_t slots, lt_slots *out, lt_error *err) {
  if (r == NULL) {
    lt_error_set(err, "no ring");
    return -1;
  }
  int rc = -1;
  pthread_mutex_lock(&r->contexts_mu);
  if (r->contexts == LT_MAX_CONTEXTS) {
    lt_error_set(err, "ring table full: %u contexts", r->contexts);
  } else if (slots < 1 || (uint64_t)r->slots_taken + slots > r->geo.slots) {
    lt_error_set(err, "ring table full: %u pair slots asked for, %u of %llu taken", slots, r->slots_taken,
                 (unsigned long long)r->geo.slots);
  } else {
    c->index = (uint8_t)r->contexts;
    c->first_slot = r->slots_taken;
    c->slots = slots;
    *out = (lt_slots){r, r->slot_off + (uint64_t)r->slots_taken * LT_SLOT_SIZE, slots};
    r->contexts++;
    r->slots_taken += slots;
    publish_context(r, c);
    rc = 0;
  }
  pthread_mutex_unlock(&r->contexts_mu);
  return rc;
}

void lt_ring_set_context(lt_ring *r, const lt_context_state *c) {
  if (r == NULL)
    return;
  pthread_mutex_lock(&r->contexts_mu);
  if (c->index < r->contexts)
    publish_context(r, c);
  pthread_mutex_unlock(&r->contexts_mu);
}

void lt_uuid_text(const uint8_t uuid[16], bool mig, char out[41]) {
  char *o = out;
  memcpy(o, mig ? "MIG-" : "GPU-", 4);
  o += 4;
  for (int i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10)
      *o++ = '-';
    *o++ = "0123456789abcdef"[uuid[i] >> 4];
    *o++ = "0123456789abcdef"[uuid[i] & 15];
  }
  *o = 0;
}

// Slots ------------------------------------------------------------------------------

static _Atomic uint64_t *slot(lt_slots s, uint32_t i) {
  return s.ring == NULL || i >= s.count ? NULL : lt_word(s.ring, s.off + (uint64_t)i * LT_SLOT_SIZE);
}

uint64_t lt_slot_word(lt_slots s, uint32_t i) {
  _Atomic uint64_t *p = slot(s, i);
  return p == NULL ? 0 : atomic_load(p);
}

bool lt_slot_cas(lt_slots s, uint32_t i, uint64_t from, uint64_t to) {
  _Atomic uint64_t *p = slot(s, i);
  return p != NULL && atomic_compare_exchange_strong(p, &from, to);
}

void lt_slot_store(lt_slots s, uint32_t i, uint64_t word) {
  _Atomic uint64_t *p = slot(s, i);
  if (p != NULL)
    atomic_store(p, word);
}

#define SLOTV(w, field, v) ((w)[LT_SLOTV_##field##_WORD] |= (uint64_t)(v) << LT_SLOTV_##field##_SHIFT)
#define SLOTV_GET(w, field) ((w)[LT_SLOTV_##field##_WORD] >> LT_SLOTV_##field##_SHIFT)

void lt_slot_put(lt_slots s, uint32_t i, const lt_slot *v) {
  _Atomic uint64_t *p = slot(s, i);
  if (p == NULL)
    return;
  uint64_t w[7] = {0};
  SLOTV(w, KIND, v->kind);
  SLOTV(w, ARMED, v->armed);
  SLOTV(w, SHARED_START, v->shared_start);
  SLOTV(w, GAP, v->gap & LT_GAP_MASK);
  SLOTV(w, CONTEXT, v->context);
  SLOTV(w, GENERATION, lt_slot_gen(atomic_load(p)));
  SLOTV(w, LANE, v->lane);
  SLOTV(w, STREAM, v->stream);
  SLOTV(w, STEP, v->step);
  SLOTV(w, ENQUEUE_MONO_NS, v->enqueue_mono_ns);
  SLOTV(w, CLOSED_MONO_NS, v->closed_mono_ns);
  SLOTV(w, NAME, v->name);
  SLOTV(w, ORDINAL, v->ordinal);
  SLOTV(w, PARENT, v->parent);
  SLOTV(w, GRAPH, v->graph);
  uint64_t mark = w[LT_SLOT_MARK];
  w[LT_SLOT_MARK] = atomic_load(&p[LT_SLOT_MARK + 1]);
  put_words(p, w);
  atomic_store(&p[LT_SLOT_MARK + 1], mark);
}

void lt_slot_set_closed(lt_slots s, uint32_t i, int64_t closed_mono_ns, unsigned gap) {
  _Atomic uint64_t *p = slot(s, i);
  if (p == NULL)
    return;
  atomic_store(&p[LT_SLOTV_CLOSED_MONO_NS_WORD + 1], (uint64_t)closed_mono_ns);
  if (gap != LT_GAP_UNKNOWN) {
    _Atomic uint64_t *m = &p[LT_SLOT_MARK + 1];
    atomic_store(m, (atomic_load(m) & ~((uint64_t)LT_GAP_MASK << LT_SLOTV_GAP_SHIFT)) |
                        (uint64_t)(gap & LT_GAP_MASK) << LT_SLOTV_GAP_SHIFT);
  }
}

lt_slot lt_slot_get(lt_slots s, uint32_t i) {
  _Atomic uint64_t *p = slot(s, i);
  uint64_t w[7] = {0};
  for (int j = 0; p != NULL && j < 7; j++)
    w[j] = atomic_load(&p[j + 1]);
  unsigned gap = SLOTV_GET(w, GAP) & LT_GAP_MASK;
  return (lt_slot){
      .kind = (uint8_t)SLOTV_GET(w, KIND),
      .armed = SLOTV_GET(w, ARMED) & 1,
      .shared_start = SLOTV_GET(w, SHARED_START) & 1,
      .gap = (uint8_t)(gap > LT_GAP_STARVED ? LT_GAP_STARVED : gap),
      .context = (uint8_t)SLOTV_GET(w, CONTEXT),
      .lane = (uint16_t)SLOTV_GET(w, LANE),
      .stream = (uint16_t)SLOTV_GET(w, STREAM),
      .step = SLOTV_GET(w, STEP),
      .enqueue_mono_ns = (int64_t)SLOTV_GET(w, ENQUEUE_MONO_NS),
      .closed_mono_ns = (int64_t)SLOTV_GET(w, CLOSED_MONO_NS),
      .name = (lt_name_id)SLOTV_GET(w, NAME),
      .ordinal = (uint32_t)SLOTV_GET(w, ORDINAL),
      .parent = (uint32_t)SLOTV_GET(w, PARENT),
      .graph = SLOTV_GET(w, GRAPH),
  };
}

// The table of allocations -------------------------------------------------------------

#define PLACE(w, field, v) ((w)[LT_PLACE_##field##_WORD] |= (uint64_t)(v) << LT_PLACE_##field##_SHIFT)

static void publish_use(lt_ring *r) {
  // Once there was a ledger there was one.
  uint64_t v = r->allocs_used | (lt_load(r, LT_OFF_ALLOC_USE) & LT_ALLOC_TRACKED);
  if (r->ledgers > 0)
    v |= LT_ALLOC_TRACKED;
  if (r->published < r->ledgers)
    v |= LT_ALLOC_STALE;
  lt_store(r, LT_OFF_ALLOC_USE, v);
}

void lt_allocs_lock(lt_ring *r) {
  pthread_mutex_lock(&r->allocs_mu);
  atomic_fetch_add(lt_word(r, LT_OFF_ALLOC_MUT), 1);
}

void lt_allocs_unlock(lt_ring *r) {
  atomic_fetch_add(lt_word(r, LT_OFF_ALLOC_MUT), 1);
  pthread_mutex_unlock(&r->allocs_mu);
}

int32_t lt_allocs_put(lt_ring *r, const lt_alloc *a) {
  int32_t place;
  if (r->allocs_free > 0) {
    place = r->allocs_unused[--r->allocs_free];
  } else {
    if (r->allocs_used == r->geo.allocs)
      return -1;
    place = (int32_t)r->allocs_used++;
    publish_use(r);
  }
  uint64_t w[7] = {0};
  PLACE(w, ADDR, a->addr);
  PLACE(w, BYTES, a->bytes > LT_MAX_ALLOC_BYTES ? LT_MAX_ALLOC_BYTES : a->bytes);
  PLACE(w, GUARD_BYTES, a->guard_bytes);
  PLACE(w, SITE, a->site);
  PLACE(w, INDEX, a->index);
  PLACE(w, MONO_NS, a->mono_ns);
  PLACE(w, KIND, a->kind);
  PLACE(w, CONTEXT, a->context);
  _Atomic uint64_t *p = lt_word(r, r->alloc_off + (uint64_t)place * LT_ALLOC_SIZE);
  put_words(p, w);
  uint64_t word = atomic_load_explicit(p, memory_order_relaxed);
  atomic_store(p, ((word & ~(uint64_t)LT_ALLOC_WORD_MASK) + LT_ALLOC_GEN) | LT_ALLOC_LIVE);
  return place;
}

void lt_allocs_remove(lt_ring *r, int32_t place) {
  if (place < 0 || (uint32_t)place >= r->allocs_used)
    return;
  _Atomic uint64_t *p = lt_word(r, r->alloc_off + (uint64_t)place * LT_ALLOC_SIZE);
  uint64_t word = atomic_load_explicit(p, memory_order_relaxed);
  if ((word & LT_ALLOC_LIVE) == 0)
    return;
  atomic_store(p, word & ~(uint64_t)LT_ALLOC_WORD_MASK);
  r->allocs_unused[r->allocs_free++] = place;
}

void lt_allocs_add(lt_ring *r, unsigned counter, int64_t delta) {
  if (counter < LT_CTR_MEM_FIRST || counter >= LT_CTR_MEM_END)
    return;
  // Nobody else may change it while the lock is held: a store, no addition.
  _Atomic uint64_t *p = lt_word(r, LT_OFF_COUNTERS + 8 * (uint64_t)counter);
  atomic_store_explicit(p, atomic_load_explicit(p, memory_order_relaxed) + (uint64_t)delta, PAYLOAD);
}

void lt_allocs_raise(lt_ring *r, unsigned counter, uint64_t v) {
  uint64_t old = lt_ring_counter(r, counter);
  if (v > old)
    lt_allocs_add(r, counter, (int64_t)(v - old));
}

void lt_allocs_track(lt_ring *r, int ledgers, int published_) {
  r->ledgers += ledgers;
  r->published += published_;
  publish_use(r);
}
