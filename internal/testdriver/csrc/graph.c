// SPDX-License-Identifier: Apache-2.0
//
// Graphs, executable graphs and their replays.

#include "graph.h"

struct exec_node {
  int type;
  struct work w;
  size_t *deps, ndeps;
  CUgraphNode src;
};

// What was instantiated. Replays in flight keep it alive after its handle.
struct exec {
  unsigned refs;
  uint64_t flags;
  struct exec_node *v;
  size_t n;
  int64_t *ends;   // scratch of the replay that runs; replays exclude each other
  struct op *last; // the newest replay
};

struct exec_handle {
  struct obj o;
  struct exec *e;
};

// Sets of nodes --------------------------------------------------------------------

bool nodeset_add(struct nodeset *set, struct node *n) {
  for (size_t i = 0; i < set->n; i++)
    if (set->v[i] == n)
      return true;
  if (set->n == set->cap) {
    size_t cap = set->cap == 0 ? 4 : 2 * set->cap;
    struct node **v = realloc(set->v, cap * sizeof(struct node *));
    if (v == NULL)
      return false;
    set->v = v;
    set->cap = cap;
  }
  set->v[set->n++] = n;
  return true;
}

void nodeset_clear(struct nodeset *set) {
  free(set->v);
  *set = (struct nodeset){0};
}

bool nodeset_union(struct nodeset *to, const struct nodeset *from) {
  for (size_t i = 0; i < from->n; i++)
    if (!nodeset_add(to, from->v[i]))
      return false;
  return true;
}

// Graphs ------------------------------------------------------------------------------

struct graph *graph_new(void) { return obj_new(K_GRAPH, sizeof(struct graph)); }

void graph_free(struct graph *g) {
  for (size_t i = 0; i < g->nodes.n; i++) {
    struct node *n = g->nodes.v[i];
    work_clear(&n->w);
    nodeset_clear(&n->deps);
    free(n->params);
    obj_free(n);
  }
  nodeset_clear(&g->nodes);
  obj_free(g);
}

struct node *node_new(struct graph *g, int type, struct work *w, const struct nodeset *deps) {
  struct node *n = obj_new(K_NODE, sizeof *n);
  if (n == NULL)
    return NULL;
  n->graph = g;
  n->type = type;
  // nodeset_add looks for duplicates, which a graph of thousands need not pay.
  struct nodeset *all = &g->nodes;
  if (all->n == all->cap) {
    size_t cap = all->cap == 0 ? 16 : 2 * all->cap;
    struct node **v = realloc(all->v, cap * sizeof(struct node *));
    if (v == NULL) {
      obj_free(n);
      return NULL;
    }
    all->v = v;
    all->cap = cap;
  }
  if (!nodeset_union(&n->deps, deps)) {
    nodeset_clear(&n->deps);
    obj_free(n);
    return NULL;
  }
  all->v[all->n++] = n;
  if (w != NULL) {
    n->w = *w;
    n->w.dur_ns = -1; // asked for at each replay
    memset(w, 0, sizeof *w);
  }
  return n;
}

int work_node_type(const struct work *w) {
  switch (w->kind) {
  case W_KERNEL: return CU_GRAPH_NODE_TYPE_KERNEL;
  case W_COPY: return CU_GRAPH_NODE_TYPE_MEMCPY;
  case W_SET: return CU_GRAPH_NODE_TYPE_MEMSET;
  case W_HOST: return CU_GRAPH_NODE_TYPE_HOST;
  case W_RECORD: return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  case W_WAIT: return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
  case W_ALLOC: return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  default: return CU_GRAPH_NODE_TYPE_EMPTY;
  }
}

// Graphs by hand -------------------------------------------------------------------------------

#define NEED_GRAPH(g, h)                    \
  struct graph *g = obj_get(h, K_GRAPH);    \
  if (g == NULL)                            \
  LEAVE(CUDA_ERROR_INVALID_VALUE)
#define NEED_NODE(n, h)                     \
  struct node *n = obj_get(h, K_NODE);      \
  if (n == NULL)                            \
  LEAVE(CUDA_ERROR_INVALID_VALUE)

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
  ENTER(FN_cuGraphCreate);
  NEED(graph);
  if (flags != 0)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  struct graph *g = graph_new();
  if (g == NULL)
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  *graph = (CUgraph)g;
  LEAVE(CUDA_SUCCESS);
}

static size_t node_index(const struct graph *g, const struct node *n) {
  for (size_t i = 0; i < g->nodes.n; i++)
    if (g->nodes.v[i] == n)
      return i;
  return SIZE_MAX;
}

EXPORT CUresult cuGraphClone(CUgraph *clone, CUgraph original) {
  ENTER(FN_cuGraphClone);
  NEED(clone);
  NEED_GRAPH(g, original);
  struct graph *to = graph_new();
  bool ok = to != NULL;
  for (size_t i = 0; i < g->nodes.n && ok; i++) {
    const struct node *n = g->nodes.v[i];
    struct nodeset deps = {0};
    struct work w;
    for (size_t k = 0; k < n->deps.n && ok; k++)
      ok = nodeset_add(&deps, to->nodes.v[node_index(g, n->deps.v[k])]);
    ok = ok && work_copy(&w, &n->w);
    if (ok && node_new(to, n->type, &w, &deps) == NULL) {
      work_clear(&w);
      ok = false;
    }
    nodeset_clear(&deps);
  }
  if (!ok) {
    if (to != NULL)
      graph_free(to);
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *clone = (CUgraph)to;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  ENTER(FN_cuGraphDestroy);
  NEED_GRAPH(g, graph);
  if (g->capturing)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  graph_free(g);
  LEAVE(CUDA_SUCCESS);
}

static CUresult add_node(struct graph *g, int type, struct work *w, const CUgraphNode *deps, size_t n, CUgraphNode *out) {
  struct nodeset set = {0};
  CUresult r = n > 0 && deps == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  for (size_t i = 0; i < n && r == CUDA_SUCCESS; i++) {
    struct node *d = obj_get(deps[i], K_NODE);
    if (d == NULL || d->graph != g)
      r = CUDA_ERROR_INVALID_VALUE;
    else if (!nodeset_add(&set, d))
      r = CUDA_ERROR_OUT_OF_MEMORY;
  }
  struct node *made = r == CUDA_SUCCESS ? node_new(g, type, w, &set) : NULL;
  nodeset_clear(&set);
  if (made == NULL) {
    if (w != NULL)
      work_clear(w);
    return r != CUDA_SUCCESS ? r : CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = (CUgraphNode)made;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n) {
  ENTER(FN_cuGraphAddEmptyNode);
  NEED(node);
  NEED_GRAPH(g, graph);
  LEAVE(add_node(g, CU_GRAPH_NODE_TYPE_EMPTY, NULL, deps, n, node));
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n,
                                        const CUDA_KERNEL_NODE_PARAMS *p) {
  ENTER(FN_cuGraphAddKernelNode_v2);
  NEED(node);
  NEED(p);
  NEED_CONTEXT(c);
  NEED_GRAPH(g, graph);
  struct work w;
  CUresult r = kernel_work(c, p->func != NULL ? p->func : (CUfunction)p->kern,
                           (unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ},
                           (unsigned[]){p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes, p->kernelParams,
                           p->extra, &w);
  LEAVE(r != CUDA_SUCCESS ? r : add_node(g, CU_GRAPH_NODE_TYPE_KERNEL, &w, deps, n, node));
}

static CUresult add_event_node(enum fn_id fn, enum work_kind kind, CUgraphNode *node, CUgraph graph,
                               const CUgraphNode *deps, size_t n, CUevent event) {
  ENTER(fn);
  NEED(node);
  NEED_GRAPH(g, graph);
  struct event *e = obj_get(event, K_EVENT);
  if (e == NULL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  struct work w = {.kind = kind, .u.e = {.event = e, .serial = e->serial}};
  LEAVE(add_node(g, work_node_type(&w), &w, deps, n, node));
}
EXPORT CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n, CUevent e) {
  return add_event_node(FN_cuGraphAddEventRecordNode, W_RECORD, node, graph, deps, n, e);
}
EXPORT CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n, CUevent e) {
  return add_event_node(FN_cuGraphAddEventWaitNode, W_WAIT, node, graph, deps, n, e);
}

// give_nodes answers the driver's two-step questions: how many without an
// array, and up to *n of them with one.
static void give_nodes(const struct nodeset *set, CUgraphNode *nodes, size_t *n) {
  if (nodes != NULL) {
    for (size_t i = 0; i < *n; i++)
      nodes[i] = i < set->n ? (CUgraphNode)set->v[i] : NULL;
    if (*n < set->n)
      return;
  }
  *n = set->n;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n) {
  ENTER(FN_cuGraphGetNodes);
  NEED(n);
  NEED_GRAPH(g, graph);
  give_nodes(&g->nodes, nodes, n);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *n) {
  ENTER(FN_cuGraphGetRootNodes);
  NEED(n);
  NEED_GRAPH(g, graph);
  struct nodeset roots = {0};
  bool ok = true;
  for (size_t i = 0; i < g->nodes.n; i++)
    if (g->nodes.v[i]->deps.n == 0)
      ok = ok && nodeset_add(&roots, g->nodes.v[i]);
  give_nodes(&roots, nodes, n);
  nodeset_clear(&roots);
  LEAVE(ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult get_edges(enum fn_id fn, CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *n) {
  ENTER(fn);
  NEED(n);
  NEED_GRAPH(g, graph);
  if ((from == NULL) != (to == NULL))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  size_t k = 0;
  for (size_t i = 0; i < g->nodes.n; i++) {
    const struct node *node = g->nodes.v[i];
    for (size_t d = 0; d < node->deps.n; d++, k++) {
      if (from == NULL || k >= *n)
        continue;
      from[k] = (CUgraphNode)node->deps.v[d];
      to[k] = (CUgraphNode)node;
      if (data != NULL)
        memset(&data[k], 0, sizeof data[k]);
    }
  }
  if (from == NULL || k < *n)
    *n = k;
  LEAVE(CUDA_SUCCESS);
}
EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *n) {
  return get_edges(FN_cuGraphGetEdges, graph, from, to, NULL, n);
}
EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *n) {
  return get_edges(FN_cuGraphGetEdges_v2, graph, from, to, data, n);
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
  ENTER(FN_cuGraphNodeGetType);
  NEED(type);
  NEED_NODE(n, node);
  *type = n->type;
  LEAVE(CUDA_SUCCESS);
}

static CUresult get_deps(enum fn_id fn, CUgraphNode node, CUgraphNode *deps, CUgraphEdgeData *data, size_t *count) {
  ENTER(fn);
  NEED(count);
  NEED_NODE(n, node);
  give_nodes(&n->deps, deps, count);
  if (data != NULL)
    memset(data, 0, *count * sizeof *data);
  LEAVE(CUDA_SUCCESS);
}
EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *deps, size_t *n) {
  return get_deps(FN_cuGraphNodeGetDependencies, node, deps, NULL, n);
}
EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *deps, CUgraphEdgeData *data, size_t *n) {
  return get_deps(FN_cuGraphNodeGetDependencies_v2, node, deps, data, n);
}

EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *p) {
  ENTER(FN_cuGraphKernelNodeGetParams_v2);
  NEED(p);
  NEED_NODE(n, node);
  if (n->type != CU_GRAPH_NODE_TYPE_KERNEL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  const struct fninfo *f = n->w.u.k.info;
  if (n->params == NULL) {
    n->params = calloc(f->nparams + 1, sizeof *n->params);
    if (n->params == NULL)
      LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
    for (size_t i = 0; i < f->nparams; i++)
      n->params[i] = n->w.u.k.blob + f->offset[i];
  }
  const unsigned *g = n->w.u.k.grid, *b = n->w.u.k.block;
  *p = (CUDA_KERNEL_NODE_PARAMS){.func = n->w.u.k.handle, .gridDimX = g[0], .gridDimY = g[1], .gridDimZ = g[2],
                                 .blockDimX = b[0], .blockDimY = b[1], .blockDimZ = b[2],
                                 .sharedMemBytes = n->w.u.k.shared, .kernelParams = n->params};
  LEAVE(CUDA_SUCCESS);
}

static CUresult node_event(enum fn_id fn, int type, CUgraphNode node, CUevent *event) {
  ENTER(fn);
  NEED(event);
  NEED_NODE(n, node);
  if (n->type != type)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  *event = (CUevent)n->w.u.e.event;
  LEAVE(CUDA_SUCCESS);
}
EXPORT CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event) {
  return node_event(FN_cuGraphEventRecordNodeGetEvent, CU_GRAPH_NODE_TYPE_EVENT_RECORD, node, event);
}
EXPORT CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *event) {
  return node_event(FN_cuGraphEventWaitNodeGetEvent, CU_GRAPH_NODE_TYPE_WAIT_EVENT, node, event);
}

EXPORT CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  ENTER(FN_cuGraphEventRecordNodeSetEvent);
  NEED_NODE(n, node);
  struct event *e = obj_get(event, K_EVENT);
  if (n->type != CU_GRAPH_NODE_TYPE_EVENT_RECORD || e == NULL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  n->w.u.e.event = e;
  n->w.u.e.serial = e->serial;
  LEAVE(CUDA_SUCCESS);
}

// Executable graphs --------------------------------------------------------------------------------

void exec_unref(struct exec *e) {
  if (e == NULL || --e->refs > 0)
    return;
  for (size_t i = 0; i < e->n; i++) {
    work_clear(&e->v[i].w);
    free(e->v[i].deps);
  }
  free(e->v);
  free(e->ends);
  free(e);
}

static struct exec_node *exec_add(struct exec *e, int type, CUgraphNode src, const struct work *w, size_t ndeps) {
  if ((e->n & (e->n - 1)) == 0) { // full at powers of two
    size_t cap = e->n == 0 ? 1 : 2 * e->n;
    struct exec_node *v = realloc(e->v, cap * sizeof *v);
    if (v == NULL)
      return NULL;
    e->v = v;
  }
  struct exec_node n = {.type = type, .src = src, .deps = calloc(ndeps + 1, sizeof(size_t)), .ndeps = ndeps};
  if (n.deps == NULL || !work_copy(&n.w, w)) {
    free(n.deps);
    return NULL;
  }
  n.w.dur_ns = -1;
  e->v[e->n] = n;
  return &e->v[e->n++];
}

static struct exec *exec_new(struct graph *g) {
  struct exec *e = calloc(1, sizeof *e);
  bool ok = e != NULL;
  if (e != NULL)
    e->refs = 1;
  for (size_t i = 0; i < g->nodes.n && ok; i++) {
    struct node *n = g->nodes.v[i];
    struct exec_node *made = exec_add(e, n->type, (CUgraphNode)n, &n->w, n->deps.n);
    ok = made != NULL;
    for (size_t k = 0; k < n->deps.n && ok; k++) {
      // Dependencies are near: look backwards from here.
      size_t j = i;
      while (j > 0 && g->nodes.v[j - 1] != n->deps.v[k])
        j--;
      made->deps[k] = j - 1;
    }
  }
  if (ok) {
    e->ends = calloc(e->n + 1, sizeof *e->ends);
    ok = e->ends != NULL;
  }
  if (!ok) {
    exec_unref(e);
    return NULL;
  }
  return e;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, uint64_t flags) {
  struct graph *g = obj_get(graph, K_GRAPH);
  if (exec == NULL || g == NULL || g->capturing)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult r = capture_guard();
  if (r != CUDA_SUCCESS)
    return r;
  struct exec_handle *h = obj_new(K_EXEC, sizeof *h);
  struct exec *e = h != NULL ? exec_new(g) : NULL;
  if (e == NULL) {
    if (h != NULL)
      obj_free(h);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  e->flags = flags;
  h->e = e;
  *exec = (CUgraphExec)h;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  ENTER(FN_cuGraphInstantiateWithFlags);
  NEED_CONTEXT(c);
  LEAVE(instantiate(exec, graph, flags));
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *errorNode, char *log, size_t logSize) {
  ENTER(FN_cuGraphInstantiate_v2);
  NEED_CONTEXT(c);
  if (errorNode != NULL)
    *errorNode = NULL;
  if (log != NULL && logSize > 0)
    *log = '\0';
  LEAVE(instantiate(exec, graph, 0));
}

static CUresult do_cuGraphInstantiateWithParams(enum fn_id fn, bool pt, CUgraphExec *exec, CUgraph graph,
                                                CUDA_GRAPH_INSTANTIATE_PARAMS *p) {
  ENTER(fn);
  (void)pt; // uploading takes no time here, so its stream does not matter
  NEED(p);
  NEED_CONTEXT(c);
  CUresult r = instantiate(exec, graph, p->flags);
  p->hErrNode_out = NULL;
  p->result_out = r != CUDA_SUCCESS;
  LEAVE(r);
}
PAIR(cuGraphInstantiateWithParams, _ptsz, (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p),
     (exec, graph, p))

#define NEED_EXEC(h, handle)                          \
  struct exec_handle *h = obj_get(handle, K_EXEC);    \
  if (h == NULL)                                      \
  LEAVE(CUDA_ERROR_INVALID_VALUE)

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
  ENTER(FN_cuGraphExecDestroy);
  NEED_EXEC(h, exec);
  struct exec *e = h->e;
  obj_free(h);
  op_unref(e->last);
  e->last = NULL;
  exec_unref(e);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags) {
  ENTER(FN_cuGraphExecGetFlags);
  NEED(flags);
  NEED_EXEC(h, exec);
  *flags = h->e->flags;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  ENTER(FN_cuGraphExecEventRecordNodeSetEvent);
  NEED_EXEC(h, exec);
  struct event *ev = obj_get(event, K_EVENT);
  if (ev == NULL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  for (size_t i = 0; i < h->e->n; i++) {
    struct exec_node *n = &h->e->v[i];
    if (n->src != node || n->type != CU_GRAPH_NODE_TYPE_EVENT_RECORD)
      continue;
    n->w.u.e.event = ev;
    n->w.u.e.serial = ev->serial;
    n->w.u.e.swaps++;
    LEAVE(CUDA_SUCCESS);
  }
  LEAVE(CUDA_ERROR_INVALID_VALUE);
}

static CUresult do_cuGraphUpload(enum fn_id fn, bool pt, CUgraphExec exec, CUstream stream) {
  ENTER(fn);
  NEED_STREAM(c, s, stream, pt);
  (void)s;
  NEED_EXEC(h, exec);
  (void)h;
  LEAVE(CUDA_SUCCESS);
}
PAIR(cuGraphUpload, _ptsz, (CUgraphExec exec, CUstream stream), (exec, stream))

// node_live_event is the event that a record or wait node means, unless it
// has been destroyed (and perhaps another been given its address).
static struct event *node_live_event(const struct exec_node *n) {
  struct event *e = obj_get(n->w.u.e.event, K_EVENT);
  return e != NULL && e->serial == n->w.u.e.serial ? e : NULL;
}

// attach_events gives every event that this replay records a new, pending
// record: from the launch call on, the last replay's stamps are gone.
static bool attach_events(struct exec *e, struct op *op, struct op **recs) {
  size_t k = 0;
  for (size_t i = 0; i < e->n; i++) {
    struct exec_node *n = &e->v[i];
    if (n->w.kind == W_WAIT) {
      struct event *ev = node_live_event(n);
      if (ev != NULL && !op_depend(op, ev->op))
        return false;
    }
    if (n->w.kind != W_RECORD)
      continue;
    struct op *rec = op_new();
    if (rec == NULL)
      return false;
    recs[k++] = rec;
    struct event *ev = node_live_event(n);
    if (ev == NULL)
      continue;
    rec->timed = !(ev->flags & CU_EVENT_DISABLE_TIMING);
    rec->nostamp = drv.set.swap_limit >= 0 && n->w.u.e.swaps > drv.set.swap_limit;
    op_unref(ev->op);
    ev->op = op_ref(rec);
    capture_unref(ev->cap);
    ev->cap = NULL;
  }
  return true;
}

static CUresult do_cuGraphLaunch(enum fn_id fn, bool pt, CUgraphExec exec, CUstream stream) {
  ENTER(fn);
  NEED_STREAM(c, s, stream, pt);
  NEED_EXEC(h, exec);
  if (s->cap != NULL) {
    capture_invalidate(s->cap);
    LEAVE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  struct exec *e = h->e;
  log_line(fn, s, " exec=%p nodes=%zu", (void *)exec, e->n);
  size_t nrecs = 0;
  for (size_t i = 0; i < e->n; i++)
    nrecs += e->v[i].w.kind == W_RECORD;
  struct work w = {.kind = W_GRAPH, .u.g = {.exec = e}};
  e->refs++;
  w.u.g.recs = calloc(nrecs + 1, sizeof(struct op *));
  if (w.u.g.recs == NULL) {
    work_clear(&w);
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  struct op **recs = w.u.g.recs, *op;
  CUresult r = submit(s, &w, &op);
  if (r != CUDA_SUCCESS)
    LEAVE(r);
  // Replays of one graph happen one after the other.
  if (!op_depend(op, e->last) || !attach_events(e, op, recs))
    abort(); // half a launch is queued; only a test machine out of memory gets here
  op_unref(e->last);
  e->last = op;
  LEAVE(CUDA_SUCCESS);
}
PAIR(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream stream), (exec, stream))

// exec_run replays a graph on its stream's worker, which holds the lock, and
// returns when it ended. Branches overlap in virtual time; they are completed
// in the order in which they were captured.
int64_t exec_run(struct stream *s, struct op *op, int64_t start) {
  struct exec *e = op->w.u.g.exec;
  struct op **recs = op->w.u.g.recs;
  int64_t end = start;
  for (size_t i = 0; i < e->n; i++) {
    struct exec_node *n = &e->v[i];
    int64_t at = start;
    bool after_record = false;
    for (size_t k = 0; k < n->ndeps; k++) {
      if (e->ends[n->deps[k]] > at)
        at = e->ends[n->deps[k]];
      after_record = after_record || e->v[n->deps[k]].w.kind == W_RECORD;
    }
    if (n->w.kind == W_KERNEL && after_record)
      at += drv.set.after_record_ns;
    if (n->w.kind == W_RECORD) {
      struct op *rec = *recs++;
      struct work mark = {.kind = W_RECORD, .dur_ns = rec->timed ? drv.set.record_ns : 0};
      e->ends[i] = stream_do(s, &mark, at);
      rec->end_ns = e->ends[i];
      if (rec->timed)
        rec->stamp_ns = gpu_stamp_ns(rec->end_ns);
      op_complete(rec);
    } else {
      e->ends[i] = stream_do(s, &n->w, at);
    }
    if (e->ends[i] > end)
      end = e->ends[i];
  }
  return end;
}
