// SPDX-License-Identifier: Apache-2.0
//
// What the files that make up the ring's writer share.
#ifndef LANETRACE_AGENT_RING_INTERNAL_H
#define LANETRACE_AGENT_RING_INTERNAL_H

#include <pthread.h>
#include <stdarg.h>

#include "ring.h"

struct lt_ring {
  // The mapping. A child of fork points it elsewhere, while it has one thread.
  unsigned char *base;
  uint64_t bytes, mask;
  lt_geometry geo;
  uint64_t slot_off, name_off, alloc_off;

  atomic_int fd;
  uint64_t inode; // of the file, and its device
  uint32_t dev[2];
  atomic_bool theirs; // this process is a child: the ring is its parent's
  uint8_t run_id[16];
  char *path; // within the same allocation
  lt_ring *next;

  pthread_mutex_t names_mu;
  // Ids by hash, open addressing: hash << 32 | id, 0 is empty. Read without lock.
  _Atomic uint64_t *name_ids;
  uint64_t name_mask;

  pthread_mutex_t contexts_mu;
  uint32_t contexts, slots_taken;

  pthread_mutex_t allocs_mu;
  uint32_t allocs_used, allocs_free; // places ever used; of those, free ones
  int32_t *allocs_unused;            // the free ones
  int ledgers, published;
};

static inline _Atomic uint64_t *lt_word(const lt_ring *r, uint64_t off) { return (_Atomic uint64_t *)(r->base + off); }
static inline uint64_t lt_load(const lt_ring *r, uint64_t off) { return atomic_load(lt_word(r, off)); }
static inline void lt_store(lt_ring *r, uint64_t off, uint64_t v) { atomic_store(lt_word(r, off), v); }
void lt_store_bytes(lt_ring *r, uint64_t off, uint64_t n, const void *b, uint64_t len);
void lt_store_text(lt_ring *r, uint64_t off, uint64_t n, const char *text);

void lt_error_set(lt_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
// lt_error_sys adds ": " and what errno says.
void lt_error_sys(lt_error *err, int errnum, const char *format, ...) __attribute__((format(printf, 3, 4)));

int lt_geometry_settle(lt_geometry *g, lt_error *err); // defaults and check
uint64_t lt_geometry_bytes(const lt_geometry *g);

// A whole number without sign, blanks or anything behind it; false beyond max.
bool lt_parse_u64(const char *s, uint64_t max, uint64_t *v);

#endif
