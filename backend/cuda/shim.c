// SPDX-License-Identifier: Apache-2.0
//go:build cgo

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// The driver's interface, as much of it as is used ---------------------------

enum {
  CAPTURE_NONE = 0,
  MODE_RELAXED = 2,
  STREAM_NON_BLOCKING = 1,
  MEM_ATTACH_GLOBAL = 1,
  RECORD_EXTERNAL = 1,
  EVENT_TIMING = 0,
  EVENT_NO_TIMING = 2,
  ATTR_SMS = 16,
  ATTR_INTEGRATED = 18,
  ATTR_MAJOR = 75,
  ATTR_MINOR = 76,
  JIT_ERROR_LOG = 5,
  JIT_ERROR_LOG_BYTES = 6,
  ERR_INVALID_VALUE = 1,
  ERR_OUT_OF_MEMORY = 2,
  ERR_INVALID_DEVICE = 101,
  ERR_INVALID_CONTEXT = 201,
  ERR_NOT_SUPPORTED = 801,
  ERR_CAPTURE_UNSUPPORTED = 900,
};

// CUDA_MEMCPY2D
typedef struct memcpy2d {
  size_t src_x, src_y;
  int src_type;
  const void *src_host;
  lt_devptr src_device;
  void *src_array;
  size_t src_pitch;
  size_t dst_x, dst_y;
  int dst_type;
  void *dst_host;
  lt_devptr dst_device;
  void *dst_array;
  size_t dst_pitch;
  size_t width, height;
} memcpy2d;
enum { MEMORY_DEVICE = 2 };

// Entry points without which nothing works, by exported name. Those with a
// per-thread variant are the plain ones: the zero stream is the legacy default.
#define REQUIRED(X)                                                                                                   \
  X(cuInit, (unsigned))                                                                                               \
  X(cuDriverGetVersion, (int *))                                                                                      \
  X(cuDeviceGetCount, (int *))                                                                                        \
  X(cuDeviceGet, (int *, int))                                                                                        \
  X(cuDeviceGetName, (char *, int, int))                                                                              \
  X(cuDeviceGetAttribute, (int *, int, int))                                                                          \
  X(cuDeviceTotalMem_v2, (size_t *, int))                                                                             \
  X(cuDevicePrimaryCtxRetain, (void **, int))                                                                         \
  X(cuDevicePrimaryCtxRelease_v2, (int))                                                                              \
  X(cuCtxGetCurrent, (void **))                                                                                       \
  X(cuCtxPushCurrent_v2, (void *))                                                                                    \
  X(cuCtxPopCurrent_v2, (void **))                                                                                    \
  X(cuStreamCreate, (lt_handle *, unsigned))                                                                          \
  X(cuStreamDestroy_v2, (lt_handle))                                                                                  \
  X(cuStreamSynchronize, (lt_handle))                                                                                 \
  X(cuStreamQuery, (lt_handle))                                                                                       \
  X(cuStreamWaitEvent, (lt_handle, lt_handle, unsigned))                                                              \
  X(cuStreamIsCapturing, (lt_handle, int *))                                                                          \
  X(cuStreamBeginCapture_v2, (lt_handle, int))                                                                        \
  X(cuStreamEndCapture, (lt_handle, lt_handle *))                                                                     \
  X(cuThreadExchangeStreamCaptureMode, (int *))                                                                       \
  X(cuEventCreate, (lt_handle *, unsigned))                                                                           \
  X(cuEventDestroy_v2, (lt_handle))                                                                                   \
  X(cuEventRecord, (lt_handle, lt_handle))                                                                            \
  X(cuEventQuery, (lt_handle))                                                                                        \
  X(cuEventSynchronize, (lt_handle))                                                                                  \
  X(cuEventElapsedTime, (float *, lt_handle, lt_handle))                                                              \
  X(cuModuleLoadDataEx, (lt_handle *, const void *, unsigned, int *, void **))                                        \
  X(cuModuleUnload, (lt_handle))                                                                                      \
  X(cuModuleGetFunction, (lt_handle *, lt_handle, const char *))                                                      \
  X(cuLaunchKernel, (lt_handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, lt_handle,      \
                     void **, void **))                                                                               \
  X(cuGraphInstantiateWithFlags, (lt_handle *, lt_handle, unsigned long long))                                        \
  X(cuGraphGetNodes, (lt_handle, lt_handle *, size_t *))                                                              \
  X(cuGraphLaunch, (lt_handle, lt_handle))                                                                            \
  X(cuGraphDestroy, (lt_handle))                                                                                      \
  X(cuGraphExecDestroy, (lt_handle))                                                                                  \
  X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                            \
  X(cuMemAlloc_v2, (lt_devptr *, size_t))                                                                             \
  X(cuMemFree_v2, (lt_devptr))                                                                                        \
  X(cuMemAllocHost_v2, (void **, size_t))                                                                             \
  X(cuMemFreeHost, (void *))                                                                                          \
  X(cuMemcpyHtoDAsync_v2, (lt_devptr, const void *, size_t, lt_handle))                                               \
  X(cuMemcpyDtoHAsync_v2, (void *, lt_devptr, size_t, lt_handle))                                                     \
  X(cuMemcpyDtoDAsync_v2, (lt_devptr, lt_devptr, size_t, lt_handle))                                                  \
  X(cuMemsetD8Async, (lt_devptr, unsigned char, size_t, lt_handle))

// Entry points that older drivers lack.
#define OPTIONAL(X)                                            \
  X(cuGetErrorName, (lt_result, const char **))                \
  X(cuDeviceGetUuid, (void *, int))                            \
  X(cuDeviceGetUuid_v2, (void *, int))                         \
  X(cuStreamGetId, (lt_handle, unsigned long long *))          \
  X(cuEventElapsedTime_v2, (float *, lt_handle, lt_handle))    \
  X(cuMemAllocManaged, (lt_devptr *, size_t, unsigned))        \
  X(cuMemcpy2DAsync_v2, (const memcpy2d *, lt_handle))         \
  X(cuMemHostGetDevicePointer_v2, (lt_devptr *, void *, unsigned)) \
  X(cuModuleGetGlobal_v2, (lt_devptr *, size_t *, lt_handle, const char *)) \
  X(cuEventRecordWithFlags, (lt_handle, lt_handle, unsigned))  \
  X(cuCtxSetCurrent, (void *))                                 \
  X(cuFuncGetParamInfo, (lt_handle, size_t, size_t *, size_t *))

struct lt_lib {
#define X(name, params) lt_result(*name) params;
  REQUIRED(X)
  OPTIONAL(X)
#undef X
  // The later of the two: it reads stamps and leaves the context's latest error
  // to others.
  lt_result (*elapsed)(float *, lt_handle, lt_handle);
};

lt_lib *lt_open(const char *path, char *message, size_t message_bytes, char *missing, size_t missing_bytes) {
  message[0] = missing[0] = '\0';
  // Local: whoever else links the driver finds their own.
  void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (so == NULL) {
    const char *why = dlerror();
    snprintf(message, message_bytes, "%s", why != NULL ? why : "unknown error");
    return NULL;
  }
  lt_lib *lib = calloc(1, sizeof *lib);
  if (lib == NULL) {
    snprintf(message, message_bytes, "%s", strerror(ENOMEM));
    return NULL;
  }
  const char *lacks = NULL;
  void *p;
#define X(name, params)                                             \
  p = dlsym(so, #name);                                             \
  if (p == NULL && lacks == NULL)                                   \
    lacks = #name;                                                  \
  memcpy(&lib->name, &p, sizeof p);
  REQUIRED(X)
#undef X
#define X(name, params) \
  p = dlsym(so, #name); \
  memcpy(&lib->name, &p, sizeof p);
  OPTIONAL(X)
#undef X
  if (lacks != NULL) {
    snprintf(missing, missing_bytes, "%s", lacks);
    snprintf(message, message_bytes, "it has no %s", lacks);
    free(lib);
    return NULL;
  }
  lib->elapsed = lib->cuEventElapsedTime_v2 != NULL ? lib->cuEventElapsedTime_v2 : lib->cuEventElapsedTime;
  return lib;
}

void lt_close(lt_lib *lib) { free(lib); }

int lt_features(const lt_lib *lib) {
  return (lib->cuStreamGetId != NULL ? LT_HAS_STREAM_ID : 0) | (lib->cuFuncGetParamInfo != NULL ? LT_HAS_PARAM_INFO : 0) |
         (lib->cuDeviceGetUuid_v2 != NULL || lib->cuDeviceGetUuid != NULL ? LT_HAS_UUID : 0) |
         (lib->cuEventElapsedTime_v2 != NULL ? LT_HAS_ELAPSED_V2 : 0);
}

const char *lt_error_name(const lt_lib *lib, lt_result r) {
  const char *name = NULL;
  if (lib->cuGetErrorName == NULL || lib->cuGetErrorName(r, &name) != 0)
    return NULL;
  return name;
}

// Binding --------------------------------------------------------------------

typedef struct bound {
  int pushed, relaxed, mode;
  int calls;
} bound;

static lt_result bind_(const lt_ctx *c, bound *b) {
  void *current = NULL;
  *b = (bound){.calls = 1};
  lt_result r = c->lib->cuCtxGetCurrent(&current);
  if (r != 0 || current == c->ctx)
    return r;
  b->calls++;
  r = c->lib->cuCtxPushCurrent_v2(c->ctx);
  b->pushed = r == 0;
  return r;
}

// explicit_ tells a stream's own handle from those that mean a default stream of
// the current context: null, legacy and per-thread.
static int explicit_(lt_handle s) { return s > 2; }

// bind_if binds only if it must. A call with a stream's own handle finds its
// context by it (driver 580: launches, records, capture status), and asking,
// pushing and popping on each would cost it half a microsecond. A driver that
// wants a context all the same answers ERR_INVALID_CONTEXT and has done nothing:
// then the caller comes again and must.
static lt_result bind_if(const lt_ctx *c, int must, bound *b) {
  if (must)
    return bind_(c, b);
  *b = (bound){0};
  return 0;
}

static lt_result bind_relaxed(const lt_ctx *c, bound *b) {
  lt_result r = bind_(c, b);
  if (r != 0)
    return r;
  b->calls++;
  b->mode = MODE_RELAXED;
  r = c->lib->cuThreadExchangeStreamCaptureMode(&b->mode);
  b->relaxed = r == 0;
  if (r != 0 && b->pushed) {
    void *was;
    c->lib->cuCtxPopCurrent_v2(&was);
    b->pushed = 0;
  }
  return r;
}

static void unbind(const lt_ctx *c, bound *b) {
  if (b->relaxed) {
    b->calls++;
    c->lib->cuThreadExchangeStreamCaptureMode(&b->mode);
  }
  if (b->pushed) {
    void *was;
    b->calls++;
    c->lib->cuCtxPopCurrent_v2(&was);
  }
}

// BOUND runs one call of the driver, BOUND_RELAXED one of telemetry's.
#define BOUND(c, call)          \
  do {                          \
    bound b_;                   \
    lt_result r_ = bind_(c, &b_); \
    if (r_ == 0) {              \
      r_ = (c)->lib->call;      \
      unbind(c, &b_);           \
    }                           \
    return r_;                  \
  } while (0)
#define BOUND_RELAXED(c, call)         \
  do {                                 \
    bound b_;                          \
    lt_result r_ = bind_relaxed(c, &b_); \
    if (r_ == 0) {                     \
      r_ = (c)->lib->call;             \
      unbind(c, &b_);                  \
    }                                  \
    return r_;                         \
  } while (0)

// A status that cannot be had counts as capturing.
static int capturing(const lt_ctx *c, lt_handle s) {
  int status = CAPTURE_NONE;
  return c->lib->cuStreamIsCapturing(s, &status) != 0 || status != CAPTURE_NONE;
}

// Device and context -----------------------------------------------------------

lt_result lt_init(const lt_lib *lib, int ordinal, lt_device *out, int *step) {
  memset(out, 0, sizeof *out);
  *step = LT_STEP_INIT;
  lt_result r = lib->cuInit(0);
  if (r != 0)
    return r;
  *step = LT_STEP_COUNT;
  int n = 0;
  r = lib->cuDeviceGetCount(&n);
  out->count = n;
  if (r != 0)
    return r;
  *step = LT_STEP_ORDINAL;
  if (ordinal < 0 || ordinal >= n)
    return ERR_INVALID_DEVICE;
  int dev = 0, major = 0, minor = 0, sms = 0, integrated = 0, version = 0;
  r = lib->cuDeviceGet(&dev, ordinal);
  if (r != 0)
    return r;
  *step = LT_STEP_DESCRIBE;
  size_t bytes = 0;
  if ((r = lib->cuDriverGetVersion(&version)) != 0 || (r = lib->cuDeviceGetName(out->name, sizeof out->name, dev)) != 0 ||
      (r = lib->cuDeviceGetAttribute(&major, ATTR_MAJOR, dev)) != 0 ||
      (r = lib->cuDeviceGetAttribute(&minor, ATTR_MINOR, dev)) != 0 ||
      (r = lib->cuDeviceGetAttribute(&integrated, ATTR_INTEGRATED, dev)) != 0 ||
      (r = lib->cuDeviceGetAttribute(&sms, ATTR_SMS, dev)) != 0 || (r = lib->cuDeviceTotalMem_v2(&bytes, dev)) != 0)
    return r;
  out->name[sizeof out->name - 1] = '\0';
  out->version = version;
  out->capability = major * 10 + minor;
  out->sms = sms;
  out->integrated = integrated;
  out->total_bytes = bytes;
  // The later entry point gives a MIG instance's own identity, the earlier the
  // whole GPU's: where they differ, this is an instance.
  uint8_t whole[16];
  int have_whole = lib->cuDeviceGetUuid != NULL && lib->cuDeviceGetUuid(whole, dev) == 0;
  int have = lib->cuDeviceGetUuid_v2 != NULL && lib->cuDeviceGetUuid_v2(out->uuid, dev) == 0;
  if (have_whole && have)
    out->mig = memcmp(whole, out->uuid, sizeof whole) != 0;
  else if (have_whole)
    memcpy(out->uuid, whole, sizeof whole);
  return 0;
}

lt_result lt_retain(const lt_lib *lib, int ordinal, lt_ctx **out) {
  lt_ctx *c = calloc(1, sizeof *c);
  if (c == NULL)
    return ERR_OUT_OF_MEMORY;
  c->lib = lib;
  lt_result r = lib->cuDeviceGet(&c->device, ordinal);
  if (r == 0)
    r = lib->cuDevicePrimaryCtxRetain(&c->ctx, c->device);
  if (r != 0) {
    free(c);
    return r;
  }
  *out = c;
  return 0;
}

lt_result lt_release(lt_ctx *c) {
  lt_result r = c->lib->cuDevicePrimaryCtxRelease_v2(c->device);
  free(c);
  return r;
}

lt_result lt_mem_info(lt_ctx *c, uint64_t *free_bytes, uint64_t *total_bytes) {
  bound b;
  lt_result r = bind_(c, &b);
  if (r != 0)
    return r;
  size_t f = 0, t = 0;
  r = c->lib->cuMemGetInfo_v2(&f, &t);
  unbind(c, &b);
  *free_bytes = f;
  *total_bytes = t;
  return r;
}

// Modules -------------------------------------------------------------------------

static lt_result load_image(const lt_ctx *c, const void *image, lt_handle *module, char *log, size_t log_bytes) {
  int options[2] = {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES};
  void *values[2] = {log, (void *)log_bytes};
  return c->lib->cuModuleLoadDataEx(module, image, log != NULL ? 2 : 0, log != NULL ? options : NULL,
                                    log != NULL ? values : NULL);
}

lt_result lt_module_load(lt_ctx *c, const void *image, lt_handle *module, char *log, size_t log_bytes) {
  bound b;
  lt_result r = bind_(c, &b);
  if (r != 0)
    return r;
  r = load_image(c, image, module, log, log_bytes);
  // A module belongs to the context that is current behind the load: none is a
  // driver that has lost it.
  void *current = NULL;
  if (r == 0 && (c->lib->cuCtxGetCurrent(&current) != 0 || current == NULL)) {
    c->lib->cuModuleUnload(*module);
    *module = 0;
    r = ERR_INVALID_CONTEXT;
  }
  unbind(c, &b);
  return r;
}

lt_result lt_module_unload(lt_ctx *c, lt_handle module) { BOUND(c, cuModuleUnload(module)); }

lt_result lt_function(lt_ctx *c, lt_handle module, const char *name, lt_handle *fn, uint32_t *sizes, int max, int *count) {
  *count = -1;
  bound b;
  lt_result r = bind_(c, &b);
  if (r != 0)
    return r;
  r = c->lib->cuModuleGetFunction(fn, module, name);
  if (r == 0 && c->lib->cuFuncGetParamInfo != NULL) {
    int n = 0;
    size_t offset, size;
    while (n < max && c->lib->cuFuncGetParamInfo(*fn, (size_t)n, &offset, &size) == 0)
      sizes[n++] = (uint32_t)size;
    *count = n;
  }
  unbind(c, &b);
  return r;
}

// Streams and events -----------------------------------------------------------------

lt_result lt_stream_create(lt_ctx *c, lt_handle *s) { BOUND(c, cuStreamCreate(s, STREAM_NON_BLOCKING)); }
lt_result lt_stream_destroy(lt_ctx *c, lt_handle s) { BOUND(c, cuStreamDestroy_v2(s)); }
lt_result lt_stream_sync(lt_ctx *c, lt_handle s) { BOUND(c, cuStreamSynchronize(s)); }
lt_result lt_stream_query(lt_ctx *c, lt_handle s) { BOUND(c, cuStreamQuery(s)); }
lt_result lt_stream_wait(lt_ctx *c, lt_handle s, lt_handle e) { BOUND(c, cuStreamWaitEvent(s, e, 0)); }

lt_result lt_stream_quiet(lt_ctx *c, lt_handle s) {
  bound b;
  lt_result r = bind_(c, &b);
  if (r != 0)
    return r;
  int status = CAPTURE_NONE;
  r = c->lib->cuStreamIsCapturing(s, &status);
  if (r == 0)
    r = status != CAPTURE_NONE ? LT_CAPTURING : c->lib->cuStreamQuery(s);
  unbind(c, &b);
  return r;
}

int lt_stream_capturing(lt_ctx *c, lt_handle s) {
  bound b;
  if (bind_(c, &b) != 0)
    return 1;
  int yes = capturing(c, s);
  unbind(c, &b);
  return yes;
}

lt_result lt_event_create(lt_ctx *c, lt_handle *e) { BOUND(c, cuEventCreate(e, EVENT_NO_TIMING)); }
lt_result lt_event_destroy(lt_ctx *c, lt_handle e) { BOUND(c, cuEventDestroy_v2(e)); }
lt_result lt_event_record(lt_ctx *c, lt_handle e, lt_handle s) { BOUND(c, cuEventRecord(e, s)); }
lt_result lt_event_query(lt_ctx *c, lt_handle e) { BOUND(c, cuEventQuery(e)); }
lt_result lt_event_sync(lt_ctx *c, lt_handle e) { BOUND(c, cuEventSynchronize(e)); }

// Captures ------------------------------------------------------------------------------

lt_result lt_capture_begin(lt_ctx *c, lt_handle s, int mode) { BOUND(c, cuStreamBeginCapture_v2(s, mode)); }

lt_result lt_capture_end(lt_ctx *c, lt_handle s, lt_handle *exec, uint64_t *nodes, int *step) {
  *step = LT_STEP_END;
  *exec = 0;
  bound b;
  lt_result r = bind_(c, &b);
  if (r != 0)
    return r;
  lt_handle graph = 0;
  size_t n = 0;
  r = c->lib->cuStreamEndCapture(s, &graph);
  if (r == 0) {
    *step = LT_STEP_NODES;
    r = c->lib->cuGraphGetNodes(graph, NULL, &n);
  }
  if (r == 0) {
    *step = LT_STEP_INSTANTIATE;
    r = c->lib->cuGraphInstantiateWithFlags(exec, graph, 0);
  }
  if (graph != 0)
    c->lib->cuGraphDestroy(graph);
  unbind(c, &b);
  *nodes = n;
  return r;
}

void lt_capture_abort(lt_ctx *c, lt_handle s) {
  bound b;
  if (bind_(c, &b) != 0)
    return;
  if (capturing(c, s)) {
    lt_handle graph = 0;
    c->lib->cuStreamEndCapture(s, &graph);
    if (graph != 0)
      c->lib->cuGraphDestroy(graph);
  }
  unbind(c, &b);
}

lt_result lt_graph_destroy(lt_ctx *c, lt_handle exec) { BOUND(c, cuGraphExecDestroy(exec)); }

// Launches --------------------------------------------------------------------------------

static lt_result launch(const lt_ctx *c, const lt_launch_desc *d, const void *args) {
  if (d->exec != 0)
    return c->lib->cuGraphLaunch(d->exec, d->stream);
  if (d->nargs > LT_MAX_ARGS)
    return ERR_INVALID_VALUE;
  void *params[LT_MAX_ARGS];
  for (uint32_t i = 0; i < d->nargs; i++) {
    switch (d->form) {
    case LT_FLAT: params[i] = (void *)&((const lt_flat *)args)->bytes[((const lt_flat *)args)->at[i]]; break;
    case LT_POINTERS: params[i] = (void *)((const uintptr_t *)args)[i]; break;
    default: params[i] = (void *)&((const lt_arg *)args)[i].bits;
    }
  }
  return c->lib->cuLaunchKernel(d->fn, d->grid[0], d->grid[1], d->grid[2], d->block[0], d->block[1], d->block[2],
                                d->shared_bytes, d->stream, d->nargs > 0 ? params : NULL, NULL);
}

lt_result lt_launch(lt_ctx *c, const lt_launch_desc *d, const void *args) {
  for (int must = !explicit_(d->stream);; must = 1) {
    bound b;
    lt_result r = bind_if(c, must, &b);
    if (r != 0)
      return r;
    r = launch(c, d, args);
    unbind(c, &b);
    if (must || r != ERR_INVALID_CONTEXT)
      return r;
  }
}

// launch_timed is lt_launch_timed in the context that is current. It reports
// whether the driver wanted one and nothing was launched.
static int launch_timed(const lt_ctx *c, const lt_launch_desc *d, const void *args, lt_handle start, lt_handle end,
                        lt_launch_result *out) {
  int status = CAPTURE_NONE;
  lt_result r = c->lib->cuStreamIsCapturing(d->stream, &status);
  out->calls = 1;
  if (r == ERR_INVALID_CONTEXT)
    return 1;
  if (r != 0 || status != CAPTURE_NONE) {
    out->capturing = 1;
    out->launch = launch(c, d, args);
    return out->launch == ERR_INVALID_CONTEXT;
  }
  out->calls++;
  out->start = c->lib->cuEventRecord(start, d->stream);
  if (out->start == ERR_INVALID_CONTEXT)
    return 1;
  out->start_recorded = out->start == 0;
  out->launch = launch(c, d, args);
  if (out->start_recorded && out->launch == 0) {
    float ms;
    out->calls += 2;
    out->end = c->lib->cuEventRecord(end, d->stream);
    out->end_recorded = out->end == 0;
    out->pending = c->lib->elapsed(&ms, start, start) == LT_NOT_READY;
  }
  return out->launch == ERR_INVALID_CONTEXT;
}

void lt_launch_timed(lt_ctx *c, const lt_launch_desc *d, const void *args, lt_handle start, lt_handle end,
                     lt_launch_result *out) {
  for (int must = !explicit_(d->stream);; must = 1) {
    bound b;
    memset(out, 0, sizeof *out);
    out->launch = bind_if(c, must, &b);
    if (out->launch != 0)
      return;
    int again = launch_timed(c, d, args, start, end, out);
    unbind(c, &b);
    if (must || !again)
      return;
  }
}

// Memory ------------------------------------------------------------------------------------

lt_result lt_alloc(lt_ctx *c, uint64_t bytes, lt_devptr *p) { BOUND(c, cuMemAlloc_v2(p, bytes)); }
lt_result lt_alloc_managed(lt_ctx *c, uint64_t bytes, lt_devptr *p) {
  if (c->lib->cuMemAllocManaged == NULL)
    return ERR_NOT_SUPPORTED;
  BOUND(c, cuMemAllocManaged(p, bytes, MEM_ATTACH_GLOBAL));
}
lt_result lt_free(lt_ctx *c, lt_devptr p) { BOUND(c, cuMemFree_v2(p)); }
lt_result lt_host_alloc(lt_ctx *c, size_t bytes, void **p) { BOUND_RELAXED(c, cuMemAllocHost_v2(p, bytes)); }
lt_result lt_host_free(lt_ctx *c, void *p) { BOUND_RELAXED(c, cuMemFreeHost(p)); }

// BLOCKING enqueues one call on s and, with block, waits for it. What is waited
// for may use the caller's memory, so nothing of the kind gets into a capture.
#define BLOCKING(c, s, block, call)               \
  do {                                            \
    bound b_;                                     \
    lt_result r_ = bind_(c, &b_);                 \
    if (r_ != 0)                                  \
      return r_;                                  \
    if ((block) && capturing(c, s)) {             \
      r_ = LT_CAPTURING;                          \
    } else {                                      \
      r_ = (c)->lib->call;                        \
      if ((block) && r_ == 0)                     \
        r_ = (c)->lib->cuStreamSynchronize(s);    \
    }                                             \
    unbind(c, &b_);                               \
    return r_;                                    \
  } while (0)

lt_result lt_copy_htod(lt_ctx *c, lt_devptr dst, const void *src, size_t bytes, lt_handle s) {
  BLOCKING(c, s, 1, cuMemcpyHtoDAsync_v2(dst, src, bytes, s));
}
lt_result lt_copy_dtoh(lt_ctx *c, void *dst, lt_devptr src, size_t bytes, lt_handle s) {
  BLOCKING(c, s, 1, cuMemcpyDtoHAsync_v2(dst, src, bytes, s));
}
lt_result lt_copy_dtod(lt_ctx *c, lt_devptr dst, lt_devptr src, size_t bytes, lt_handle s, int block) {
  BLOCKING(c, s, block, cuMemcpyDtoDAsync_v2(dst, src, bytes, s));
}
lt_result lt_memset(lt_ctx *c, lt_devptr p, uint8_t value, size_t bytes, lt_handle s, int block) {
  BLOCKING(c, s, block, cuMemsetD8Async(p, value, bytes, s));
}

lt_result lt_copy_htod_staged(lt_ctx *c, lt_devptr dst, const void *src, size_t bytes, lt_handle s, lt_handle done) {
  bound b;
  lt_result r = bind_(c, &b);
  if (r != 0)
    return r;
  if (capturing(c, s)) {
    r = LT_CAPTURING;
  } else {
    r = c->lib->cuMemcpyHtoDAsync_v2(dst, src, bytes, s);
    if (r == 0) {
      r = c->lib->cuEventRecord(done, s);
      // Without the event nobody would know when the staging memory is free.
      if (r != 0)
        c->lib->cuStreamSynchronize(s);
    }
  }
  unbind(c, &b);
  return r;
}

lt_result lt_copy_htod_captured(lt_ctx *c, lt_devptr dst, const void *src, size_t bytes, lt_handle s) {
  BOUND(c, cuMemcpyHtoDAsync_v2(dst, src, bytes, s));
}

// KEPT enqueues a copy whose host memory stays until the stream was waited for.
#define KEPT(c, s, captured, call)               \
  do {                                           \
    bound b_;                                    \
    lt_result r_ = bind_(c, &b_);                \
    if (r_ != 0)                                 \
      return r_;                                 \
    if (!(captured) && capturing(c, s))          \
      r_ = LT_CAPTURING;                         \
    else                                         \
      r_ = (c)->lib->call;                       \
    unbind(c, &b_);                              \
    return r_;                                   \
  } while (0)

lt_result lt_copy_htod_kept(lt_ctx *c, lt_devptr dst, const void *src, size_t bytes, lt_handle s, int captured) {
  KEPT(c, s, captured, cuMemcpyHtoDAsync_v2(dst, src, bytes, s));
}
lt_result lt_copy_dtoh_kept(lt_ctx *c, void *dst, lt_devptr src, size_t bytes, lt_handle s, int captured) {
  KEPT(c, s, captured, cuMemcpyDtoHAsync_v2(dst, src, bytes, s));
}

lt_result lt_copy_dtod_2d(lt_ctx *c, lt_devptr dst, size_t dst_pitch, lt_devptr src, size_t src_pitch, size_t width,
                          size_t height, lt_handle s) {
  if (c->lib->cuMemcpy2DAsync_v2 == NULL)
    return ERR_NOT_SUPPORTED;
  memcpy2d m = {
      .src_type = MEMORY_DEVICE, .src_device = src, .src_pitch = src_pitch,
      .dst_type = MEMORY_DEVICE, .dst_device = dst, .dst_pitch = dst_pitch, .width = width, .height = height,
  };
  BOUND(c, cuMemcpy2DAsync_v2(&m, s));
}

lt_result lt_host_device_ptr(lt_ctx *c, void *host, lt_devptr *p) {
  if (c->lib->cuMemHostGetDevicePointer_v2 == NULL)
    return ERR_NOT_SUPPORTED;
  BOUND(c, cuMemHostGetDevicePointer_v2(p, host, 0));
}

lt_result lt_bind(lt_ctx *c) {
  if (c->lib->cuCtxSetCurrent == NULL)
    return ERR_NOT_SUPPORTED;
  return c->lib->cuCtxSetCurrent(c->ctx);
}

lt_result lt_module_word(lt_ctx *c, lt_handle module, const char *name, uint32_t *value) {
  if (c->lib->cuModuleGetGlobal_v2 == NULL)
    return ERR_NOT_SUPPORTED;
  bound b;
  lt_result r = bind_relaxed(c, &b);
  if (r != 0)
    return r;
  lt_devptr p = 0;
  size_t bytes = 0;
  r = c->lib->cuModuleGetGlobal_v2(&p, &bytes, module, name);
  if (r == 0 && bytes != sizeof *value)
    r = ERR_INVALID_VALUE;
  lt_handle s = 0;
  if (r == 0)
    r = c->lib->cuStreamCreate(&s, STREAM_NON_BLOCKING);
  if (r == 0) {
    r = c->lib->cuMemcpyDtoHAsync_v2(value, p, sizeof *value, s);
    lt_result sync = c->lib->cuStreamSynchronize(s);
    if (r == 0)
      r = sync;
    c->lib->cuStreamDestroy_v2(s);
  }
  unbind(c, &b);
  return r;
}

lt_result lt_staged_wait(lt_ctx *c, lt_handle done, int block) {
  bound b;
  lt_result r = bind_relaxed(c, &b);
  if (r != 0)
    return r;
  r = block ? c->lib->cuEventSynchronize(done) : c->lib->cuEventQuery(done);
  unbind(c, &b);
  return r;
}

// Guard bands ----------------------------------------------------------------------------------

lt_result lt_band_fill(lt_ctx *c, lt_devptr p, uint8_t value, size_t bytes, lt_handle s, int wait) {
  bound b;
  lt_result r = bind_relaxed(c, &b);
  if (r != 0)
    return r;
  r = c->lib->cuMemsetD8Async(p, value, bytes, s);
  if (r == 0 && wait)
    r = c->lib->cuStreamSynchronize(s);
  unbind(c, &b);
  return r;
}

lt_result lt_band_read_all(lt_ctx *c, void *buffer, const lt_band_read *reads, size_t n, lt_handle s) {
  bound b;
  lt_result r = bind_relaxed(c, &b);
  if (r != 0)
    return r;
  for (size_t i = 0; i < n && r == 0; i++)
    r = c->lib->cuMemcpyDtoHAsync_v2((char *)buffer + reads[i].at, reads[i].addr, reads[i].bytes, s);
  // Also after a failure: what was enqueued writes to the buffer.
  lt_result sync = c->lib->cuStreamSynchronize(s);
  unbind(c, &b);
  return r != 0 ? r : sync;
}

lt_result lt_stream_settle(lt_ctx *c, lt_handle s) {
  bound b;
  lt_result r = bind_relaxed(c, &b);
  if (r != 0)
    return r;
  r = capturing(c, s) ? LT_CAPTURING : c->lib->cuStreamSynchronize(s);
  unbind(c, &b);
  return r;
}

// Telemetry -----------------------------------------------------------------------------------

lt_result lt_tel_events_create(lt_ctx *c, lt_handle *events, size_t n) {
  bound b;
  lt_result r = bind_relaxed(c, &b);
  if (r != 0)
    return r;
  for (size_t i = 0; i < n; i++) {
    r = c->lib->cuEventCreate(&events[i], EVENT_TIMING);
    if (r != 0) {
      while (i-- > 0) {
        c->lib->cuEventDestroy_v2(events[i]);
        events[i] = 0;
      }
      break;
    }
  }
  unbind(c, &b);
  return r;
}

lt_result lt_tel_events_destroy(lt_ctx *c, const lt_handle *events, size_t n) {
  bound b;
  lt_result first = bind_relaxed(c, &b);
  if (first != 0)
    return first;
  for (size_t i = 0; i < n; i++) {
    lt_result r = c->lib->cuEventDestroy_v2(events[i]);
    if (first == 0)
      first = r;
  }
  unbind(c, &b);
  return first;
}

lt_result lt_tel_stream_create(lt_ctx *c, lt_handle *s) { BOUND_RELAXED(c, cuStreamCreate(s, STREAM_NON_BLOCKING)); }
lt_result lt_tel_stream_destroy(lt_ctx *c, lt_handle s) { BOUND_RELAXED(c, cuStreamDestroy_v2(s)); }

lt_result lt_tel_stream_id(lt_ctx *c, lt_handle s, uint64_t *id) {
  if (c->lib->cuStreamGetId == NULL)
    return ERR_NOT_SUPPORTED;
  unsigned long long v = 0;
  bound b;
  lt_result r = bind_relaxed(c, &b);
  if (r != 0)
    return r;
  r = c->lib->cuStreamGetId(s, &v);
  unbind(c, &b);
  *id = v;
  return r;
}

lt_result lt_tel_record_external(lt_ctx *c, lt_handle e, lt_handle s) {
  if (c->lib->cuEventRecordWithFlags == NULL)
    return ERR_NOT_SUPPORTED;
  BOUND(c, cuEventRecordWithFlags(e, s, RECORD_EXTERNAL));
}

void lt_tel_record(lt_ctx *c, lt_handle e, lt_handle s, lt_recorded *out) {
  for (int must = !explicit_(s);; must = 1) {
    bound b;
    *out = (lt_recorded){0};
    if (bind_if(c, must, &b) != 0) {
      out->capturing = 1;
      out->calls = b.calls;
      return;
    }
    int status = CAPTURE_NONE, calls = 1;
    lt_result r = c->lib->cuStreamIsCapturing(s, &status);
    out->capturing = r != 0 || status != CAPTURE_NONE;
    if (!out->capturing) {
      calls++;
      r = out->result = c->lib->cuEventRecord(e, s);
    }
    unbind(c, &b);
    out->calls = b.calls + calls;
    if (must || r != ERR_INVALID_CONTEXT)
      return;
  }
}

void lt_tel_elapsed(lt_ctx *c, lt_handle anchor, const lt_pair *pairs, lt_times *out, size_t n, lt_elapsed_result *res) {
  bound b;
  *res = (lt_elapsed_result){0};
  res->result = bind_(c, &b);
  if (res->result != 0) {
    res->calls = b.calls;
    return;
  }
  int calls = 0;
  size_t i = 0;
  for (; i < n; i++) {
    calls++;
    res->result = c->lib->elapsed(&out[i].duration_ms, pairs[i].start, pairs[i].end);
    if (res->result != 0)
      break;
    out[i].since_anchor_ms = 0;
    out[i].since = 0;
    if (anchor != 0) {
      calls++;
      out[i].since = c->lib->elapsed(&out[i].since_anchor_ms, anchor, pairs[i].start);
    }
  }
  unbind(c, &b);
  res->n = (int32_t)i;
  res->calls = b.calls + calls;
}

lt_result lt_tel_pending(lt_ctx *c, lt_handle e) {
  float ms;
  BOUND(c, elapsed(&ms, e, e));
}
lt_result lt_tel_since(lt_ctx *c, lt_handle a, lt_handle b, float *ms) { BOUND(c, elapsed(ms, a, b)); }

static int64_t mono_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void lt_tel_anchor(lt_ctx *c, lt_handle e, lt_handle s, int64_t bound_ns, lt_anchor_try *out) {
  bound b;
  memset(out, 0, sizeof *out);
  out->result = bind_(c, &b);
  if (out->result != 0) {
    out->calls = b.calls;
    return;
  }
  int calls = 1;
  out->before_ns = mono_ns();
  out->result = c->lib->cuEventRecord(e, s);
  while (out->result == 0) {
    float ms;
    lt_result r = c->lib->elapsed(&ms, e, e);
    out->after_ns = mono_ns();
    calls++;
    if (r == 0)
      break;
    if (r != LT_NOT_READY || out->after_ns - out->before_ns >= bound_ns)
      out->result = r;
  }
  unbind(c, &b);
  out->calls = b.calls + calls;
}

// A kernel that keeps one thread busy for so many cycles of its multiprocessor's
// clock. Written by hand: any driver since CUDA 9 compiles it for any device.
static const char spin_ptx[] = ".version 6.0\n"
                               ".target sm_50\n"
                               ".address_size 64\n"
                               ".visible .entry lt_spin(.param .u64 cycles)\n"
                               "{\n"
                               "  .reg .pred %done;\n"
                               "  .reg .u64 %want, %begin, %now;\n"
                               "  ld.param.u64 %want, [cycles];\n"
                               "  mov.u64 %begin, %clock64;\n"
                               "again:\n"
                               "  mov.u64 %now, %clock64;\n"
                               "  sub.u64 %now, %now, %begin;\n"
                               "  setp.ge.u64 %done, %now, %want;\n"
                               "  @!%done bra again;\n"
                               "  ret;\n"
                               "}\n";

lt_result lt_tel_spin_load(lt_ctx *c, lt_handle *module, lt_handle *fn) {
  bound b;
  lt_result r = bind_relaxed(c, &b);
  if (r != 0)
    return r;
  r = load_image(c, spin_ptx, module, NULL, 0);
  if (r == 0) {
    r = c->lib->cuModuleGetFunction(fn, *module, "lt_spin");
    if (r != 0)
      c->lib->cuModuleUnload(*module);
  }
  unbind(c, &b);
  return r;
}

lt_result lt_tel_module_unload(lt_ctx *c, lt_handle module) { BOUND_RELAXED(c, cuModuleUnload(module)); }

lt_result lt_tel_spin(lt_ctx *c, lt_handle fn, lt_handle s, uint64_t cycles, lt_handle start, lt_handle end) {
  lt_launch_desc d = {.fn = fn, .stream = s, .grid = {1, 1, 1}, .block = {1, 1, 1}, .nargs = 1};
  lt_arg arg = {cycles, 8};
  bound b;
  lt_result r = bind_relaxed(c, &b);
  if (r != 0)
    return r;
  // Not into a graph: the kernel is ours alone.
  if (capturing(c, s))
    r = ERR_CAPTURE_UNSUPPORTED;
  if (r == 0 && start != 0)
    r = c->lib->cuEventRecord(start, s);
  if (r == 0)
    r = launch(c, &d, &arg);
  if (r == 0 && start != 0)
    r = c->lib->cuEventRecord(end, s);
  unbind(c, &b);
  return r;
}

// Fork ------------------------------------------------------------------------------------------

enum { MAX_GUARDED = 16 };

static struct guarded {
  int used, fd;
  dev_t dev;
  ino_t ino;
} guarded[MAX_GUARDED];
static pthread_mutex_t guard_lock = PTHREAD_MUTEX_INITIALIZER;

// Only what is safe between fork and exec: fstat and close. The number may have
// gone to another file since, which is then the child's to keep.
static void after_fork(void) {
  for (int i = 0; i < MAX_GUARDED; i++) {
    struct stat st;
    if (guarded[i].used && fstat(guarded[i].fd, &st) == 0 && st.st_dev == guarded[i].dev && st.st_ino == guarded[i].ino)
      close(guarded[i].fd);
    guarded[i].used = 0;
  }
  pthread_mutex_unlock(&guard_lock);
}
static void before_fork(void) { pthread_mutex_lock(&guard_lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&guard_lock); }

// stale: the number has gone to another file, or to none.
static int stale(const struct guarded *g) {
  struct stat st;
  return fstat(g->fd, &st) != 0 || st.st_dev != g->dev || st.st_ino != g->ino;
}

int lt_fork_guard(int fd) {
  static int registered;
  struct stat st;
  if (fstat(fd, &st) != 0)
    return errno;
  pthread_mutex_lock(&guard_lock);
  int err = registered ? 0 : pthread_atfork(before_fork, after_fork_parent, after_fork);
  registered = registered || err == 0;
  int at = -1;
  for (int i = 0; i < MAX_GUARDED && err == 0; i++) {
    if (guarded[i].used && guarded[i].fd != fd && stale(&guarded[i]))
      guarded[i].used = 0;
    if (guarded[i].used ? guarded[i].fd == fd : at < 0)
      at = i;
    if (guarded[i].used && guarded[i].fd == fd)
      break;
  }
  if (err == 0 && at < 0)
    err = ENOSPC;
  if (err == 0)
    guarded[at] = (struct guarded){1, fd, st.st_dev, st.st_ino};
  pthread_mutex_unlock(&guard_lock);
  return err;
}
