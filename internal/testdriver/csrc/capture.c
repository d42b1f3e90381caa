// SPDX-License-Identifier: Apache-2.0
//
// Stream captures: what they collect, and what spoils them.

#include "graph.h"

void capture_unref(struct capture *c) {
  if (c != NULL && --c->refs == 0)
    free(c);
}

void capture_invalidate(struct capture *c) { c->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED; }

// capture_guard is asked by every potentially unsafe call. A thread may not
// make one while it captures itself or while another thread captures in GLOBAL
// mode, unless it has exchanged its own mode; doing it anyway spoils those
// captures. (Measured for cuEventQuery from a second thread: 900 there, 901
// from cuStreamEndCapture.)
CUresult capture_guard(void) {
  if (thread_capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_SUCCESS;
  uint64_t me = thread_token();
  bool bad = false;
  for (struct capture *c = drv.captures; c != NULL; c = c->next) {
    bool own = c->thread == me && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool others = c->thread != me && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                  thread_capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (own || others) {
      capture_invalidate(c);
      bad = true;
    }
  }
  return bad ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

// capture_implicit is asked before the legacy stream is used: a blocking
// stream that captures cannot be waited for.
CUresult capture_implicit(struct context *c, bool invalidate) {
  CUresult r = CUDA_SUCCESS;
  for (struct stream *s = c->streams; s != NULL; s = s->next) {
    if (s->cap == NULL || s->flags & CU_STREAM_NON_BLOCKING)
      continue;
    if (invalidate)
      capture_invalidate(s->cap);
    r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return r;
}

// capture_conflict is asked before a whole context is waited for: that spoils
// every capture in it, whatever the modes.
CUresult capture_conflict(struct context *c) {
  CUresult r = CUDA_SUCCESS;
  for (struct stream *s = c->streams; s != NULL; s = s->next)
    if (s->cap != NULL) {
      capture_invalidate(s->cap);
      r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  return r;
}

// captured_event is what asking an event last recorded in a capture answers:
// while the capture goes on, and ever after.
CUresult captured_event(const struct event *e) {
  return e->cap->graph != NULL ? CUDA_ERROR_CAPTURED_EVENT : CUDA_ERROR_INVALID_VALUE;
}

static void leave_capture(struct stream *s) {
  capture_unref(s->cap);
  s->cap = NULL;
  nodeset_clear(&s->capdeps);
}

static bool leave_if(struct obj *o, void *cap) {
  for (struct stream *s = ((struct context *)o)->streams; s != NULL; s = s->next)
    if (s->cap == cap)
      leave_capture(s);
  return false;
}

// capture_end takes the capture away from all streams and gives its graph to
// the caller.
static struct graph *capture_end(struct capture *c) {
  struct graph *g = c->graph;
  c->graph = NULL;
  g->capturing = false;
  struct capture **at = &drv.captures;
  while (*at != c)
    at = &(*at)->next;
  *at = c->next;
  c->refs++;
  obj_sweep(K_CONTEXT, leave_if, c, NULL);
  capture_unref(c);
  return g;
}

void capture_forget_stream(struct stream *s) {
  if (s->cap == NULL)
    return;
  if (s->cap->origin == s) {
    graph_free(capture_end(s->cap));
    if (s->cap != NULL)
      leave_capture(s); // its context is gone already, so the sweep missed it
  } else {
    capture_invalidate(s->cap);
    leave_capture(s);
  }
}

// capture_add makes a node of what would have been enqueued. It takes over w
// if it succeeds.
CUresult capture_add(struct stream *s, int type, struct work *w, struct node **out) {
  if (s->cap->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  struct node *n = node_new(s->cap->graph, type, w, &s->capdeps);
  if (n == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  s->capdeps.n = 0;
  if (!nodeset_add(&s->capdeps, n))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (out != NULL)
    *out = n;
  return CUDA_SUCCESS;
}

CUresult capture_record(struct stream *s, struct event *e, unsigned flags) {
  if (s->cap->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (flags & CU_EVENT_RECORD_EXTERNAL) {
    // The event itself is untouched until a replay.
    struct work w = {.kind = W_RECORD, .u.e = {.event = e, .serial = e->serial}};
    return capture_add(s, CU_GRAPH_NODE_TYPE_EVENT_RECORD, &w, NULL);
  }
  op_unref(e->op);
  e->op = NULL;
  capture_unref(e->cap);
  e->cap = s->cap;
  s->cap->refs++;
  nodeset_clear(&e->nodes);
  return nodeset_union(&e->nodes, &s->capdeps) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_wait(struct stream *s, struct event *e, unsigned flags) {
  if (e->cap != NULL) {
    if (e->cap->graph == NULL) { // of a capture that has ended
      if (s->cap != NULL)
        capture_invalidate(s->cap);
      return captured_event(e);
    }
    if (s->legacy) {
      capture_invalidate(e->cap);
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (s->cap != NULL && s->cap != e->cap) {
      capture_invalidate(s->cap);
      capture_invalidate(e->cap);
      return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (e->cap->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (s->cap == NULL) {
      s->cap = e->cap;
      s->cap->refs++;
    }
    return nodeset_union(&s->capdeps, &e->nodes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (s->cap->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (flags & CU_EVENT_WAIT_EXTERNAL) {
    struct work w = {.kind = W_WAIT, .u.e = {.event = e, .serial = e->serial}};
    return capture_add(s, CU_GRAPH_NODE_TYPE_WAIT_EVENT, &w, NULL);
  }
  if (e->op == NULL)
    return CUDA_SUCCESS;
  capture_invalidate(s->cap);
  return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  ENTER(FN_cuThreadExchangeStreamCaptureMode);
  NEED(mode);
  int old = thread_capture_mode;
  thread_capture_mode = *mode;
  *mode = old;
  LEAVE(CUDA_SUCCESS);
}

static CUresult do_cuStreamBeginCapture_v2(enum fn_id fn, bool pt, CUstream stream, int mode) {
  ENTER(fn);
  NEED_STREAM(c, s, stream, pt);
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (s->legacy)
    LEAVE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (s->cap != NULL)
    LEAVE(CUDA_ERROR_ILLEGAL_STATE);
  struct capture *cap = calloc(1, sizeof *cap);
  struct graph *g = graph_new();
  if (cap == NULL || g == NULL) {
    free(cap);
    if (g != NULL)
      graph_free(g);
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  g->capturing = true;
  *cap = (struct capture){.refs = 1, .id = drv.next_capture_id++, .mode = mode, .thread = thread_token(),
                          .status = CU_STREAM_CAPTURE_STATUS_ACTIVE, .graph = g, .origin = s, .next = drv.captures};
  drv.captures = cap;
  s->cap = cap;
  LEAVE(CUDA_SUCCESS);
}
PAIR(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, int mode), (stream, mode))

struct joined {
  struct capture *cap;
  struct nodeset seen; // nodes that the origin stream comes after
  bool all;
};

static bool check_joined(struct obj *o, void *arg) {
  struct joined *j = arg;
  for (struct stream *s = ((struct context *)o)->streams; s != NULL; s = s->next) {
    if (s->cap != j->cap || s == j->cap->origin)
      continue;
    for (size_t i = 0; i < s->capdeps.n; i++) {
      bool found = false;
      for (size_t k = 0; k < j->seen.n && !found; k++)
        found = j->seen.v[k] == s->capdeps.v[i];
      j->all = j->all && found;
    }
  }
  return false;
}

// capture_joined says whether all that other streams captured is followed by
// something on the stream that began the capture.
static bool capture_joined(struct capture *c) {
  struct joined j = {.cap = c, .all = true};
  bool ok = nodeset_union(&j.seen, &c->origin->capdeps);
  // With one stream only there is nothing to check, and walking a long chain
  // with a set without an index would take its time.
  bool forked = false;
  for (struct stream *s = c->origin->ctx->streams; s != NULL; s = s->next)
    forked = forked || (s->cap == c && s != c->origin);
  if (forked) {
    for (size_t i = 0; i < j.seen.n && ok; i++)
      ok = nodeset_union(&j.seen, &j.seen.v[i]->deps);
    obj_sweep(K_CONTEXT, check_joined, &j, NULL);
  }
  nodeset_clear(&j.seen);
  return ok && j.all;
}

static CUresult do_cuStreamEndCapture(enum fn_id fn, bool pt, CUstream stream, CUgraph *graph) {
  ENTER(fn);
  NEED(graph);
  NEED_STREAM(c, s, stream, pt);
  struct capture *cap = s->cap;
  if (cap == NULL)
    LEAVE(CUDA_ERROR_ILLEGAL_STATE);
  if (cap->mode != CU_STREAM_CAPTURE_MODE_RELAXED && cap->thread != thread_token()) {
    graph_free(capture_end(cap)); // as measured, that was its end all the same
    LEAVE(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  }
  if (cap->origin != s) {
    capture_invalidate(cap);
    LEAVE(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  }
  CUresult r = CUDA_SUCCESS;
  if (cap->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  else if (!capture_joined(cap))
    r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  struct graph *g = capture_end(cap);
  *graph = (CUgraph)g;
  if (r != CUDA_SUCCESS) {
    graph_free(g);
    *graph = NULL;
  }
  LEAVE(r);
}
PAIR(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph), (stream, graph))

static CUresult do_cuStreamIsCapturing(enum fn_id fn, bool pt, CUstream stream, int *status) {
  ENTER(fn);
  NEED(status);
  NEED_STREAM(c, s, stream, pt);
  if (s->legacy) {
    CUresult r = capture_implicit(c, false);
    if (r != CUDA_SUCCESS)
      LEAVE(r);
  }
  *status = s->cap != NULL ? s->cap->status : CU_STREAM_CAPTURE_STATUS_NONE;
  LEAVE(CUDA_SUCCESS);
}
PAIR(cuStreamIsCapturing, _ptsz, (CUstream stream, int *status), (stream, status))

static CUresult capture_info(enum fn_id fn, bool pt, CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                             const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *ndeps) {
  ENTER(fn);
  NEED(status);
  NEED_STREAM(c, s, stream, pt);
  if (s->legacy) {
    CUresult r = capture_implicit(c, false);
    if (r != CUDA_SUCCESS)
      LEAVE(r);
  }
  *status = s->cap != NULL ? s->cap->status : CU_STREAM_CAPTURE_STATUS_NONE;
  if (*status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    if (id != NULL)
      *id = s->cap->id;
    if (graph != NULL)
      *graph = (CUgraph)s->cap->graph;
    if (deps != NULL)
      *deps = (const CUgraphNode *)s->capdeps.v;
    if (edges != NULL)
      *edges = NULL;
    if (ndeps != NULL)
      *ndeps = s->capdeps.n;
  }
  LEAVE(CUDA_SUCCESS);
}
static CUresult do_cuStreamGetCaptureInfo_v2(enum fn_id fn, bool pt, CUstream stream, int *status, uint64_t *id,
                                             CUgraph *graph, const CUgraphNode **deps, size_t *ndeps) {
  return capture_info(fn, pt, stream, status, id, graph, deps, NULL, ndeps);
}
PAIR(cuStreamGetCaptureInfo_v2, _ptsz,
     (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **deps, size_t *ndeps),
     (stream, status, id, graph, deps, ndeps))
static CUresult do_cuStreamGetCaptureInfo_v3(enum fn_id fn, bool pt, CUstream stream, int *status, uint64_t *id,
                                             CUgraph *graph, const CUgraphNode **deps, const CUgraphEdgeData **edges,
                                             size_t *ndeps) {
  return capture_info(fn, pt, stream, status, id, graph, deps, edges, ndeps);
}
PAIR(cuStreamGetCaptureInfo_v3, _ptsz,
     (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **deps, const CUgraphEdgeData **edges,
      size_t *ndeps),
     (stream, status, id, graph, deps, edges, ndeps))
