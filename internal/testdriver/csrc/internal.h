// SPDX-License-Identifier: Apache-2.0
//
// What the stand-in's own files share. One lock guards all of it: the real
// driver's fine locking is not what is under test, and one lock keeps the
// model easy to trust (and ThreadSanitizer quiet for good reasons). The lock
// is released only while a worker runs a body, while somebody waits, and while
// a call burns a configured host time.
#ifndef LT_INTERNAL_H
#define LT_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "cuda_abi.h"

#define EXPORT __attribute__((visibility("default")))
#define DRIVER_VERSION 13000
#define LT_MAX_DEVICES 16
#define CHUNK_BYTES ((size_t)2 << 20)
#define POOL_CHUNK_BYTES ((size_t)32 << 20)
#define UNIT_BYTES ((size_t)512)

// The per-thread default stream's twins, declared from the plain prototypes.
#define F(sym, base, ver)
#define S(sym, sfx, base, ver) extern __typeof__(sym) sym##sfx;
#include "functions.h"
#undef F
#undef S

enum fn_id {
#define F(sym, base, ver) FN_##sym,
#define S(sym, sfx, base, ver) FN_##sym, FN_##sym##sfx,
#include "functions.h"
#undef F
#undef S
  FN_COUNT
};

// PAIR exports a function and its per-thread-default-stream twin, two
// addresses over one body do_NAME(fn, per_thread, ...). The real driver does
// the same, and interposers that mix the two up are what tests must catch.
#define UNPACK(...) __VA_ARGS__
#define PAIR(name, sfx, params, args)                                     \
  EXPORT CUresult name(UNPACK params) {                                   \
    return do_##name(FN_##name, false, UNPACK args);                      \
  }                                                                       \
  EXPORT CUresult name##sfx(UNPACK params) {                              \
    return do_##name(FN_##name##sfx, true, UNPACK args);                  \
  }

// Handles ------------------------------------------------------------------

enum kind {
  K_CONTEXT, K_STREAM, K_EVENT, K_MODULE, K_FUNCTION, K_LIBRARY, K_KERNEL,
  K_GRAPH, K_EXEC, K_NODE, K_POOL, K_PHYSICAL, K_COUNT
};

// Every handle given out begins with this. Handles are looked up by address
// in a table before anything behind them is read, so a stale or invented
// handle is an error, never a crash. Memory of a freed handle goes to a
// last-in-first-out list: the next handle of the kind has the same address,
// which is what a tracer that keys by handle must survive.
struct obj {
  struct obj *next;
  enum kind kind;
};

void *obj_new(enum kind kind, size_t size);
void obj_free(void *o);
void *obj_get(const void *handle, enum kind kind);
void obj_sweep(enum kind kind, bool (*pick)(struct obj *, void *), void *arg, void (*drop)(struct obj *));
uint64_t obj_live(enum kind kind);

// Work ---------------------------------------------------------------------

struct stream;
struct exec;
struct event;
struct pool;
struct context;
struct chunk;

enum work_kind { W_NOP, W_KERNEL, W_COPY, W_SET, W_HOST, W_CALLBACK, W_RECORD, W_WAIT, W_GRAPH, W_FREE, W_ALLOC };

// A function's name and parameter layout; shared by modules, libraries, work
// in flight and graphs, which may outlive each other.
struct fninfo {
  unsigned refs;
  char *name;
  size_t nparams;
  size_t *offset, *size;
  size_t bytes;
};
struct fninfo *fninfo_ref(struct fninfo *f);
void fninfo_unref(struct fninfo *f);

// One thing to do on a stream: the payload of a queued operation and of a
// graph node alike. What it owns is freed by work_clear.
struct work {
  enum work_kind kind;
  int64_t dur_ns; // < 0: ask work_duration when it starts
  union {
    struct {
      struct fninfo *info; // owned reference
      CUfunction handle;   // as launched, for cuGraphKernelNodeGetParams
      lt_testdriver_kernel_fn body;
      unsigned grid[3], block[3], shared;
      unsigned char *blob; // owned
    } k;
    struct {
      unsigned char *dst;
      const unsigned char *src;
      unsigned char *staged; // owned copy of pageable source
      size_t width, height, dpitch, spitch;
    } c;
    struct {
      unsigned char *dst;
      unsigned value, element;
      size_t width, height, pitch; // width in elements
    } s;
    struct {
      CUhostFn fn;
      CUstreamCallback cb;
      CUstream stream;
      void *user;
    } h;
    struct {
      struct event *event; // graph nodes only; checked against serial
      uint64_t serial;
      int swaps;
    } e;
    struct {
      struct exec *exec; // owned reference
      struct op **recs;  // one per event-record node of exec, then NULL
    } g;
    struct {
      struct alloc *alloc; // owned, no longer in the table
    } f;
    struct {
      struct graph_memory *mem; // owned reference
    } a;
  } u;
};
// Memory that a graph allocates: it is there as long as a graph, an executable
// graph or a replay in flight has the node, and after that if nobody freed it.
struct graph_memory {
  unsigned refs;
  struct alloc *alloc;
};
void graph_memory_unref(struct graph_memory *m);

void work_clear(struct work *w);
bool work_copy(struct work *to, const struct work *from);
int64_t work_duration(const struct work *w);
void work_run(struct work *w, CUresult status); // without the lock

// An operation on a stream's queue. Virtual times are CLOCK_MONOTONIC ns and
// are fixed when the operation reaches the head of its queue; it becomes done
// when the real clock has passed end_ns and its body has run.
struct op {
  unsigned refs;
  unsigned waiters;
  bool done;
  bool timed;    // has a stamp
  bool scheduled, ran;
  bool nostamp; // an event swapped into a graph again: elapsed says 400
  int64_t enq_ns, start_ns, end_ns, stamp_ns;
  struct stream *stream; // while queued
  struct work w;
  struct op **deps;
  size_t ndeps, capdeps;
  struct op *next;
};
struct op *op_new(void);
struct op *op_ref(struct op *op);
void op_unref(struct op *op);
bool op_depend(struct op *op, struct op *on);
void op_complete(struct op *op);
void op_wait(struct op *op);

// Streams ------------------------------------------------------------------

struct node;
struct nodeset {
  struct node **v;
  size_t n, cap;
};
bool nodeset_add(struct nodeset *set, struct node *n);
void nodeset_clear(struct nodeset *set);

struct capture {
  unsigned refs;
  uint64_t id;
  int mode;
  uint64_t thread;
  int status;
  struct graph *graph;
  struct stream *origin;
  struct capture *next;
};

struct stream_handle {
  struct obj o;
  struct stream *s;
};

struct stream {
  uint64_t id;
  struct context *ctx; // NULL once the context is gone
  struct stream_handle *handle;
  unsigned flags;
  int priority;
  bool legacy, closing, stalled, idle, running, scheduling, has_worker, after_record;
  uint64_t thread; // per-thread default stream: whose
  struct op *head, *tail;
  int64_t free_ns;
  pthread_cond_t cv;
  struct capture *cap;
  struct nodeset capdeps;
  struct stream *next; // of the context
};

// Contexts, devices, memory -------------------------------------------------

struct chunk {
  struct chunk *next;
  uintptr_t base;
  size_t bytes;
  size_t used;      // bytes handed out, in units
  uint64_t *bitmap; // NULL: one allocation owns all of it
};

struct heap {
  struct chunk *chunks;
  size_t chunk_bytes;
  int device;    // whose memory it takes, -1: nobody's
  bool keep;     // empty chunks stay until trimmed
  size_t reserved, reserved_high, used;
};

struct context {
  struct obj o;
  uint64_t id;
  int device;
  unsigned flags;
  bool primary, destroying;
  struct stream *streams;
  struct stream *legacy;
  struct heap heap;    // cuMemAlloc
  struct heap managed; // cuMemAllocManaged
  uint32_t peers;
};

struct device {
  size_t used; // bytes of device memory taken, in whole chunks
  struct context *primary;
  unsigned retains, primary_flags;
  struct pool *default_pool, *pool;
};

struct event {
  struct obj o;
  uint64_t serial;
  struct context *ctx;
  unsigned flags;
  struct op *op;        // last record, NULL: never recorded
  struct capture *cap;  // last recorded inside this capture (owned reference)
  struct nodeset nodes; // where in it
};

enum alloc_type { A_DEVICE, A_MANAGED, A_POOL, A_HOST, A_REGISTERED, A_MAPPED, A_INTERNAL, A_GRAPH };

struct alloc {
  uintptr_t base;
  size_t size; // as asked for
  size_t span; // as taken
  enum alloc_type type;
  struct context *ctx;
  int device;
  uint64_t id;
  unsigned flags;
  struct chunk *chunk;
  struct heap *heap;
  struct pool *pool;
  struct graph_memory *graph;
  bool freed; // A_GRAPH: by a node, or by hand while the graph lives
  struct physical *phys;
  size_t phys_offset;
};

struct settings {
  int devices;
  int64_t clock_offset_ns, clock_drift_ppb, clock_base_ns;
  int64_t record_ns, after_record_ns, latency_ns, kernel_ns, spin_fixed_ns;
  int64_t copy_fixed_ns, copy_bytes_per_us;
  size_t total_memory;
  int integrated;
  int sticky;
  int swap_limit; // < 0: none
};

struct driver {
  pthread_mutex_t lock;
  pthread_cond_t done; // somebody waits for some operation
  bool initialised;
  struct settings set;
  struct device dev[LT_MAX_DEVICES];
  uint64_t next_ctx_id, next_stream_id, next_capture_id, next_alloc_id, next_serial;
  struct capture *captures;
};
extern struct driver drv;

// Calls ---------------------------------------------------------------------

// lt_enter counts the call, applies faults and host times and takes the lock;
// on an error the lock is not held. lt_leave releases it.
CUresult lt_enter(enum fn_id fn);
CUresult lt_leave(CUresult r);
#define ENTER(fn)                     \
  do {                                \
    CUresult enter_ = lt_enter(fn);   \
    if (enter_ != CUDA_SUCCESS)       \
      return enter_;                  \
  } while (0)
#define LEAVE(r) return lt_leave(r)

#define NEED(p)                        \
  do {                                 \
    if ((p) == NULL)                   \
      LEAVE(CUDA_ERROR_INVALID_VALUE); \
  } while (0)
// Declares c, the calling thread's current context, or leaves.
#define NEED_CONTEXT(c)                          \
  CUresult ctx_result_;                          \
  struct context *c = ctx_current(&ctx_result_); \
  if (c == NULL)                                 \
    LEAVE(ctx_result_);                          \
  (void)c
// Declares s, the stream meant, and c, its context. Only the default streams
// need a current context: a stream's own handle says whose it is.
#define NEED_STREAM(c, s, h, pt)                       \
  struct stream *s;                                    \
  CUresult ctx_result_ = stream_resolve(h, pt, &s);    \
  if (ctx_result_ != CUDA_SUCCESS)                     \
    LEAVE(ctx_result_);                                \
  struct context *c = s->ctx;                          \
  (void)c
#define NEED_UNCAPTURED()              \
  do {                                 \
    CUresult guard_ = capture_guard(); \
    if (guard_ != CUDA_SUCCESS)        \
      LEAVE(guard_);                   \
  } while (0)

extern _Thread_local bool in_callback;
extern _Thread_local int thread_capture_mode;
uint64_t thread_token(void);

int64_t mono_ns(void);
int64_t gpu_clock_ns(int64_t mono);
int64_t gpu_stamp_ns(int64_t mono);

bool log_on(void);
void log_line(enum fn_id fn, struct stream *s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
const char *fn_name(enum fn_id fn);
bool symbol_hidden(const char *name);
lt_testdriver_kernel_fn kernel_body(const struct fninfo *f);
int64_t kernel_ns(const char *name); // < 0: none set for this name
lt_testdriver_kernel_fn builtin_body(const struct fninfo *f);
CUresult kernel_work(struct context *c, CUfunction h, const unsigned grid[3], const unsigned block[3], unsigned shared,
                     void **params, void **extra, struct work *w);

// Contexts.
struct context *ctx_current(CUresult *r); // NULL: *r says why
void ctx_sync(struct context *c);
CUresult wait_result(void);

// Streams.
CUresult stream_resolve(CUstream h, bool per_thread, struct stream **out);
struct stream *stream_new(struct context *c, unsigned flags, int priority);
void stream_close(struct stream *s);
void stream_detach_all(struct context *c);
CUresult submit(struct stream *s, struct work *w, struct op **out);
void streams_wake_all(void);
void stream_pump(struct stream *s);
bool event_pick_ctx(struct obj *o, void *ctx);
void event_drop(struct obj *o);

// Captures and graphs.
CUresult capture_guard(void);
void capture_invalidate(struct capture *c);
void capture_unref(struct capture *c);
void capture_forget_stream(struct stream *s);
CUresult capture_add(struct stream *s, int type, struct work *w, struct node **out);
CUresult capture_record(struct stream *s, struct event *e, unsigned flags);
CUresult capture_wait(struct stream *s, struct event *e, unsigned flags);
CUresult captured_event(const struct event *e);
CUresult capture_implicit(struct context *c, bool invalidate);
CUresult capture_conflict(struct context *c);
void exec_unref(struct exec *e);
int64_t exec_run(struct stream *s, struct op *op, int64_t start);
int64_t stream_do(struct stream *s, struct work *w, int64_t start);
int work_node_type(const struct work *w);

// Memory.
struct alloc *alloc_find(uintptr_t p);
struct alloc *alloc_add(struct context *c, enum alloc_type type, uintptr_t base, size_t size, size_t span);
void alloc_remove(struct alloc *a);
uintptr_t map_aligned(size_t bytes, size_t align, int prot);
bool alloc_covers(uintptr_t p, size_t bytes);
CUresult heap_take(struct heap *h, size_t bytes, uintptr_t *base, size_t *span, struct chunk **chunk);
void heap_give(struct heap *h, struct chunk *c, uintptr_t base, size_t span);
CUresult alloc_internal(struct context *c, size_t bytes, uintptr_t *base);
void alloc_drop(struct alloc *a);
void memory_drop_context(struct context *c);
void heap_init(struct heap *h, size_t chunk_bytes, int device, bool keep);
void alloc_release(struct alloc *a);
void pools_trim(void);
uint64_t alloc_live(void);
void modules_drop_context(struct context *c);

#endif
