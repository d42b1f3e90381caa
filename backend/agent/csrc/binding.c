// SPDX-License-Identifier: Apache-2.0

#include "events.h"

enum { CAPTURE_NONE = 0, MODE_RELAXED = 2 };

lt_result lt_bind_context(lt_context *c, bool relaxed, lt_bound *b) {
  const lt_driver *d = lt_drv(c);
  *b = (lt_bound){0};
  if (lt_exiting())
    return LT_NOT_ASKED;
  void *current = NULL;
  lt_result r = 0;
  // What is done rarely does not rely on it: the thread's may be one that is gone and
  // whose handle came again.
  if (!relaxed) {
    b->calls++;
    r = d->cuCtxGetCurrent(&current);
  }
  if (r == 0 && current != c->bound) {
    b->calls++;
    r = d->cuCtxPushCurrent_v2(c->bound);
    b->pushed = r == 0;
  }
  if (r == 0 && relaxed) {
    b->calls++;
    b->mode = MODE_RELAXED;
    r = d->cuThreadExchangeStreamCaptureMode(&b->mode);
    b->relaxed = r == 0;
    if (r != 0)
      lt_unbind_context(c, b);
  }
  return r;
}

void lt_unbind_context(lt_context *c, lt_bound *b) {
  const lt_driver *d = lt_drv(c);
  if (b->relaxed) {
    b->calls++;
    d->cuThreadExchangeStreamCaptureMode(&b->mode);
  }
  if (b->pushed) {
    void *was;
    b->calls++;
    d->cuCtxPopCurrent_v2(&was);
  }
  b->pushed = b->relaxed = false;
}

// A stream's own handle needs no current context (driver 580: launches, records,
// capture status); asking and binding on each call cost half a microsecond. A driver
// that wants one all the same answers LT_INVALID_CONTEXT and has done nothing.
lt_recorded lt_record(lt_context *c, void *e, const lt_stream *s) {
  const lt_driver *d = lt_drv(c);
  lt_recorded out = {.result = LT_NOT_ASKED};
  if (lt_exiting() || atomic_load_explicit(&s->gone, memory_order_relaxed) || lt_stream_elsewhere(s))
    return out;
  void *const handle = s->handle;
  for (bool must = handle == NULL || handle == LT_STREAM_LEGACY || handle == LT_STREAM_PER_THREAD;; must = true) {
    lt_bound b = {0};
    int status = CAPTURE_NONE;
    lt_result r = 0;
    if (must && (r = lt_bind_context(c, false, &b)) != 0) {
      out.capturing = r != LT_NOT_ASKED; // its status cannot be had
      out.calls += b.calls;
      return out;
    }
    out.calls++;
    r = d->cuStreamIsCapturing(handle, &status);
    out.capturing = r != 0 || status != CAPTURE_NONE;
    if (!out.capturing && e != NULL) {
      out.calls++;
      r = out.result = d->cuEventRecord(e, handle);
    }
    lt_unbind_context(c, &b);
    out.calls += b.calls;
    if (must || r != LT_INVALID_CONTEXT)
      return out;
  }
}

lt_result lt_since(lt_context *c, void *a, void *b, float *ms) {
  return lt_exiting() ? LT_NOT_ASKED : lt_drv(c)->elapsed(ms, a, b);
}

lt_result lt_pending(lt_context *c, void *e) {
  float ms;
  return lt_since(c, e, e, &ms);
}
