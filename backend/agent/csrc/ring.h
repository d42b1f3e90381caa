// SPDX-License-Identifier: Apache-2.0
//
// The producer's side of a ring file, in C: what package spanring's Writer is in
// Go, entry for entry. Its package comment has the layout and the order of memory
// operations; layout.h, which is generated from it, the numbers.
//
// All functions may be called from many threads at once, unless they say
// otherwise. None waits for a reader, makes a driver call, writes to standard
// output, raises a signal or ends the process. A NULL ring does nothing.
//
// After fork the child's copy of a ring is memory of its own that nobody reads:
// calls are harmless there, the parent's file is never touched, and the parent's
// lock stays with the parent. lt_ring_ours tells.
#ifndef LANETRACE_AGENT_RING_H
#define LANETRACE_AGENT_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout.h"

typedef struct lt_ring lt_ring;
typedef uint32_t lt_name_id; // a place in the table of names; 0 is no name

// lt_level_parse gives the level (enum lt_level of hub.h) of one of the four spellings, -1 for all else.
int lt_level_parse(const char *text);
// lt_level_text is a level's spelling, "unknown" beyond them.
const char *lt_level_text(int level);

// lt_mono_ns is CLOCK_MONOTONIC in ns, the host clock of every entry.
int64_t lt_mono_ns(void);

// An error's text, always ended by NUL, "" for none.
typedef struct lt_error {
  char text[512];
} lt_error;

// Configuration --------------------------------------------------------------
//
// The same variables with the same meaning as the Go library's Config.FromEnv.
// An empty variable is one that is not set.

typedef struct lt_config {
  int level;                // LANETRACE_LEVEL, default lane
  char dir[4096];           // LANETRACE_DIR, default /dev/shm/lanetrace-UID
  bool dir_named;           // it was LANETRACE_DIR: not ours to make
  int64_t group;            // LANETRACE_GROUP, -1: none
  char service[1024];       // OTEL_SERVICE_NAME, default "" (readers take the executable)
  int64_t ring_bytes;       // LANETRACE_RING_BYTES, 0: the default geometry
  uint32_t pairs;           // LANETRACE_PAIRS, default 4,096 or a quarter of the slots
  uint32_t kernel_every;    // LANETRACE_KERNEL_SPAN_EVERY, default 64
  double kernel_budget;     // LANETRACE_KERNEL_BUDGET, default 0.003
  double lane_budget;       // LANETRACE_LANE_BUDGET, default 0: without bound
  char model[4096];         // LANETRACE_MODEL, default "": none
  int32_t rank[4];          // LANETRACE_RANK_DATA, _TENSOR, _PIPELINE, _EXPERT; -1: none
} lt_config;

// lt_config_from_env fills c from the environment, defaults included, and checks
// it. It returns 0, or -1 with an error that names the variable. env is getenv or
// a test's.
int lt_config_from_env(lt_config *c, char *(*env)(const char *), lt_error *err);

// Geometry -------------------------------------------------------------------

typedef struct lt_geometry {
  uint64_t log_entries, slots, name_bytes, allocs; // 0 takes the default
} lt_geometry;

// lt_geometry_for_bytes is the largest geometry of at most total bytes.
int lt_geometry_for_bytes(int64_t total, lt_geometry *g, lt_error *err);

// Making and closing ---------------------------------------------------------

typedef struct lt_ring_options {
  lt_geometry geometry;   // default: the configuration's
  const char *executable; // default: the base name of /proc/self/exe
  const char *gpu_uuid, *gpu_name;
  const char *producer;
  uint32_t kernel_every, armed_requested; // as lt_ring_set_arming publishes them
} lt_ring_options;

// lt_ring_create makes the ring that c describes (directory, group, geometry,
// service, rank, level), removes dead rings beyond the newest two, and returns it;
// NULL with an error when that fails, which leaves nothing behind. o adds what c does
// not know; NULL adds nothing. It touches every page and belongs at start-up.
lt_ring *lt_ring_create(const lt_config *c, const lt_ring_options *o, lt_error *err);

// lt_ring_close marks the ring as ended cleanly and lets its lock go. The file
// stays for readers, the memory for late writers. Only the first call does
// anything, and none in a child of fork. Returns 0, or -1 with an error.
int lt_ring_close(lt_ring *r, lt_error *err);

// lt_ring_remove is lt_ring_close, and removes the file and its control file.
int lt_ring_remove(lt_ring *r, lt_error *err);

// lt_ring_ours is false for a NULL ring, after lt_ring_close, and in a child that
// a fork has made since lt_ring_create.
bool lt_ring_ours(const lt_ring *r);

const char *lt_ring_path(const lt_ring *r);
int lt_ring_fd(const lt_ring *r); // -1 once closed
lt_geometry lt_ring_geometry(const lt_ring *r);
const uint8_t *lt_ring_run_id(const lt_ring *r); // 16 bytes

// The log --------------------------------------------------------------------

typedef struct lt_words {
  uint64_t w[7];
} lt_words;

// lt_ring_append writes one entry and says whether it did. It gives up, and
// counts it, when the entry's place is still being written or was overtaken. It
// does not block, allocate or read a clock. entry.h has the encodings.
bool lt_ring_append(lt_ring *r, const lt_words *e);

// lt_ring_published is how many sequence numbers have been handed out.
uint64_t lt_ring_published(const lt_ring *r);

// Counters -------------------------------------------------------------------
//
// counter is one of LT_CTR_…; one from LT_NUM_COUNTERS on is ignored and reads 0.
// Those of memory belong to the table of allocations below.
void lt_ring_add(lt_ring *r, unsigned counter, uint64_t n);
uint64_t lt_ring_counter(const lt_ring *r, unsigned counter);

// lt_fail_counter is the counter of a reason, which must not be LT_FAIL_NONE.
static inline unsigned lt_fail_counter(unsigned reason) { return LT_CTR_FAILED_FIRST + reason - 1; }

// The header's words that change ---------------------------------------------

void lt_ring_set_level(lt_ring *r, int level);
// One step in every is armed now, 0: none; requested steps are still to arm.
void lt_ring_set_arming(lt_ring *r, uint32_t every, uint32_t requested);
// lt_ring_set_lanes publishes that the lanes of one step in every are timed now; 0 is none.
void lt_ring_set_lanes(lt_ring *r, uint32_t every);
// The device behind context 0.
void lt_ring_set_gpu(lt_ring *r, const char *uuid, const char *name);

// Names ----------------------------------------------------------------------
//
// The same id for the same text and kind. Texts over LT_MAX_NAME_BYTES are cut on
// a rune's boundary and end in a hash of the whole; they need not be UTF-8. A full
// table gives 0 and counts the call. A text seen before takes no lock, and none
// allocates.
lt_name_id lt_ring_name(lt_ring *r, unsigned kind, const char *text, size_t n);
lt_name_id lt_ring_name_z(lt_ring *r, unsigned kind, const char *text); // ended by NUL
lt_name_id lt_ring_graph_name(lt_ring *r, uint64_t graph_id, uint32_t nodes, const char *label, size_t n);

// lt_ring_name_text copies the text of a name, cut to size - 1 bytes and ended by
// NUL, and returns its whole length; 0 for no name.
size_t lt_ring_name_text(const lt_ring *r, lt_name_id id, char *dst, size_t size);

// Contexts and their pair slots ----------------------------------------------

typedef struct lt_context_state {
  uint8_t index; // set by lt_ring_new_context
  uint8_t uuid[16];
  bool mig;
  int32_t device;      // ordinal within the process
  uint16_t capability; // major*10 + minor
  uint8_t calibration; // LT_CALIBRATION_…
  uint32_t constant_ns, spread_ns;
  uint32_t first_slot, slots; // set by lt_ring_new_context
  // host = host_ref_ns + (gpu - gpu_ref_ns) * (1 - rate_ppb/1e9), ± uncertainty_ns
  int64_t gpu_ref_ns, host_ref_ns, rate_ppb, updated_mono_ns;
  uint64_t uncertainty_ns;
} lt_context_state;

// A writer's view of a part of the slot table.
typedef struct lt_slots {
  lt_ring *ring;
  uint64_t off;
  uint32_t count;
} lt_slots;

// lt_ring_new_context reserves a context record and so many pair slots for the
// ring's life. Returns 0, or -1 with an error when there is no room.
int lt_ring_new_context(lt_ring *r, lt_context_state *c, uint32_t slots, lt_slots *out, lt_error *err);
// lt_ring_set_context publishes c anew under its index; another one is ignored.
void lt_ring_set_context(lt_ring *r, const lt_context_state *c);

// lt_uuid_text writes "GPU-…" or "MIG-…" as the driver does: 41 bytes with NUL.
void lt_uuid_text(const uint8_t uuid[16], bool mig, char out[41]);

// A slot's word is generation and state.
static inline uint64_t lt_slot_make(uint32_t gen, unsigned state) { return (uint64_t)gen << LT_SLOT_GEN_SHIFT | (state & 3); }
static inline unsigned lt_slot_state(uint64_t word) { return (unsigned)(word & 3); }
static inline uint32_t lt_slot_gen(uint64_t word) { return (uint32_t)(word >> LT_SLOT_GEN_SHIFT); }

// What a slot's owner writes into it, so that what is in flight can be seen.
typedef struct lt_slot {
  uint8_t kind; // LT_KIND_LANE, LT_KIND_KERNEL, LT_KIND_GRAPH
  bool armed, shared_start;
  uint8_t gap; // LT_GAP_…
  uint8_t context;
  uint16_t lane, stream;
  uint64_t step;
  int64_t enqueue_mono_ns;
  int64_t closed_mono_ns; // 0 while open
  lt_name_id name;
  uint32_t ordinal, parent;
  uint64_t graph; // free for the owner
} lt_slot;

// i must be under s.count; another one is ignored and reads 0. put, set_closed,
// store and get are the slot's owner's: put once it has taken the slot, for the
// contents carry the generation that the word has then.
uint64_t lt_slot_word(lt_slots s, uint32_t i);
bool lt_slot_cas(lt_slots s, uint32_t i, uint64_t from, uint64_t to);
void lt_slot_store(lt_slots s, uint32_t i, uint64_t word);
void lt_slot_put(lt_slots s, uint32_t i, const lt_slot *v);
void lt_slot_set_closed(lt_slots s, uint32_t i, int64_t closed_mono_ns, unsigned gap);
lt_slot lt_slot_get(lt_slots s, uint32_t i);

// The table of live allocations ----------------------------------------------
//
// Whoever changes it or the memory counters calls lock first and unlock
// afterwards; ledger.h does.

typedef struct lt_alloc {
  uint64_t addr;
  uint64_t bytes; // as asked for
  uint32_t guard_bytes;
  lt_name_id site;
  uint64_t index;  // order of creation, from 0
  int64_t mono_ns; // when it was made
  uint8_t kind;    // LT_ALLOC_DEVICE or LT_ALLOC_MANAGED
  uint8_t context; // index of the context record
} lt_alloc;

void lt_allocs_lock(lt_ring *r);
void lt_allocs_unlock(lt_ring *r);
// The place, or -1 when there is none.
int32_t lt_allocs_put(lt_ring *r, const lt_alloc *a);
void lt_allocs_remove(lt_ring *r, int32_t place);
void lt_allocs_add(lt_ring *r, unsigned counter, int64_t delta);
void lt_allocs_raise(lt_ring *r, unsigned counter, uint64_t v);
void lt_allocs_track(lt_ring *r, int ledgers, int published);

// The control file -----------------------------------------------------------

typedef struct lt_control {
  char level[16];     // a level's spelling or any other text, "" leaves it
  uint32_t arm_steps; // arm so many of the next steps
  char id[LT_MAX_CONTROL_BYTES + 1]; // tells one request from another
} lt_control;

enum { LT_CONTROL_NONE, LT_CONTROL_READ, LT_CONTROL_BAD };

// lt_control_read reads the ring's control file: none there, read into c, or
// refused with the reason in err (a link, no regular file, over 4 KiB, not the
// JSON that it should be). Fields that it does not know are ignored; whether a
// level exists is not its to say. It makes some system calls and no allocation:
// for a poller, every 250 ms.
int lt_control_read(const lt_ring *r, lt_control *c, lt_error *err);
// lt_control_parse is its second half, for tests.
int lt_control_parse(const char *json, size_t n, lt_control *c, lt_error *err);

#endif
