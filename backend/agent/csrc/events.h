// SPDX-License-Identifier: Apache-2.0
//
// Event pairs of one GPU context: the pool, the streams, the harvest, the anchors
// and the calibration. What package cudaevents is in Go, in meaning; its package
// comment has the drawing of a slot's states and the order of memory operations.
// Private to the agent's events*.c, hub.c, steps.c and lanes.c.
//
//     begun = landed + failed{reason} + dropped + in flight
//
// Who changes a slot's word out of FREE or OPEN owns the slot: the taker until it is
// OPEN, the closer until it is pushed on its stream, then the harvester until it is
// FREE. A pool's memory and a stream's are never given back to the C library, only
// used again: a handle that comes late finds a generation that is not its own.
#ifndef LANETRACE_AGENT_EVENTS_H
#define LANETRACE_AGENT_EVENTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "clock.h"
#include "driver.h"
#include "entry.h"
#include "hub.h"
#include "overhead.h"
#include "ring.h"

enum {
  LT_BATCH = 64,       // pairs read in one binding of the context
  LT_ANCHOR_KEEP = 48, // anchors remembered: at the default age 24 s of them
  LT_ANCHOR_EVENTS = LT_ANCHOR_KEEP + 3,
  LT_MAX_NESTING = 128, // lanes open at once on one stream: as many as a thread's ranges
  LT_TICK_NS = 32,     // step of the GPU's time stamps, measured on an H200
};

#define LT_MS INT64_C(1000000)
#define LT_ANCHOR_AGE_NS (500 * LT_MS)    // when the clock gets a new anchor
#define LT_ANCHOR_BOUND_NS INT64_C(200000) // how long a try may spin
#define LT_SOONER_BY 4                     // the next anchor comes so much sooner after a bad one
#define LT_ABANDON_NS (10000 * LT_MS)      // a lane never ended, after its step's end
#define LT_SWEEPS_PER_ABANDON 4

// What stands for the driver's answer where it was not asked: the stream is gone, or
// another thread's, or the process is ending. No driver has it.
enum { LT_NOT_ASKED = -1 };

typedef enum lt_outcome {
  LT_BEGIN_OK,
  LT_BEGIN_OFF,       // no pool; nothing was counted
  LT_BEGIN_FULL,      // counted as begun and dropped
  LT_BEGIN_CAPTURING, // counted as capturing
  LT_BEGIN_FAILED,    // counted as begun and failed, and written
} lt_outcome;

typedef struct lt_stream lt_stream;
typedef struct lt_context lt_context;
typedef struct lt_pool lt_pool;

// A lane that is open on a stream.
typedef struct lt_open_lane {
  lt_step step;
  uint32_t slot, generation;
  uint32_t ordinal;
  uint16_t lane;
} lt_open_lane;

// A stream, by its handle; the per-thread default stream is one for each thread. The
// table of a context keeps one until it is destroyed.
struct lt_stream {
  uintptr_t key;  // in the context's table
  void *handle;   // the driver's
  uint64_t owner; // of a per-thread default stream: the thread's number
  _Atomic uint16_t num; // in the ring, 0 until a span began on it
  _Atomic int gone;

  // Closed slots: closers push on a stack of slot + 1, linked through lt_cell.next;
  // the harvester takes all of it at once and appends it, reversed, to its own list.
  _Atomic uint32_t stack; // LT_RETIRED: nobody harvests it any more
  uint32_t head, tail;    // the harvester's list, oldest first; slot + 1
  _Atomic(lt_stream *) next; // in the context's list; the harvester's but for the append
  bool listed, seen;
  int idle_sweeps;
  int64_t last_end_ns; // the harvester's: the latest end of a span so far

  // When a kernel without a pair was last launched while others had one; CLOCK_MONOTONIC.
  _Atomic int64_t untimed_ns;

  pthread_mutex_t mu; // guards what follows
  int lanes;
  lt_open_lane lane[LT_MAX_NESTING]; // innermost last
  lt_step bound;
};

#define LT_RETIRED UINT32_MAX

// A slot's part in memory of ours, a cache line. It belongs to the slot's owner; only
// started and stream are read by others.
typedef struct lt_cell {
  _Alignas(64) void *start; // the slot's own events
  void *end;
  _Atomic(lt_stream *) stream;
  void *wait; // DRAIN: the last event recorded
  // The generation whose start the driver has accepted. Until then a caller is inside
  // the driver with the slot, and nobody else may abandon it.
  _Atomic uint32_t started;
  uint32_t next;   // queue link: slot + 1
  uint32_t shared; // slot + 1 whose end event is this span's start
  bool held;       // this slot's end is shared so
  bool done;       // its own span is accounted for
} lt_cell;

struct lt_pool {
  lt_context *context;
  lt_slots slots;
  uint32_t count;
  lt_cell *cell;
  void **spare_events; // the anchors', LT_ANCHOR_EVENTS of them
  void *own;           // stream of ours, for anchors and calibration
  _Atomic int closed; // nothing begins any more
  _Atomic int shut;   // and every slot that nobody is under way with is out of use
  _Alignas(64) _Atomic uint64_t cursor; // every taker writes it
};

// A complete event with a place on the timeline and the host times around its stamp.
typedef struct lt_anchor {
  void *event;
  int64_t gpu_ns, lo, hi;
  uint64_t segment, era; // anchors of different eras contradict each other
} lt_anchor;

typedef struct lt_anchors {
  lt_anchor ring[LT_ANCHOR_KEEP];
  int64_t n; // ever taken in; the newest is at (n - 1) % LT_ANCHOR_KEEP
  void *spare[LT_ANCHOR_EVENTS];
  int spares;
  lt_anchor pending; // given up by a try, or recorded during a capture; lo is set
  int64_t due_mono_ns, again_mono_ns, narrowest;
  bool said_failed;
} lt_anchors;

typedef struct lt_stream_table {
  pthread_mutex_t mu; // guards what follows; never held across a driver call
  lt_stream **place;  // open addressing by key
  uint32_t size, used;
  uint16_t last_num;
  _Atomic(lt_stream *) first; // the list, orphans first
  lt_stream *last;
  lt_stream *spare; // retired long enough to be used again
  lt_stream orphans; // takes what is pushed on a retired stream
} lt_stream_table;

struct lt_context {
  struct lt_hub *hub;
  _Atomic(void *) cu; // CUcontext, NULL while none is open here
  void *bound;        // the same, for the calls that close it
  int index;
  char name[128];
  lt_context_state state;
  lt_slots slots;

  _Atomic(lt_pool *) pool; // NULL until it is made
  _Atomic int wanted;      // the pool is to be made once nothing captures
  lt_stream_table streams;

  _Alignas(64) _Atomic int64_t in_flight; // begun, neither landed nor failed

  // Held by whoever harvests, makes the pool or closes; guards what follows.
  _Alignas(64) pthread_mutex_t mu;
  bool failed, closed; // no pool for good; no more harvests
  lt_pool *kept;       // the pool of the context that was here before
  int64_t next_sweep;
  lt_clock clock;
  lt_anchors anchors;
  void *spin_module, *spin; // the calibration's kernel
  uint32_t shallow_ns;      // how much less than the constant a shallow pair holds
  // The latest end of a span so far, and before this harvest, which lands streams one
  // after the other.
  int64_t last_end_ns, ended_ns;

  // The outermost lanes of the step that lands now, from the first's start to the last's
  // end.
  uint64_t landing;
  bool landing_armed;
  int64_t land_from, land_to;
};

typedef struct lt_meta {
  uint8_t kind;
  bool armed;
  uint16_t lane;
  uint64_t step;
  lt_name_id name;
  uint32_t ordinal, parent;
} lt_meta;

typedef struct lt_harvest_stats {
  uint32_t landed, failed, calls;
} lt_harvest_stats;

// The driver, bound to a context (binding.c) -------------------------------------------------

// What binding a context changed on the calling thread.
typedef struct lt_bound {
  bool pushed, relaxed;
  int mode, calls;
} lt_bound;

typedef struct lt_recorded {
  bool capturing;
  lt_result result;
  int calls;
} lt_recorded;

// lt_bind makes c the calling thread's context, and with relaxed its capture mode
// RELAXED; lt_unbind puts back what was there. Not for after the exit has begun.
lt_result lt_bind_context(lt_context *c, bool relaxed, lt_bound *b);
void lt_unbind_context(lt_context *c, lt_bound *b);

// lt_record asks whether the stream captures and, if not, records e on it; with no e it
// only asks.
lt_recorded lt_record(lt_context *c, void *e, const lt_stream *s);
// lt_pending asks about one event: LT_NOT_READY while pending, 0 when complete.
lt_result lt_pending(lt_context *c, void *e);
lt_result lt_since(lt_context *c, void *a, void *b, float *ms);

// Pool (pool.c) --------------------------------------------------------------------------------

// lt_pool_ensure makes the pool and calibrates, waiting for captures at most wait_ns.
// The caller holds the context's mu.
void lt_pool_ensure(lt_context *c, int64_t wait_ns);
lt_outcome lt_pool_take(lt_pool *p, uint32_t *slot, uint32_t *gen);
void lt_pool_open(lt_pool *p, uint32_t slot, uint32_t gen, const lt_slot *v);
bool lt_pool_close(lt_pool *p, uint32_t slot, uint32_t gen);
void lt_pool_drain(lt_pool *p, uint32_t slot, uint32_t gen, void *event);
void lt_pool_release(lt_pool *p, uint32_t slot, uint32_t gen);
void *lt_pool_start_event(lt_pool *p, uint32_t slot);
void lt_pool_finish(lt_pool *p, uint32_t slot);
void lt_pool_free(lt_pool *p, uint32_t slot);

// Streams (streams.c) ----------------------------------------------------------------------------

void lt_streams_init(lt_stream_table *t);
// lt_stream_find returns the stream behind a handle for the calling thread, making it
// if make says so; NULL when there is none or no memory. No driver call.
lt_stream *lt_stream_find(lt_context *c, void *handle, bool make);
// lt_stream_number gives a stream its number, once, and puts it on the list.
void lt_stream_number(lt_context *c, lt_stream *s);
void lt_stream_forget(lt_context *c, void *handle);
void lt_stream_forget_thread(lt_context *c, uint64_t thread); // its default stream
void lt_streams_forget_all(lt_context *c);
void lt_streams_retire(lt_context *c); // the sweep's, holding the context's mu
void lt_stream_push(lt_pool *p, lt_stream *s, uint32_t slot);
void lt_stream_collect(lt_pool *p, lt_stream *s);
void lt_stream_append(lt_pool *p, lt_stream *s, uint32_t slot);
uint32_t lt_stream_pop(lt_pool *p, lt_stream *s);
// lt_stream_elsewhere: a per-thread default stream that is another thread's.
bool lt_stream_elsewhere(const lt_stream *s);

// Spans (spans.c) -----------------------------------------------------------------------------------

lt_outcome lt_span_begin(lt_pool *p, lt_stream *s, const lt_meta *m, uint32_t *slot, uint32_t *gen);
bool lt_span_end(lt_pool *p, uint32_t slot, uint32_t gen);
// lt_span_switch ends one span and begins the next with one event; *was tells whether
// the first was open.
lt_outcome lt_span_switch(lt_pool *p, uint32_t *slot, uint32_t *gen, const lt_meta *m, bool *was);
void lt_span_count_begun(lt_context *c);
// lt_span_failed_now accounts for a span that will not land.
void lt_span_failed_now(lt_context *c, const lt_slot *v, unsigned why);

// Harvest (harvest.c), anchors (anchor.c), calibration (calibrate.c), end (close.c) ---------------

// lt_harvest lands what has completed. The caller holds the context's mu.
void lt_harvest(lt_context *c, lt_harvest_stats *h);
void lt_anchors_init(lt_context *c, void **events);
bool lt_anchors_keep(lt_context *c, lt_pool *p, lt_harvest_stats *h);
bool lt_anchors_look_again(lt_context *c, lt_pool *p, lt_harvest_stats *h);
const lt_anchor *lt_anchors_latest(const lt_context *c);
const lt_anchor *lt_anchors_nearest(const lt_context *c, int64_t gpu_ns);
// lt_anchors_judge is the anchor to hold a span against that was placed by by.
const lt_anchor *lt_anchors_judge(const lt_context *c, const lt_anchor *by, int64_t gpu_ns);
bool lt_anchor_allows(const lt_anchor *a, const lt_bounds *b);
void lt_clock_publish(lt_context *c, int64_t gpu_ns);
void lt_calibrate(lt_context *c, void *own);
// lt_correct says what a placed span's raw duration holds beyond its work, and how
// uncertain the rest is. v is its slot, st its stream, off whose list it is.
void lt_correct(lt_context *c, lt_pool *p, lt_stream *st, const lt_slot *v, lt_span *s, float duration_ms);

// lt_context_shut takes every slot out of use and fails what is in flight. With
// driver, spans whose end was recorded get a second to land first, and the events and
// the stream are destroyed.
void lt_context_shut(lt_context *c, bool driver);
// lt_pushed_late accounts for what was pushed on a closed pool, lt_shut_late for what
// comes after its end.
void lt_pushed_late(lt_pool *p);
void lt_shut_late(lt_pool *p, uint32_t slot);

static inline lt_ring *lt_ring_of(const lt_context *c);

// The hub --------------------------------------------------------------------------------------------

enum { LT_OPEN_STEPS = 4096, LT_MAX_LANES = 1024, LT_LEVEL_CALLS = 4 };

// A step while spans may still be opened in it. Its place is used again LT_OPEN_STEPS
// steps later.
typedef struct lt_step_state {
  _Atomic uint64_t id;
  _Atomic int64_t begin_ns;
  _Atomic int64_t end_ns; // 0 while open
  _Atomic uint32_t opened; // and LT_STEP_ENDED
  _Atomic uint32_t dropped, ordinal;
  _Atomic uint32_t timed; // launches that got a pair
  _Atomic uint32_t links; // trace contexts that it was given
  _Atomic int armed;
  lt_step_cost cost;
} lt_step_state;

#define LT_STEP_ENDED UINT32_C(0x80000000)

typedef struct lt_hub {
  lt_driver drv;
  lt_ring *ring;
  lt_config config;
  uint8_t epoch; // tells its steps from those of a hub before a fork

  _Atomic uint64_t last_step;
  lt_step_state step[LT_OPEN_STEPS];
  lt_overhead over;

  pthread_mutex_t names_mu;
  _Atomic uint32_t lanes;
  struct lt_lane_name {
    lt_name_id id;
    uint32_t bytes;
    char *text;
  } lane[LT_MAX_LANES];

  // Opening and ending contexts, and changes of the level.
  pthread_mutex_t mu;
  lt_context *context[LT_MAX_CONTEXTS];
  _Atomic int contexts;
  bool closed;
  void *refused[LT_MAX_CONTEXTS]; // contexts for which there was no room
  unsigned refusals;
  struct {
    void (*f)(int level, void *user);
    void *user;
  } on_level[LT_LEVEL_CALLS];
  int level_calls;
  _Atomic int said_context, said_pool, said_calibration;

  _Atomic int64_t in_flight; // of all contexts; the thread sleeps long while it is 0
  // The thread.
  _Atomic uint32_t wake; // a futex: changed to wake the thread
  _Atomic int dozing;    // it sleeps long: nothing is in flight
  _Atomic int stop;
  _Atomic int busy; // it is, or may be, in the driver
  char last_control[LT_MAX_CONTROL_BYTES + 16]; // the request last looked at
} lt_hub;

static inline lt_ring *lt_ring_of(const lt_context *c) { return c->hub->ring; }
static inline void lt_count(const lt_context *c, unsigned counter, uint64_t n) { lt_ring_add(c->hub->ring, counter, n); }
static inline const lt_driver *lt_drv(const lt_context *c) { return &c->hub->drv; }

// lt_the_hub is the process's hub, NULL without one.
lt_hub *lt_the_hub(void);
// lt_exiting: the exit has begun, and no driver call of ours may be made.
bool lt_exiting(void);
// lt_capturing: something that was announced is being captured.
bool lt_capturing(void);
// lt_hub_awake has the thread harvest soon.
void lt_hub_awake(lt_hub *h);
// lt_current_context is the context that is current on the calling thread, NULL when
// it is not ours to time.
lt_context *lt_current_context(lt_hub *h);
// lt_thread_number tells threads apart, from 1.
uint64_t lt_thread_number(void);

// lt_step_ended says when a step ended on the host; false while it is open.
bool lt_step_ended(lt_hub *h, uint64_t id, int64_t *ended_mono_ns);
lt_step_state *lt_step_at(lt_hub *h, lt_step s); // NULL: not a step of this hub
bool lt_step_open_span(lt_hub *h, lt_step s, uint32_t *ordinal);
void lt_step_unopen(lt_hub *h, lt_step s);
// lt_step_began settles a step's counts after an attempt to begin a span.
bool lt_step_began(lt_hub *h, lt_step s, lt_outcome o);

// lt_publish_arming publishes both strides, and how many steps are asked for;
// lt_publish_lanes the lanes' where it has changed.
void lt_publish_arming(lt_hub *h);
void lt_publish_lanes(lt_hub *h);

// lt_landed sees each span as it lands.
void lt_landed(lt_context *c, const lt_span *s);

#endif
