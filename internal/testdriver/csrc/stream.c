// SPDX-License-Identifier: Apache-2.0
//
// Streams, the operations on them and the worker threads that complete them.

#include "internal.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

// Operations -----------------------------------------------------------------

struct op *op_new(void) {
  struct op *op = calloc(1, sizeof *op);
  if (op != NULL)
    op->refs = 1;
  return op;
}

struct op *op_ref(struct op *op) {
  op->refs++;
  return op;
}

void op_unref(struct op *op) {
  if (op == NULL || --op->refs > 0)
    return;
  for (size_t i = 0; i < op->ndeps; i++)
    op_unref(op->deps[i]);
  free(op->deps);
  work_clear(&op->w);
  free(op);
}

bool op_depend(struct op *op, struct op *on) {
  if (on == NULL || on->done)
    return true; // over before this is enqueued, in virtual time too
  if (op->ndeps == op->capdeps) {
    size_t cap = op->capdeps == 0 ? 4 : 2 * op->capdeps;
    struct op **v = realloc(op->deps, cap * sizeof *v);
    if (v == NULL)
      return false;
    op->deps = v;
    op->capdeps = cap;
  }
  op->deps[op->ndeps++] = op_ref(on);
  return true;
}

void op_complete(struct op *op) {
  op->done = true;
  // One condition serves all waiters; most completions have none.
  if (op->waiters > 0)
    pthread_cond_broadcast(&drv.done);
}

void op_wait(struct op *op) {
  op->waiters++;
  while (!op->done)
    pthread_cond_wait(&drv.done, &drv.lock);
  op->waiters--;
}

// What work does and how long it takes ---------------------------------------------

void work_clear(struct work *w) {
  switch (w->kind) {
  case W_KERNEL:
    fninfo_unref(w->u.k.info);
    free(w->u.k.blob);
    break;
  case W_COPY:
    free(w->u.c.staged);
    break;
  case W_FREE:
    free(w->u.f.alloc);
    break;
  case W_GRAPH:
    if (w->u.g.recs != NULL)
      for (struct op **r = w->u.g.recs; *r != NULL; r++)
        op_unref(*r);
    free(w->u.g.recs);
    exec_unref(w->u.g.exec);
    break;
  case W_ALLOC:
    graph_memory_unref(w->u.a.mem);
    break;
  default:
    break;
  }
  memset(w, 0, sizeof *w);
}

bool work_copy(struct work *to, const struct work *from) {
  *to = *from;
  if (from->kind == W_ALLOC)
    to->u.a.mem->refs++;
  if (from->kind == W_KERNEL) {
    size_t n = from->u.k.info->bytes;
    to->u.k.blob = malloc(n > 0 ? n : 1);
    if (to->u.k.blob == NULL) {
      memset(to, 0, sizeof *to);
      return false;
    }
    memcpy(to->u.k.blob, from->u.k.blob, n);
    fninfo_ref(to->u.k.info);
  }
  return true;
}

static int64_t transfer_ns(size_t bytes) {
  int64_t per_us = drv.set.copy_bytes_per_us;
  return drv.set.copy_fixed_ns + (per_us > 0 ? (int64_t)((__int128)bytes * 1000 / per_us) : 0);
}

int64_t work_duration(const struct work *w) {
  switch (w->kind) {
  case W_KERNEL: {
    const struct fninfo *f = w->u.k.info;
    int64_t ns = kernel_ns(f->name);
    if (ns >= 0)
      return ns;
    if (strcmp(f->name, "lt_spin") == 0 && f->nparams > 0 && f->size[0] == 8) {
      uint64_t cycles;
      memcpy(&cycles, w->u.k.blob + f->offset[0], 8);
      return (int64_t)((__int128)cycles * 100 / 198) + drv.set.spin_fixed_ns;
    }
    return drv.set.kernel_ns;
  }
  case W_COPY:
    return transfer_ns(w->u.c.width * w->u.c.height);
  case W_SET:
    return transfer_ns(w->u.s.width * w->u.s.element * w->u.s.height);
  case W_RECORD:
    return w->u.e.event != NULL && w->u.e.event->flags & CU_EVENT_DISABLE_TIMING ? 0 : drv.set.record_ns;
  default:
    return 0;
  }
}

static void set_run(const struct work *w) {
  for (size_t y = 0; y < w->u.s.height; y++) {
    unsigned char *row = w->u.s.dst + y * w->u.s.pitch;
    switch (w->u.s.element) {
    case 1: memset(row, (int)(w->u.s.value & 0xff), w->u.s.width); break;
    case 2:
      for (size_t x = 0; x < w->u.s.width; x++)
        memcpy(row + 2 * x, &(uint16_t){(uint16_t)w->u.s.value}, 2);
      break;
    default:
      for (size_t x = 0; x < w->u.s.width; x++)
        memcpy(row + 4 * x, &w->u.s.value, 4);
      break;
    }
  }
}

void work_run(struct work *w, CUresult status) {
  switch (w->kind) {
  case W_KERNEL:
    if (w->u.k.body != NULL) {
      const struct fninfo *f = w->u.k.info;
      void *params[f->nparams + 1];
      for (size_t i = 0; i < f->nparams; i++)
        params[i] = w->u.k.blob + f->offset[i];
      params[f->nparams] = NULL;
      w->u.k.body(params, w->u.k.grid, w->u.k.block);
    }
    break;
  case W_COPY:
    for (size_t y = 0; y < w->u.c.height; y++)
      memmove(w->u.c.dst + y * w->u.c.dpitch, w->u.c.src + y * w->u.c.spitch, w->u.c.width);
    break;
  case W_SET:
    set_run(w);
    break;
  case W_HOST:
    in_callback = true;
    w->u.h.fn(w->u.h.user);
    in_callback = false;
    break;
  case W_CALLBACK:
    in_callback = true;
    w->u.h.cb(w->u.h.stream, status, w->u.h.user);
    in_callback = false;
    break;
  default:
    break;
  }
}

static bool work_is_host(const struct work *w) { return w->kind == W_HOST || w->kind == W_CALLBACK; }

static bool work_has_body(const struct work *w) {
  return w->kind == W_COPY || w->kind == W_SET || work_is_host(w) || (w->kind == W_KERNEL && w->u.k.body != NULL);
}

// Workers ------------------------------------------------------------------------------

// sleep_until lets time pass until t, or less: the caller looks again. It may
// release the lock.
static void sleep_until(struct stream *s, int64_t t, int64_t now) {
  if (t - now < 3000) {
    // Shorter than a sleep's own error: spin, but let others at the lock.
    pthread_mutex_unlock(&drv.lock);
    while (mono_ns() < t) {
    }
    pthread_mutex_lock(&drv.lock);
    return;
  }
  struct timespec ts = {t / 1000000000, t % 1000000000};
  pthread_cond_timedwait(&s->cv, &drv.lock, &ts);
}

static bool stream_held(const struct stream *s) { return s->stalled && drv.set.sticky == CUDA_SUCCESS; }

// run_body does what there is to do besides passing time, without the lock. A
// context that faulted runs nothing more, except for callbacks, which are told.
static void run_body(struct work *w) {
  CUresult status = drv.set.sticky;
  if (status != CUDA_SUCCESS && w->kind != W_CALLBACK)
    return;
  pthread_mutex_unlock(&drv.lock);
  work_run(w, status);
  pthread_mutex_lock(&drv.lock);
}

// stream_do does one node of a graph that may begin at start and returns when,
// in virtual time, it ended. Only the stream's worker calls it.
int64_t stream_do(struct stream *s, struct work *w, int64_t start) {
  int64_t end = start + (w->dur_ns >= 0 ? w->dur_ns : work_duration(w));
  bool ran = !work_has_body(w);
  for (;;) {
    if (stream_held(s)) {
      pthread_cond_wait(&s->cv, &drv.lock);
      int64_t now = mono_ns();
      if (!stream_held(s) && now > end)
        end = now; // what hung ended late
      continue;
    }
    int64_t now = mono_ns();
    if (now < end && drv.set.sticky == CUDA_SUCCESS) {
      sleep_until(s, end, now);
      continue;
    }
    if (ran)
      return end;
    run_body(w);
    ran = true;
    now = mono_ns();
    if (work_is_host(w) && now > end)
      end = now;
  }
}

// op_schedule fixes when the head of a queue begins and ends. It can't while
// something that it depends on is not over.
static void stream_pump_depth(struct stream *s, int depth);

static bool op_schedule(struct stream *s, struct op *op, int depth) {
  if (op->scheduled)
    return true;
  for (size_t i = 0; i < op->ndeps; i++) {
    struct op *d = op->deps[i];
    if (!d->done && d->stream != NULL && depth > 0) {
      // Default streams depend on each other in turns: the way back to this one
      // must not complete the operation that is being looked at.
      s->scheduling = true;
      stream_pump_depth(d->stream, depth - 1);
      s->scheduling = false;
    }
    if (!d->done)
      return false;
  }
  int64_t start = op->enq_ns;
  if (op->w.kind != W_NOP && op->w.kind != W_WAIT)
    start += drv.set.latency_ns; // markers are the model's own and cost nothing
  if (s->free_ns > start)
    start = s->free_ns;
  for (size_t i = 0; i < op->ndeps; i++) {
    if (op->deps[i]->end_ns > start)
      start = op->deps[i]->end_ns;
    op_unref(op->deps[i]);
  }
  op->ndeps = 0;
  if (op->w.kind == W_KERNEL && s->after_record)
    start += drv.set.after_record_ns;
  op->start_ns = start;
  op->end_ns = start + (op->w.kind == W_GRAPH ? 0 : op->w.dur_ns);
  op->scheduled = true;
  return true;
}

// stream_retire completes the head of the queue.
static void stream_retire(struct stream *s, struct op *op) {
  if (op->w.kind == W_FREE) {
    alloc_release(op->w.u.f.alloc);
    op->w.u.f.alloc = NULL;
  }
  if (op->w.kind != W_NOP && op->w.kind != W_WAIT)
    s->after_record = op->timed;
  if (op->timed)
    op->stamp_ns = gpu_stamp_ns(op->end_ns);
  if (op->end_ns > s->free_ns)
    s->free_ns = op->end_ns;
  s->head = op->next;
  if (s->head == NULL)
    s->tail = NULL;
  op->stream = NULL;
  op_complete(op);
  op_unref(op);
}

// stream_pump completes what is over by now and has nothing to run. Whoever
// asks about a stream or an event calls it, so that the answer follows the
// clock and not how soon a busy machine lets the worker run.
static void stream_pump_depth(struct stream *s, int depth) {
  while (s->head != NULL && !s->running && !s->scheduling && !stream_held(s)) {
    struct op *op = s->head;
    if (op->w.kind == W_GRAPH || (work_has_body(&op->w) && !op->ran) || !op_schedule(s, op, depth))
      return;
    if (mono_ns() < op->end_ns && drv.set.sticky == CUDA_SUCCESS)
      return;
    stream_retire(s, op);
  }
}

void stream_pump(struct stream *s) { stream_pump_depth(s, 4); }

static void stream_destroy(struct stream *s) {
  if (s->ctx != NULL) {
    struct stream **at = &s->ctx->streams;
    while (*at != s)
      at = &(*at)->next;
    *at = s->next;
  }
  pthread_cond_destroy(&s->cv);
  free(s);
}

static void *worker(void *arg) {
  struct stream *s = arg;
  // The default slack of 50 us would make every completion late by as much.
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  prctl(PR_SET_NAME, "lt-testdriver", 0UL, 0UL, 0UL);
  pthread_mutex_lock(&drv.lock);
  for (;;) {
    struct op *op = s->head;
    if (op == NULL) {
      if (s->closing)
        break;
      s->idle = true;
      pthread_cond_wait(&s->cv, &drv.lock);
      s->idle = false;
      continue;
    }
    if (stream_held(s)) {
      pthread_cond_wait(&s->cv, &drv.lock);
      continue;
    }
    // From here on, whenever the lock was released, look afresh: somebody may
    // have pumped.
    if (!op_schedule(s, op, 4)) {
      struct op *d = NULL;
      for (size_t i = 0; d == NULL; i++)
        if (!op->deps[i]->done)
          d = op_ref(op->deps[i]);
      op_wait(d);
      op_unref(d);
      continue;
    }
    if (op->w.kind == W_GRAPH) {
      s->running = true;
      op->end_ns = exec_run(s, op, op->start_ns);
      s->running = false;
      stream_retire(s, op);
      continue;
    }
    int64_t now = mono_ns();
    if (now < op->end_ns && drv.set.sticky == CUDA_SUCCESS) {
      sleep_until(s, op->end_ns, now);
      continue;
    }
    if (work_has_body(&op->w) && !op->ran) {
      s->running = true;
      run_body(&op->w);
      s->running = false;
      op->ran = true;
      now = mono_ns();
      if (work_is_host(&op->w) && now > op->end_ns)
        op->end_ns = now; // only host code takes as long as it takes
      continue;
    }
    stream_retire(s, op);
  }
  stream_destroy(s);
  pthread_mutex_unlock(&drv.lock);
  return NULL;
}

static bool start_worker(struct stream *s) {
  // Signals belong to the program under test, never to us.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_t t;
  int err = pthread_create(&t, &attr, worker, s);
  pthread_attr_destroy(&attr);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  s->has_worker = err == 0;
  return s->has_worker;
}

// Enqueuing -------------------------------------------------------------------------------

static bool stream_blocking(const struct stream *s) { return !(s->flags & CU_STREAM_NON_BLOCKING); }

// op_enqueue takes over the caller's reference if it succeeds.
static CUresult op_enqueue(struct stream *s, struct op *op) {
  if (!s->has_worker && !start_worker(s))
    return CUDA_ERROR_OUT_OF_MEMORY;
  struct context *c = s->ctx;
  bool ok = true;
  if (s->legacy) {
    for (struct stream *t = c->streams; t != NULL && ok; t = t->next)
      if (t != s && stream_blocking(t))
        ok = op_depend(op, t->tail);
  } else if (stream_blocking(s)) {
    ok = op_depend(op, c->legacy->tail);
  }
  if (!ok)
    return CUDA_ERROR_OUT_OF_MEMORY;
  op->enq_ns = mono_ns();
  op->stream = s;
  if (s->tail != NULL)
    s->tail->next = op;
  else
    s->head = op;
  s->tail = op;
  if (s->idle)
    pthread_cond_broadcast(&s->cv);
  return CUDA_SUCCESS;
}

// submit does work on a stream, or notes it in the stream's capture. It owns
// w from here on, also when it fails. out, if given, gets a reference to the
// operation, or NULL when captured.
CUresult submit(struct stream *s, struct work *w, struct op **out) {
  if (out != NULL)
    *out = NULL;
  CUresult r = CUDA_SUCCESS;
  if (s->legacy)
    r = capture_implicit(s->ctx, true);
  if (r == CUDA_SUCCESS && s->cap != NULL) {
    r = capture_add(s, work_node_type(w), w, NULL);
    if (r != CUDA_SUCCESS)
      work_clear(w);
    return r;
  }
  struct op *op = r == CUDA_SUCCESS ? op_new() : NULL;
  if (op == NULL) {
    work_clear(w);
    return r != CUDA_SUCCESS ? r : CUDA_ERROR_OUT_OF_MEMORY;
  }
  op->w = *w;
  if (op->w.dur_ns < 0 && op->w.kind != W_GRAPH)
    op->w.dur_ns = work_duration(&op->w);
  r = op_enqueue(s, op);
  if (r != CUDA_SUCCESS) {
    op_unref(op);
    return r;
  }
  if (out != NULL)
    *out = op_ref(op);
  return CUDA_SUCCESS;
}

// Streams themselves ------------------------------------------------------------------------

struct stream *stream_new(struct context *c, unsigned flags, int priority) {
  struct stream *s = calloc(1, sizeof *s);
  if (s == NULL)
    return NULL;
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&s->cv, &attr);
  pthread_condattr_destroy(&attr);
  s->id = drv.next_stream_id++;
  s->ctx = c;
  s->flags = flags;
  s->priority = priority;
  struct stream **at = &c->streams;
  while (*at != NULL)
    at = &(*at)->next;
  *at = s;
  return s;
}

// stream_close gives the handle back at once; what is queued still happens.
void stream_close(struct stream *s) {
  capture_forget_stream(s);
  if (s->handle != NULL)
    obj_free(s->handle);
  s->handle = NULL;
  s->stalled = false; // nobody could release it any more
  s->closing = true;
  if (s->has_worker)
    pthread_cond_broadcast(&s->cv);
  else
    stream_destroy(s);
}

// stream_detach_all ends all streams of a context that goes away; they are
// idle, but their workers may outlive it by a moment.
void stream_detach_all(struct context *c) {
  struct stream *s = c->streams;
  c->streams = NULL;
  c->legacy = NULL;
  while (s != NULL) {
    struct stream *next = s->next;
    s->ctx = NULL;
    s->next = NULL;
    if (!s->closing)
      stream_close(s);
    s = next;
  }
}

static bool wake(struct obj *o, void *arg) {
  (void)arg;
  for (struct stream *s = ((struct context *)o)->streams; s != NULL; s = s->next)
    pthread_cond_broadcast(&s->cv);
  return false;
}

void streams_wake_all(void) { obj_sweep(K_CONTEXT, wake, NULL, NULL); }

static struct stream *per_thread_stream(struct context *c) {
  uint64_t me = thread_token();
  for (struct stream *s = c->streams; s != NULL; s = s->next)
    if (s->thread == me && !s->closing)
      return s;
  struct stream *s = stream_new(c, CU_STREAM_DEFAULT, 0);
  if (s != NULL)
    s->thread = me;
  return s;
}

CUresult stream_resolve(CUstream h, bool per_thread, struct stream **out) {
  if (h == NULL)
    h = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  if (h == CU_STREAM_LEGACY || h == CU_STREAM_PER_THREAD) {
    CUresult r;
    struct context *c = ctx_current(&r);
    if (c == NULL)
      return r;
    *out = h == CU_STREAM_LEGACY ? c->legacy : per_thread_stream(c);
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  struct stream_handle *sh = obj_get(h, K_STREAM);
  if (sh == NULL)
    return CUDA_ERROR_INVALID_HANDLE;
  if (sh->s->ctx->destroying)
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *out = sh->s;
  return drv.set.sticky;
}

static CUresult stream_create(enum fn_id fn, CUstream *stream, unsigned flags, int priority) {
  ENTER(fn);
  NEED(stream);
  NEED_CONTEXT(c);
  if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  struct stream_handle *h = obj_new(K_STREAM, sizeof *h);
  struct stream *s = h != NULL ? stream_new(c, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority) : NULL;
  if (s == NULL) {
    if (h != NULL)
      obj_free(h);
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  h->s = s;
  s->handle = h;
  *stream = (CUstream)h;
  LEAVE(CUDA_SUCCESS);
}
EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  return stream_create(FN_cuStreamCreate, stream, flags, 0);
}
EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  return stream_create(FN_cuStreamCreateWithPriority, stream, flags, priority);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  ENTER(FN_cuStreamDestroy_v2);
  NEED_STREAM(c, s, stream, false);
  if (s->handle == NULL)
    LEAVE(CUDA_ERROR_INVALID_HANDLE); // the default streams stay
  stream_close(s);
  LEAVE(CUDA_SUCCESS);
}

// The legacy stream stands for all blocking streams of its context.
static bool stream_busy(struct stream *s) {
  stream_pump(s);
  if (s->tail != NULL)
    return true;
  if (s->legacy)
    for (struct stream *t = s->ctx->streams; t != NULL; t = t->next) {
      if (!stream_blocking(t))
        continue;
      stream_pump(t);
      if (t->tail != NULL)
        return true;
    }
  return false;
}

static CUresult stream_conflict(struct stream *s) {
  if (s->cap != NULL) {
    capture_invalidate(s->cap);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  CUresult r = capture_guard();
  if (r == CUDA_SUCCESS && s->legacy)
    r = capture_implicit(s->ctx, true);
  return r;
}

static CUresult do_cuStreamSynchronize(enum fn_id fn, bool pt, CUstream stream) {
  ENTER(fn);
  NEED_STREAM(c, s, stream, pt);
  CUresult r = stream_conflict(s);
  if (r != CUDA_SUCCESS)
    LEAVE(r);
  struct op *op = NULL;
  if (s->legacy && stream_busy(s)) {
    // An empty operation there depends on all that it has to wait for.
    struct work w = {.kind = W_NOP};
    r = submit(s, &w, &op);
    if (r != CUDA_SUCCESS)
      LEAVE(r);
  } else if (s->tail != NULL) {
    op = op_ref(s->tail);
  }
  if (op != NULL) {
    op_wait(op);
    op_unref(op);
  }
  pools_trim();
  LEAVE(wait_result());
}
PAIR(cuStreamSynchronize, _ptsz, (CUstream stream), (stream))

static CUresult do_cuStreamQuery(enum fn_id fn, bool pt, CUstream stream) {
  ENTER(fn);
  NEED_STREAM(c, s, stream, pt);
  CUresult r = stream_conflict(s);
  if (r != CUDA_SUCCESS)
    LEAVE(r);
  LEAVE(stream_busy(s) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}
PAIR(cuStreamQuery, _ptsz, (CUstream stream), (stream))

// Asking a capturing stream for its id or its flags spoils the capture, as
// measured; asking for its context or its priority does not.
static CUresult stream_touch(struct stream *s) {
  if (s->cap != NULL) {
    capture_invalidate(s->cap);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return s->legacy ? capture_implicit(s->ctx, true) : CUDA_SUCCESS;
}

static CUresult do_cuStreamGetId(enum fn_id fn, bool pt, CUstream stream, unsigned long long *id) {
  ENTER(fn);
  NEED(id);
  NEED_STREAM(c, s, stream, pt);
  CUresult r = stream_touch(s);
  if (r != CUDA_SUCCESS)
    LEAVE(r);
  *id = s->id;
  LEAVE(CUDA_SUCCESS);
}
PAIR(cuStreamGetId, _ptsz, (CUstream stream, unsigned long long *id), (stream, id))

static CUresult do_cuStreamGetCtx(enum fn_id fn, bool pt, CUstream stream, CUcontext *ctx) {
  ENTER(fn);
  NEED(ctx);
  NEED_STREAM(c, s, stream, pt);
  *ctx = (CUcontext)s->ctx;
  LEAVE(CUDA_SUCCESS);
}
PAIR(cuStreamGetCtx, _ptsz, (CUstream stream, CUcontext *ctx), (stream, ctx))

static CUresult do_cuStreamGetDevice(enum fn_id fn, bool pt, CUstream stream, CUdevice *dev) {
  ENTER(fn);
  NEED(dev);
  NEED_STREAM(c, s, stream, pt);
  *dev = s->ctx->device;
  LEAVE(CUDA_SUCCESS);
}
PAIR(cuStreamGetDevice, _ptsz, (CUstream stream, CUdevice *dev), (stream, dev))

static CUresult do_cuStreamGetPriority(enum fn_id fn, bool pt, CUstream stream, int *priority) {
  ENTER(fn);
  NEED(priority);
  NEED_STREAM(c, s, stream, pt);
  *priority = s->priority;
  LEAVE(CUDA_SUCCESS);
}
PAIR(cuStreamGetPriority, _ptsz, (CUstream stream, int *priority), (stream, priority))

static CUresult do_cuStreamGetFlags(enum fn_id fn, bool pt, CUstream stream, unsigned *flags) {
  ENTER(fn);
  NEED(flags);
  NEED_STREAM(c, s, stream, pt);
  CUresult r = stream_touch(s);
  if (r != CUDA_SUCCESS)
    LEAVE(r);
  *flags = s->flags;
  LEAVE(CUDA_SUCCESS);
}
PAIR(cuStreamGetFlags, _ptsz, (CUstream stream, unsigned *flags), (stream, flags))

// Host functions ----------------------------------------------------------------------------

static CUresult do_cuLaunchHostFunc(enum fn_id fn, bool pt, CUstream stream, CUhostFn f, void *user) {
  ENTER(fn);
  NEED(f);
  NEED_STREAM(c, s, stream, pt);
  struct work w = {.kind = W_HOST, .u.h = {.fn = f, .user = user}};
  log_line(fn, s, " fn=%p", (void *)(uintptr_t)f);
  LEAVE(submit(s, &w, NULL));
}
PAIR(cuLaunchHostFunc, _ptsz, (CUstream stream, CUhostFn f, void *user), (stream, f, user))

static CUresult do_cuStreamAddCallback(enum fn_id fn, bool pt, CUstream stream, CUstreamCallback f, void *user,
                                       unsigned flags) {
  ENTER(fn);
  NEED(f);
  NEED_STREAM(c, s, stream, pt);
  if (flags != 0)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (s->cap != NULL) {
    capture_invalidate(s->cap);
    LEAVE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  struct work w = {.kind = W_CALLBACK, .u.h = {.cb = f, .stream = stream, .user = user}};
  LEAVE(submit(s, &w, NULL));
}
PAIR(cuStreamAddCallback, _ptsz, (CUstream stream, CUstreamCallback f, void *user, unsigned flags),
     (stream, f, user, flags))

// Control -----------------------------------------------------------------------------------

EXPORT int lt_testdriver_stall_stream(void *stream, int on) {
  pthread_mutex_lock(&drv.lock);
  struct stream *s;
  CUresult r = stream_resolve(stream, false, &s);
  if (r == CUDA_SUCCESS) {
    s->stalled = on != 0;
    if (!s->stalled) {
      // What was held back happens from now on, not in the past; what hung
      // ends now.
      int64_t now = mono_ns();
      if (s->free_ns < now)
        s->free_ns = now;
      if (s->head != NULL && s->head->scheduled && s->head->end_ns < now)
        s->head->end_ns = now;
    }
    pthread_cond_broadcast(&s->cv);
  }
  pthread_mutex_unlock(&drv.lock);
  return r;
}
