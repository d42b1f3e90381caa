// SPDX-License-Identifier: Apache-2.0
//
// Devices and contexts.

#include "internal.h"

static bool device_ok(CUdevice d) { return d >= 0 && d < drv.set.devices; }
#define NEED_DEVICE(d)                   \
  do {                                   \
    if (!device_ok(d))                   \
      LEAVE(CUDA_ERROR_INVALID_DEVICE);  \
  } while (0)

// Devices --------------------------------------------------------------------

EXPORT CUresult cuDeviceGet(CUdevice *dev, int ordinal) {
  ENTER(FN_cuDeviceGet);
  NEED(dev);
  NEED_DEVICE(ordinal);
  *dev = ordinal;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetCount(int *count) {
  ENTER(FN_cuDeviceGetCount);
  NEED(count);
  *count = drv.set.devices;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
  ENTER(FN_cuDeviceGetName);
  NEED(name);
  NEED_DEVICE(dev);
  if (len <= 0)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  snprintf(name, (size_t)len, "Stand-in H200");
  LEAVE(CUDA_SUCCESS);
}

static CUresult device_uuid(enum fn_id fn, CUuuid *uuid, CUdevice dev) {
  ENTER(fn);
  NEED(uuid);
  NEED_DEVICE(dev);
  static const unsigned char base[16] = {0x1a, 0x7e, 0x7a, 0xce, 0x5e, 0xed, 0x4d, 0x0c,
                                         0x9b, 0xad, 0xc0, 0xff, 0xee, 0x00, 0x00, 0x00};
  memcpy(uuid->bytes, base, sizeof base);
  uuid->bytes[15] = (char)dev;
  LEAVE(CUDA_SUCCESS);
}
EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) { return device_uuid(FN_cuDeviceGetUuid, uuid, dev); }
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) { return device_uuid(FN_cuDeviceGetUuid_v2, uuid, dev); }

EXPORT CUresult cuDeviceGetAttribute(int *value, int attrib, CUdevice dev) {
  ENTER(FN_cuDeviceGetAttribute);
  NEED(value);
  NEED_DEVICE(dev);
  if (attrib < 1 || attrib > 160)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  switch (attrib) {
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; break;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 2147483647; break;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 49152; break;
  case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
  case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
  case CU_DEVICE_ATTRIBUTE_INTEGRATED: *value = drv.set.integrated; break;
  case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
  case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
  case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
  case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
  case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
  case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
  case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
  case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = 0x10 + dev; break;
  case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 3201000; break;
  case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 6144; break;
  case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 62914560; break;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
  case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 3; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 233472; break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232448; break;
  default: *value = 0; break;
  }
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
  ENTER(FN_cuDeviceTotalMem_v2);
  NEED(bytes);
  NEED_DEVICE(dev);
  *bytes = drv.set.total_memory;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev) {
  ENTER(FN_cuDeviceGetPCIBusId);
  NEED(id);
  NEED_DEVICE(dev);
  if (len <= 0)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  snprintf(id, (size_t)len, "0000:%02X:00.0", 0x10u + (unsigned)dev);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *id) {
  ENTER(FN_cuDeviceGetByPCIBusId);
  NEED(dev);
  NEED(id);
  unsigned domain, bus, device, function;
  if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4 || domain != 0 || device != 0 || function != 0 ||
      bus < 0x10 || !device_ok((int)(bus - 0x10)))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  *dev = (int)(bus - 0x10);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer) {
  ENTER(FN_cuDeviceCanAccessPeer);
  NEED(can);
  NEED_DEVICE(dev);
  NEED_DEVICE(peer);
  *can = dev != peer;
  LEAVE(CUDA_SUCCESS);
}

// The current context of a thread ------------------------------------------------

// A context's handle may be given out again after its death, so the stack
// keeps the context's id beside it.
struct current {
  CUcontext handle;
  uint64_t id;
};
static _Thread_local struct current stack[64];
static _Thread_local int depth;

static struct context *context_get(CUcontext h) { return obj_get(h, K_CONTEXT); }

struct context *ctx_current(CUresult *r) {
  if (depth == 0) {
    *r = CUDA_ERROR_INVALID_CONTEXT;
    return NULL;
  }
  struct current *top = &stack[depth - 1];
  struct context *c = context_get(top->handle);
  if (c == NULL || c->id != top->id || c->destroying) {
    *r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return NULL;
  }
  if (drv.set.sticky != CUDA_SUCCESS) {
    *r = drv.set.sticky;
    return NULL;
  }
  *r = CUDA_SUCCESS;
  return c;
}

static CUresult push(struct context *c) {
  if (depth == (int)(sizeof stack / sizeof stack[0]))
    return CUDA_ERROR_INVALID_VALUE;
  stack[depth++] = (struct current){(CUcontext)c, c->id};
  return CUDA_SUCCESS;
}

// Making and ending contexts ---------------------------------------------------------

static struct context *context_new(int device, unsigned flags, bool primary) {
  struct context *c = obj_new(K_CONTEXT, sizeof *c);
  if (c == NULL)
    return NULL;
  c->id = drv.next_ctx_id++;
  c->device = device;
  c->flags = flags;
  c->primary = primary;
  heap_init(&c->heap, CHUNK_BYTES, device, false);
  heap_init(&c->managed, CHUNK_BYTES, -1, false);
  c->legacy = stream_new(c, CU_STREAM_DEFAULT, 0);
  uintptr_t base;
  // A real context has small allocations of its own, so the first 2 MiB range
  // is already there when the first request of a program comes.
  if (c->legacy == NULL || alloc_internal(c, CHUNK_BYTES / 4, &base) != CUDA_SUCCESS) {
    stream_detach_all(c);
    memory_drop_context(c);
    obj_free(c);
    return NULL;
  }
  c->legacy->legacy = true;
  return c;
}

// ctx_sync waits for what was enqueued before it, not for what other threads
// go on enqueuing meanwhile.
void ctx_sync(struct context *c) {
  size_t n = 0, i = 0;
  for (struct stream *s = c->streams; s != NULL; s = s->next)
    n += s->tail != NULL;
  if (n == 0)
    return;
  struct op **tails = calloc(n, sizeof *tails);
  if (tails == NULL)
    abort(); // a test machine out of memory; going on would free memory in use
  for (struct stream *s = c->streams; s != NULL; s = s->next)
    if (s->tail != NULL)
      tails[i++] = op_ref(s->tail);
  for (i = 0; i < n; i++) {
    op_wait(tails[i]);
    op_unref(tails[i]);
  }
  free(tails);
}

CUresult wait_result(void) { return drv.set.sticky; }

static void context_free(struct context *c) {
  c->destroying = true;
  for (struct stream *s = c->streams; s != NULL; s = s->next)
    s->stalled = false; // or this would never end
  streams_wake_all();
  ctx_sync(c);
  stream_detach_all(c);
  obj_sweep(K_EVENT, event_pick_ctx, c, event_drop);
  modules_drop_context(c);
  memory_drop_context(c);
  obj_free(c);
}

static CUresult context_create(enum fn_id fn, CUcontext *ctx, unsigned flags, CUdevice dev) {
  ENTER(fn);
  NEED(ctx);
  NEED_DEVICE(dev);
  struct context *c = context_new(dev, flags, false);
  if (c == NULL)
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  CUresult r = push(c);
  if (r != CUDA_SUCCESS) {
    context_free(c);
    LEAVE(r);
  }
  *ctx = (CUcontext)c;
  LEAVE(CUDA_SUCCESS);
}
EXPORT CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev) {
  return context_create(FN_cuCtxCreate_v2, ctx, flags, dev);
}
EXPORT CUresult cuCtxCreate_v3(CUcontext *ctx, void *affinity, int n, unsigned flags, CUdevice dev) {
  (void)affinity;
  (void)n;
  return context_create(FN_cuCtxCreate_v3, ctx, flags, dev);
}
EXPORT CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned flags, CUdevice dev) {
  (void)params;
  return context_create(FN_cuCtxCreate_v4, ctx, flags, dev);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx) {
  ENTER(FN_cuCtxDestroy_v2);
  struct context *c = context_get(ctx);
  if (c == NULL || c->destroying || c->primary)
    LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  if (depth > 0 && stack[depth - 1].handle == ctx && stack[depth - 1].id == c->id)
    depth--;
  context_free(c);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev) {
  ENTER(FN_cuDevicePrimaryCtxRetain);
  NEED(ctx);
  NEED_DEVICE(dev);
  struct device *d = &drv.dev[dev];
  if (d->primary == NULL) {
    d->primary = context_new(dev, d->primary_flags, true);
    if (d->primary == NULL)
      LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  d->retains++;
  *ctx = (CUcontext)d->primary;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  ENTER(FN_cuDevicePrimaryCtxRelease_v2);
  NEED_DEVICE(dev);
  struct device *d = &drv.dev[dev];
  if (d->retains == 0)
    LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  if (--d->retains == 0) {
    struct context *c = d->primary;
    d->primary = NULL;
    context_free(c);
  }
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  ENTER(FN_cuDevicePrimaryCtxReset_v2);
  NEED_DEVICE(dev);
  struct device *d = &drv.dev[dev];
  struct context *c = d->primary;
  d->primary = NULL;
  d->retains = 0;
  if (c != NULL)
    context_free(c);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned flags) {
  ENTER(FN_cuDevicePrimaryCtxSetFlags_v2);
  NEED_DEVICE(dev);
  drv.dev[dev].primary_flags = flags;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active) {
  ENTER(FN_cuDevicePrimaryCtxGetState);
  NEED(flags);
  NEED(active);
  NEED_DEVICE(dev);
  *flags = drv.dev[dev].primary_flags;
  *active = drv.dev[dev].primary != NULL;
  LEAVE(CUDA_SUCCESS);
}

// The current context ------------------------------------------------------------------

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx) {
  ENTER(FN_cuCtxSetCurrent);
  if (ctx == NULL) {
    if (depth > 0)
      depth--;
    LEAVE(CUDA_SUCCESS);
  }
  struct context *c = context_get(ctx);
  if (c == NULL || c->destroying)
    LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  if (depth == 0)
    LEAVE(push(c));
  stack[depth - 1] = (struct current){ctx, c->id};
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *ctx) {
  ENTER(FN_cuCtxGetCurrent);
  NEED(ctx);
  *ctx = depth > 0 ? stack[depth - 1].handle : NULL;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  ENTER(FN_cuCtxPushCurrent_v2);
  NEED(ctx);
  struct context *c = context_get(ctx);
  if (c == NULL || c->destroying)
    LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  LEAVE(push(c));
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *ctx) {
  ENTER(FN_cuCtxPopCurrent_v2);
  if (depth == 0)
    LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  depth--;
  if (ctx != NULL)
    *ctx = stack[depth].handle;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetDevice(CUdevice *dev) {
  ENTER(FN_cuCtxGetDevice);
  NEED(dev);
  NEED_CONTEXT(c);
  *dev = c->device;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags) {
  ENTER(FN_cuCtxGetFlags);
  NEED(flags);
  NEED_CONTEXT(c);
  *flags = c->flags;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id) {
  ENTER(FN_cuCtxGetId);
  NEED(id);
  struct context *c;
  if (ctx == NULL) {
    CUresult r;
    c = ctx_current(&r);
    if (c == NULL)
      LEAVE(r);
  } else {
    c = context_get(ctx);
    if (c == NULL)
      LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  }
  *id = c->id;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned *version) {
  ENTER(FN_cuCtxGetApiVersion);
  NEED(version);
  if (ctx != NULL && context_get(ctx) == NULL)
    LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  *version = 3020;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxSynchronize(void) {
  ENTER(FN_cuCtxSynchronize);
  NEED_CONTEXT(c);
  CUresult r = capture_conflict(c);
  if (r == CUDA_SUCCESS)
    r = capture_guard();
  if (r != CUDA_SUCCESS)
    LEAVE(r);
  ctx_sync(c);
  pools_trim();
  LEAVE(wait_result());
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER(FN_cuCtxGetStreamPriorityRange);
  NEED_CONTEXT(c);
  if (least != NULL)
    *least = 0;
  if (greatest != NULL)
    *greatest = -5;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetLimit(size_t *value, int limit) {
  ENTER(FN_cuCtxGetLimit);
  NEED(value);
  NEED_CONTEXT(c);
  static const size_t defaults[] = {1024, 6u << 20, 8u << 20, 2, 2048};
  if (limit < 0 || limit >= (int)(sizeof defaults / sizeof defaults[0]))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  *value = defaults[limit];
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
  ENTER(FN_cuCtxSetLimit);
  (void)value;
  NEED_CONTEXT(c);
  LEAVE(limit < 0 || limit > 4 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  ENTER(FN_cuCtxEnablePeerAccess);
  NEED_CONTEXT(c);
  struct context *p = context_get(peer);
  if (p == NULL || p->device == c->device)
    LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  if (flags != 0)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  uint32_t bit = 1u << p->device;
  if (c->peers & bit)
    LEAVE(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  c->peers |= bit;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  ENTER(FN_cuCtxDisablePeerAccess);
  NEED_CONTEXT(c);
  struct context *p = context_get(peer);
  if (p == NULL)
    LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  uint32_t bit = 1u << p->device;
  if (!(c->peers & bit))
    LEAVE(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  c->peers &= ~bit;
  LEAVE(CUDA_SUCCESS);
}
