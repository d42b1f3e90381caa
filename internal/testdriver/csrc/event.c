// SPDX-License-Identifier: Apache-2.0
//
// Events.

#include "internal.h"

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
  ENTER(FN_cuEventCreate);
  NEED(event);
  NEED_CONTEXT(c);
  const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (flags & ~known || (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  struct event *e = obj_new(K_EVENT, sizeof *e);
  if (e == NULL)
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  e->serial = drv.next_serial++;
  e->ctx = c;
  e->flags = flags;
  *event = (CUevent)e;
  LEAVE(CUDA_SUCCESS);
}

// A pending record outlives its event: the operation has references of its own.
void event_drop(struct obj *o) {
  struct event *e = (struct event *)o;
  op_unref(e->op);
  capture_unref(e->cap);
  nodeset_clear(&e->nodes);
  obj_free(e);
}

bool event_pick_ctx(struct obj *o, void *ctx) { return ((struct event *)o)->ctx == ctx; }

static void pump(const struct event *e) {
  if (e->op != NULL && e->op->stream != NULL)
    stream_pump(e->op->stream);
}

// Events need no current context. One of a context that faulted says so.
#define NEED_EVENT(e, h)                    \
  struct event *e = obj_get(h, K_EVENT);    \
  if (e == NULL)                            \
    LEAVE(CUDA_ERROR_INVALID_HANDLE);       \
  if (drv.set.sticky != CUDA_SUCCESS)       \
  LEAVE(drv.set.sticky)

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  ENTER(FN_cuEventDestroy_v2);
  struct event *e = obj_get(event, K_EVENT);
  if (e == NULL)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  event_drop(&e->o);
  LEAVE(CUDA_SUCCESS);
}

static CUresult record(enum fn_id fn, bool pt, CUevent event, CUstream stream, unsigned flags) {
  ENTER(fn);
  NEED_STREAM(c, s, stream, pt);
  NEED_EVENT(e, event);
  if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (e->ctx != c)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (flags & CU_EVENT_RECORD_EXTERNAL && s->cap == NULL)
    LEAVE(CUDA_ERROR_ILLEGAL_STATE); // only a capture has an outside
  log_line(fn, s, " event=%p flags=%u", (void *)event, flags);
  if (s->cap != NULL)
    LEAVE(capture_record(s, e, flags));
  struct work w = {.kind = W_RECORD, .dur_ns = -1, .u.e.event = e};
  w.dur_ns = work_duration(&w);
  w.u.e.event = NULL; // the event may be gone when this runs
  struct op *op;
  CUresult r = submit(s, &w, &op);
  if (r != CUDA_SUCCESS)
    LEAVE(r);
  op->timed = !(e->flags & CU_EVENT_DISABLE_TIMING);
  op_unref(e->op);
  e->op = op;
  capture_unref(e->cap);
  e->cap = NULL;
  nodeset_clear(&e->nodes);
  LEAVE(CUDA_SUCCESS);
}

static CUresult do_cuEventRecord(enum fn_id fn, bool pt, CUevent event, CUstream stream) {
  return record(fn, pt, event, stream, 0);
}
PAIR(cuEventRecord, _ptsz, (CUevent event, CUstream stream), (event, stream))

static CUresult do_cuEventRecordWithFlags(enum fn_id fn, bool pt, CUevent event, CUstream stream, unsigned flags) {
  return record(fn, pt, event, stream, flags);
}
PAIR(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream stream, unsigned flags), (event, stream, flags))

EXPORT CUresult cuEventQuery(CUevent event) {
  ENTER(FN_cuEventQuery);
  NEED_EVENT(e, event);
  NEED_UNCAPTURED();
  if (e->cap != NULL) {
    CUresult r = captured_event(e);
    if (r == CUDA_ERROR_CAPTURED_EVENT)
      capture_invalidate(e->cap);
    LEAVE(r);
  }
  pump(e);
  if (e->op != NULL && !e->op->done)
    LEAVE(CUDA_ERROR_NOT_READY);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
  ENTER(FN_cuEventSynchronize);
  NEED_EVENT(e, event);
  NEED_UNCAPTURED();
  if (e->cap != NULL) {
    CUresult r = captured_event(e);
    if (r == CUDA_ERROR_CAPTURED_EVENT)
      capture_invalidate(e->cap);
    LEAVE(r);
  }
  if (e->op != NULL) {
    struct op *op = op_ref(e->op);
    op_wait(op);
    op_unref(op);
  }
  pools_trim();
  LEAVE(wait_result());
}

static CUresult stamp_state(const struct event *e) {
  if (e->cap != NULL)
    return captured_event(e);
  if (e->op == NULL || e->flags & CU_EVENT_DISABLE_TIMING || e->op->nostamp)
    return CUDA_ERROR_INVALID_HANDLE;
  return CUDA_SUCCESS;
}

static CUresult elapsed(enum fn_id fn, float *ms, CUevent start, CUevent end) {
  ENTER(fn);
  NEED_EVENT(a, start);
  NEED_EVENT(b, end);
  if (ms == NULL || a->ctx != b->ctx)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  CUresult r = stamp_state(a);
  if (r == CUDA_SUCCESS)
    r = stamp_state(b);
  if (r != CUDA_SUCCESS)
    LEAVE(r);
  pump(a);
  pump(b);
  if (!a->op->done || !b->op->done)
    LEAVE(CUDA_ERROR_NOT_READY);
  // The driver rounds to a float of milliseconds; so does this, once.
  *ms = (float)((double)(b->op->stamp_ns - a->op->stamp_ns) / 1e6);
  LEAVE(CUDA_SUCCESS);
}
EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
  return elapsed(FN_cuEventElapsedTime, ms, start, end);
}
EXPORT CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end) {
  return elapsed(FN_cuEventElapsedTime_v2, ms, start, end);
}

static CUresult do_cuStreamWaitEvent(enum fn_id fn, bool pt, CUstream stream, CUevent event, unsigned flags) {
  ENTER(fn);
  NEED_STREAM(c, s, stream, pt);
  NEED_EVENT(e, event);
  if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (s->cap != NULL || e->cap != NULL)
    LEAVE(capture_wait(s, e, flags));
  if (e->op == NULL || e->op->done)
    LEAVE(CUDA_SUCCESS);
  struct work w = {.kind = W_WAIT};
  struct op *on = op_ref(e->op), *op;
  CUresult r = submit(s, &w, &op);
  if (r == CUDA_SUCCESS) {
    if (!op_depend(op, on))
      r = CUDA_ERROR_OUT_OF_MEMORY;
    op_unref(op);
  }
  op_unref(on);
  LEAVE(r);
}
PAIR(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned flags), (stream, event, flags))

EXPORT int lt_testdriver_event_time(void *event, int64_t *mono, int64_t *gpu) {
  pthread_mutex_lock(&drv.lock);
  struct event *e = obj_get(event, K_EVENT);
  CUresult r = e == NULL ? CUDA_ERROR_INVALID_HANDLE : stamp_state(e);
  if (r == CUDA_SUCCESS)
    pump(e);
  if (r == CUDA_SUCCESS && !e->op->done)
    r = CUDA_ERROR_NOT_READY;
  if (r == CUDA_SUCCESS) {
    *mono = e->op->end_ns;
    *gpu = e->op->stamp_ns;
  }
  pthread_mutex_unlock(&drv.lock);
  return r;
}
