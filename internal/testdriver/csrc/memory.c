// SPDX-License-Identifier: Apache-2.0
//
// Device memory: host memory, packed as the driver was seen to pack its own.
//
// A heap hands out 2 MiB ranges. Requests under 2 MiB share them, first fit,
// in units of 512 bytes (so 1,000-byte requests lie 1,024 apart); larger ones
// get ranges of their own, rounded up to 2 MiB. cuMemGetInfo counts ranges,
// not requests. Pages are only touched when a kernel or copy touches them, so
// a test may allocate a whole H200.

#include "internal.h"

#include <sys/mman.h>

// Ranges of address space ------------------------------------------------------

uintptr_t map_aligned(size_t bytes, size_t align, int prot) {
  char *p = mmap(NULL, bytes + align, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return 0;
  uintptr_t at = ((uintptr_t)p + align - 1) & ~(uintptr_t)(align - 1);
  if (at > (uintptr_t)p)
    munmap(p, at - (uintptr_t)p);
  uintptr_t end = (uintptr_t)p + bytes + align;
  if (end > at + bytes)
    munmap((void *)(at + bytes), end - at - bytes);
  return at;
}

// Heaps --------------------------------------------------------------------------

void heap_init(struct heap *h, size_t chunk_bytes, int device, bool keep) {
  *h = (struct heap){.chunk_bytes = chunk_bytes, .device = device, .keep = keep};
}

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static struct chunk *chunk_new(struct heap *h, size_t bytes, bool shared) {
  if (h->device >= 0) {
    size_t used = drv.dev[h->device].used;
    if (bytes > drv.set.total_memory || used > drv.set.total_memory - bytes)
      return NULL;
  }
  struct chunk *c = calloc(1, sizeof *c);
  if (c == NULL)
    return NULL;
  c->bytes = bytes;
  if (shared) {
    c->bitmap = calloc(bytes / UNIT_BYTES / 64, sizeof *c->bitmap);
    if (c->bitmap == NULL) {
      free(c);
      return NULL;
    }
  }
  c->base = map_aligned(bytes, CHUNK_BYTES, PROT_READ | PROT_WRITE);
  if (c->base == 0) {
    free(c->bitmap);
    free(c);
    return NULL;
  }
  if (h->device >= 0)
    drv.dev[h->device].used += bytes;
  h->reserved += bytes;
  if (h->reserved > h->reserved_high)
    h->reserved_high = h->reserved;
  struct chunk **at = &h->chunks;
  while (*at != NULL)
    at = &(*at)->next;
  *at = c;
  return c;
}

static void chunk_free(struct heap *h, struct chunk *c) {
  struct chunk **at = &h->chunks;
  while (*at != c)
    at = &(*at)->next;
  *at = c->next;
  munmap((void *)c->base, c->bytes);
  if (h->device >= 0)
    drv.dev[h->device].used -= c->bytes;
  h->reserved -= c->bytes;
  free(c->bitmap);
  free(c);
}

static bool bit(const uint64_t *map, size_t i) { return map[i / 64] >> (i % 64) & 1; }

static void bits_set(uint64_t *map, size_t at, size_t n, bool on) {
  for (size_t i = at; i < at + n; i++) {
    if (on)
      map[i / 64] |= (uint64_t)1 << (i % 64);
    else
      map[i / 64] &= ~((uint64_t)1 << (i % 64));
  }
}

// First run of n free units, or SIZE_MAX.
static size_t bits_find(const uint64_t *map, size_t total, size_t n) {
  size_t run = 0;
  for (size_t i = 0; i < total; i++) {
    if (run == 0 && i % 64 == 0 && map[i / 64] == UINT64_MAX) {
      i += 63;
      continue;
    }
    run = bit(map, i) ? 0 : run + 1;
    if (run == n)
      return i + 1 - n;
  }
  return SIZE_MAX;
}

CUresult heap_take(struct heap *h, size_t bytes, uintptr_t *base, size_t *span, struct chunk **chunk) {
  if (bytes > SIZE_MAX / 2)
    return CUDA_ERROR_OUT_OF_MEMORY;
  struct chunk *c = NULL;
  if (bytes >= h->chunk_bytes) {
    *span = round_up(bytes, CHUNK_BYTES);
    c = h->keep ? h->chunks : NULL;
    while (c != NULL && (c->bitmap != NULL || c->used > 0 || c->bytes != *span))
      c = c->next; // a pool gives a kept range of the right size out again
    if (c == NULL)
      c = chunk_new(h, *span, false);
    if (c == NULL)
      return CUDA_ERROR_OUT_OF_MEMORY;
    *base = c->base;
  } else {
    size_t units = (bytes + UNIT_BYTES - 1) / UNIT_BYTES, at = SIZE_MAX;
    *span = units * UNIT_BYTES;
    for (c = h->chunks; c != NULL; c = c->next) {
      if (c->bitmap == NULL || c->bytes - c->used < *span)
        continue;
      at = bits_find(c->bitmap, c->bytes / UNIT_BYTES, units);
      if (at != SIZE_MAX)
        break;
    }
    if (c == NULL) {
      c = chunk_new(h, h->chunk_bytes, true);
      if (c == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
      at = 0;
    }
    bits_set(c->bitmap, at, units, true);
    *base = c->base + at * UNIT_BYTES;
  }
  c->used += *span;
  h->used += *span;
  *chunk = c;
  return CUDA_SUCCESS;
}

void heap_give(struct heap *h, struct chunk *c, uintptr_t base, size_t span) {
  if (c->bitmap != NULL)
    bits_set(c->bitmap, (base - c->base) / UNIT_BYTES, span / UNIT_BYTES, false);
  c->used -= span;
  h->used -= span;
  if (c->used == 0 && !h->keep)
    chunk_free(h, c);
}

static void heap_trim(struct heap *h, size_t keep) {
  for (struct chunk *c = h->chunks, *next; c != NULL && h->reserved > keep; c = next) {
    next = c->next;
    if (c->used == 0 && h->reserved - c->bytes >= keep)
      chunk_free(h, c);
  }
}

static void heap_drop(struct heap *h) {
  while (h->chunks != NULL)
    chunk_free(h, h->chunks);
}

// What lives where -----------------------------------------------------------------

static struct alloc **allocs; // by address
static size_t nallocs, capallocs;

uint64_t alloc_live(void) { return nallocs; }

// Index of the first entry that begins above p.
static size_t alloc_above(uintptr_t p) {
  size_t lo = 0, hi = nallocs;
  while (lo < hi) {
    size_t mid = lo + (hi - lo) / 2;
    if (allocs[mid]->base <= p)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

struct alloc *alloc_find(uintptr_t p) {
  size_t i = alloc_above(p);
  if (i == 0)
    return NULL;
  struct alloc *a = allocs[i - 1];
  return p - a->base < a->size ? a : NULL;
}

bool alloc_covers(uintptr_t p, size_t bytes) {
  if (bytes == 0)
    return true;
  // Mappings may lie side by side, so walk on.
  while (true) {
    struct alloc *a = alloc_find(p);
    if (a == NULL || (a->type == A_MAPPED && a->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
      return false;
    size_t left = a->base + a->size - p;
    if (bytes <= left)
      return true;
    bytes -= left;
    p += left;
  }
}

static struct alloc *alloc_exact(uintptr_t p) {
  struct alloc *a = alloc_find(p);
  return a != NULL && a->base == p ? a : NULL;
}

struct alloc *alloc_add(struct context *c, enum alloc_type type, uintptr_t base, size_t size, size_t span) {
  if (nallocs == capallocs) {
    size_t cap = capallocs == 0 ? 256 : 2 * capallocs;
    struct alloc **v = realloc(allocs, cap * sizeof *v);
    if (v == NULL)
      return NULL;
    allocs = v;
    capallocs = cap;
  }
  struct alloc *a = calloc(1, sizeof *a);
  if (a == NULL)
    return NULL;
  *a = (struct alloc){.base = base, .size = size, .span = span, .type = type, .ctx = c, .id = drv.next_alloc_id++};
  a->device = c != NULL ? c->device : -1;
  size_t i = alloc_above(base);
  memmove(allocs + i + 1, allocs + i, (nallocs - i) * sizeof *allocs);
  allocs[i] = a;
  nallocs++;
  return a;
}

void alloc_remove(struct alloc *a) {
  size_t i = alloc_above(a->base) - 1;
  memmove(allocs + i, allocs + i + 1, (nallocs - i - 1) * sizeof *allocs);
  nallocs--;
}

static CUresult alloc_heap(struct context *c, struct heap *h, enum alloc_type type, size_t bytes, struct alloc **out) {
  uintptr_t base;
  size_t span;
  struct chunk *chunk;
  CUresult r = heap_take(h, bytes, &base, &span, &chunk);
  if (r != CUDA_SUCCESS)
    return r;
  struct alloc *a = alloc_add(c, type, base, bytes, span);
  if (a == NULL) {
    heap_give(h, chunk, base, span);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  a->heap = h;
  a->chunk = chunk;
  *out = a;
  return CUDA_SUCCESS;
}

CUresult alloc_internal(struct context *c, size_t bytes, uintptr_t *base) {
  struct alloc *a;
  CUresult r = alloc_heap(c, &c->heap, A_INTERNAL, bytes, &a);
  if (r == CUDA_SUCCESS)
    *base = a->base;
  return r;
}

// alloc_drop frees a range; nothing that is enqueued uses it any more.
void alloc_drop(struct alloc *a) {
  alloc_remove(a);
  if (a->type == A_REGISTERED)
    free(a);
  else
    alloc_release(a);
}

void memory_drop_context(struct context *c) {
  for (size_t i = nallocs; i-- > 0;) {
    struct alloc *a = allocs[i];
    if (a->ctx != c)
      continue;
    if (a->type == A_POOL || a->type == A_GRAPH)
      a->ctx = NULL; // pools belong to the device and outlive contexts
    else
      alloc_drop(a);
  }
  heap_drop(&c->heap);
  heap_drop(&c->managed);
}

// Plain allocations --------------------------------------------------------------------

static void pool_release(struct alloc *a);

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  ENTER(FN_cuMemGetInfo_v2);
  NEED_CONTEXT(c);
  size_t used = drv.dev[c->device].used, all = drv.set.total_memory;
  if (free_bytes != NULL)
    *free_bytes = used < all ? all - used : 0;
  if (total != NULL)
    *total = all;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes) {
  ENTER(FN_cuMemAlloc_v2);
  NEED(ptr);
  NEED_CONTEXT(c);
  if (bytes == 0)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  NEED_UNCAPTURED();
  struct alloc *a;
  CUresult r = alloc_heap(c, &c->heap, A_DEVICE, bytes, &a);
  if (r == CUDA_SUCCESS)
    *ptr = a->base;
  log_line(FN_cuMemAlloc_v2, NULL, " bytes=%zu ptr=0x%llx result=%d", bytes, r == 0 ? *ptr : 0, r);
  LEAVE(r);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned element) {
  ENTER(FN_cuMemAllocPitch_v2);
  NEED(ptr);
  NEED(pitch);
  NEED_CONTEXT(c);
  if (width == 0 || height == 0 || width > (size_t)1 << 40 || (element != 4 && element != 8 && element != 16))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  NEED_UNCAPTURED();
  size_t row = round_up(width, 512), bytes;
  if (__builtin_mul_overflow(row, height, &bytes))
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  struct alloc *a;
  CUresult r = alloc_heap(c, &c->heap, A_DEVICE, bytes, &a);
  if (r == CUDA_SUCCESS) {
    *ptr = a->base;
    *pitch = row;
  }
  log_line(FN_cuMemAllocPitch_v2, NULL, " width=%zu height=%zu bytes=%zu ptr=0x%llx result=%d", width, height, bytes,
           r == 0 ? *ptr : 0, r);
  LEAVE(r);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t bytes, unsigned flags) {
  ENTER(FN_cuMemAllocManaged);
  NEED(ptr);
  NEED_CONTEXT(c);
  if (bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  NEED_UNCAPTURED();
  // Managed memory takes device memory only while pages live there, which
  // this does not model: cuMemGetInfo does not move.
  struct alloc *a;
  CUresult r = alloc_heap(c, &c->managed, A_MANAGED, bytes, &a);
  if (r == CUDA_SUCCESS)
    *ptr = a->base;
  log_line(FN_cuMemAllocManaged, NULL, " bytes=%zu ptr=0x%llx result=%d", bytes, r == 0 ? *ptr : 0, r);
  LEAVE(r);
}

// alloc_release frees what an entry taken from the table described.
void alloc_release(struct alloc *a) {
  if (a->pool != NULL)
    pool_release(a);
  else if (a->chunk != NULL)
    heap_give(a->heap, a->chunk, a->base, a->span);
  else
    munmap((void *)a->base, a->span);
  free(a);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr ptr) {
  ENTER(FN_cuMemFree_v2);
  NEED_UNCAPTURED();
  if (ptr == 0)
    LEAVE(CUDA_SUCCESS);
  struct alloc *a = alloc_exact((uintptr_t)ptr);
  if (a != NULL && a->type == A_GRAPH && !a->freed) {
    a->freed = true;
    LEAVE(CUDA_SUCCESS);
  }
  if (a == NULL || (a->type != A_DEVICE && a->type != A_MANAGED && a->type != A_POOL))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (drv.set.sticky != CUDA_SUCCESS)
    LEAVE(drv.set.sticky);
  log_line(FN_cuMemFree_v2, NULL, " ptr=0x%llx bytes=%zu", ptr, a->size);
  // Work in flight may use the range, and like the driver this waits for it;
  // but not for memory of a pool, whose users see to that themselves. The entry
  // goes first, so that a second free of the same address, from another thread
  // meanwhile, is refused.
  alloc_remove(a);
  if (a->type != A_POOL && a->ctx != NULL)
    ctx_sync(a->ctx);
  alloc_release(a);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr) {
  ENTER(FN_cuMemGetAddressRange_v2);
  NEED_CONTEXT(c);
  struct alloc *a = alloc_find((uintptr_t)ptr);
  if (a == NULL || a->type == A_REGISTERED)
    LEAVE(CUDA_ERROR_NOT_FOUND);
  if (base != NULL)
    *base = a->base;
  if (size != NULL)
    *size = a->size;
  LEAVE(CUDA_SUCCESS);
}

// Host memory ---------------------------------------------------------------------------

static CUresult host_alloc(enum fn_id fn, void **ptr, size_t bytes, unsigned flags) {
  ENTER(fn);
  NEED(ptr);
  NEED_CONTEXT(c);
  if (flags & ~7u)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  NEED_UNCAPTURED();
  if (bytes == 0) {
    *ptr = NULL;
    LEAVE(CUDA_SUCCESS);
  }
  if (bytes > SIZE_MAX / 2)
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  size_t span = round_up(bytes, 4096);
  uintptr_t base = map_aligned(span, 4096, PROT_READ | PROT_WRITE);
  struct alloc *a = base != 0 ? alloc_add(c, A_HOST, base, bytes, span) : NULL;
  if (a == NULL) {
    if (base != 0)
      munmap((void *)base, span);
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  a->flags = flags | 2; // mapped, whether asked for or not
  *ptr = (void *)base;
  log_line(fn, NULL, " bytes=%zu ptr=0x%llx result=0", bytes, (unsigned long long)base);
  LEAVE(CUDA_SUCCESS);
}
EXPORT CUresult cuMemAllocHost_v2(void **ptr, size_t bytes) { return host_alloc(FN_cuMemAllocHost_v2, ptr, bytes, 0); }
EXPORT CUresult cuMemHostAlloc(void **ptr, size_t bytes, unsigned flags) {
  return host_alloc(FN_cuMemHostAlloc, ptr, bytes, flags);
}

EXPORT CUresult cuMemFreeHost(void *ptr) {
  ENTER(FN_cuMemFreeHost);
  NEED_CONTEXT(c);
  NEED_UNCAPTURED();
  if (ptr == NULL)
    LEAVE(CUDA_SUCCESS);
  struct alloc *a = alloc_exact((uintptr_t)ptr);
  if (a == NULL || a->type != A_HOST)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  log_line(FN_cuMemFreeHost, NULL, " ptr=0x%llx bytes=%zu", (unsigned long long)a->base, a->size);
  alloc_remove(a);
  ctx_sync(a->ctx);
  munmap((void *)a->base, a->span);
  free(a);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *dptr, void *ptr, unsigned flags) {
  ENTER(FN_cuMemHostGetDevicePointer_v2);
  NEED(dptr);
  NEED_CONTEXT(c);
  struct alloc *a = alloc_find((uintptr_t)ptr);
  if (flags != 0 || a == NULL || (a->type != A_HOST && a->type != A_REGISTERED))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  *dptr = (CUdeviceptr)(uintptr_t)ptr;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *ptr) {
  ENTER(FN_cuMemHostGetFlags);
  NEED(flags);
  NEED_CONTEXT(c);
  struct alloc *a = alloc_exact((uintptr_t)ptr);
  if (a == NULL || a->type != A_HOST)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  *flags = a->flags;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned flags) {
  ENTER(FN_cuMemHostRegister_v2);
  NEED(ptr);
  NEED_CONTEXT(c);
  if (bytes == 0 || flags & ~15u)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  NEED_UNCAPTURED();
  if (alloc_find((uintptr_t)ptr) != NULL || alloc_find((uintptr_t)ptr + bytes - 1) != NULL)
    LEAVE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  struct alloc *a = alloc_add(c, A_REGISTERED, (uintptr_t)ptr, bytes, bytes);
  if (a == NULL)
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  a->flags = flags;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemHostUnregister(void *ptr) {
  ENTER(FN_cuMemHostUnregister);
  NEED(ptr);
  NEED_CONTEXT(c);
  NEED_UNCAPTURED();
  struct alloc *a = alloc_exact((uintptr_t)ptr);
  if (a == NULL || a->type != A_REGISTERED)
    LEAVE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  alloc_remove(a);
  ctx_sync(a->ctx);
  free(a);
  LEAVE(CUDA_SUCCESS);
}

// Pointers -------------------------------------------------------------------------------

static CUresult pointer_attribute(void *data, int attrib, struct alloc *a, CUdeviceptr ptr) {
  bool host = a->type == A_HOST || a->type == A_REGISTERED;
  switch (attrib) {
  case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = (CUcontext)a->ctx; break;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = ptr; break;
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    if (!host && a->type != A_MANAGED)
      return CUDA_ERROR_INVALID_VALUE;
    *(void **)data = (void *)(uintptr_t)ptr;
    break;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = a->id; break;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned char *)data = a->type == A_MANAGED; break;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = a->device; break;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = a->base; break;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = a->size; break;
  case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned char *)data = 1; break;
  default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *data, int attrib, CUdeviceptr ptr) {
  ENTER(FN_cuPointerGetAttribute);
  NEED(data);
  struct alloc *a = alloc_find((uintptr_t)ptr);
  LEAVE(a == NULL ? CUDA_ERROR_INVALID_VALUE : pointer_attribute(data, attrib, a, ptr));
}

EXPORT CUresult cuPointerGetAttributes(unsigned n, int *attribs, void **data, CUdeviceptr ptr) {
  ENTER(FN_cuPointerGetAttributes);
  NEED(attribs);
  NEED(data);
  NEED_CONTEXT(c);
  // Unknown memory is no error here; its attributes read as zero.
  struct alloc none = {.device = -2}, *a = alloc_find((uintptr_t)ptr);
  for (unsigned i = 0; i < n; i++) {
    if (a != NULL)
      pointer_attribute(data[i], attribs[i], a, ptr);
    else if (attribs[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
      *(unsigned *)data[i] = 0;
    else if (attribs[i] == CU_POINTER_ATTRIBUTE_CONTEXT || attribs[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      pointer_attribute(data[i], attribs[i], &none, 0);
  }
  LEAVE(CUDA_SUCCESS);
}

// Pools ------------------------------------------------------------------------------------

// A pool keeps 32 MiB ranges; what is free beyond its threshold goes back at
// the next synchronisation.
struct pool {
  struct obj o;
  struct heap heap;
  int device;
  bool is_default, destroyed;
  uint64_t threshold, used, used_high; // use as asked for, not as packed
  int reuse[4];
  struct pool *next;
};
static struct pool *pools;

static struct pool *pool_new(int device) {
  struct pool *p = obj_new(K_POOL, sizeof *p);
  if (p == NULL)
    return NULL;
  heap_init(&p->heap, POOL_CHUNK_BYTES, device, true);
  p->device = device;
  p->reuse[1] = p->reuse[2] = p->reuse[3] = 1;
  p->next = pools;
  pools = p;
  return p;
}

static void pool_end(struct pool *p) {
  if (!p->destroyed || p->heap.used > 0)
    return; // a destroyed pool lives on until its memory has been freed
  struct pool **at = &pools;
  while (*at != p)
    at = &(*at)->next;
  *at = p->next;
  heap_drop(&p->heap);
  obj_free(p);
}

static void pool_release(struct alloc *a) {
  struct pool *p = a->pool;
  heap_give(&p->heap, a->chunk, a->base, a->span);
  p->used -= a->size;
  pool_end(p);
}

void pools_trim(void) {
  for (struct pool *p = pools; p != NULL; p = p->next)
    heap_trim(&p->heap, p->threshold);
}

static struct pool *default_pool(int device) {
  struct device *d = &drv.dev[device];
  if (d->default_pool == NULL) {
    d->default_pool = pool_new(device);
    if (d->default_pool == NULL)
      return NULL;
    d->default_pool->is_default = true;
    if (d->pool == NULL)
      d->pool = d->default_pool;
  }
  return d->default_pool;
}

static struct pool *current_pool(int device) {
  if (default_pool(device) == NULL)
    return NULL;
  return drv.dev[device].pool;
}

static struct pool *pool_get(CUmemoryPool h) {
  struct pool *p = obj_get(h, K_POOL);
  return p != NULL && !p->destroyed ? p : NULL;
}

static CUresult get_pool(enum fn_id fn, CUmemoryPool *pool, CUdevice dev, struct pool *(*which)(int)) {
  ENTER(fn);
  NEED(pool);
  if (dev < 0 || dev >= drv.set.devices)
    LEAVE(CUDA_ERROR_INVALID_DEVICE);
  struct pool *p = which(dev);
  if (p == NULL)
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  *pool = (CUmemoryPool)p;
  LEAVE(CUDA_SUCCESS);
}
EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev) {
  return get_pool(FN_cuDeviceGetDefaultMemPool, pool, dev, default_pool);
}
EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
  return get_pool(FN_cuDeviceGetMemPool, pool, dev, current_pool);
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  ENTER(FN_cuDeviceSetMemPool);
  struct pool *p = pool_get(pool);
  if (dev < 0 || dev >= drv.set.devices)
    LEAVE(CUDA_ERROR_INVALID_DEVICE);
  if (p == NULL || p->device != dev)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  default_pool(dev);
  drv.dev[dev].pool = p;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
  ENTER(FN_cuMemPoolCreate);
  NEED(pool);
  NEED(props);
  if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (props->location.id < 0 || props->location.id >= drv.set.devices)
    LEAVE(CUDA_ERROR_INVALID_DEVICE);
  NEED_UNCAPTURED();
  struct pool *p = pool_new(props->location.id);
  if (p == NULL)
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  *pool = (CUmemoryPool)p;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  ENTER(FN_cuMemPoolDestroy);
  struct pool *p = pool_get(pool);
  if (p == NULL || p->is_default)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (drv.dev[p->device].pool == p)
    drv.dev[p->device].pool = drv.dev[p->device].default_pool;
  p->destroyed = true;
  pool_end(p);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  ENTER(FN_cuMemPoolTrimTo);
  struct pool *p = pool_get(pool);
  if (p == NULL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  heap_trim(&p->heap, keep);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attr, void *value) {
  ENTER(FN_cuMemPoolGetAttribute);
  NEED(value);
  struct pool *p = pool_get(pool);
  if (p == NULL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  switch (attr) {
  case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *(int *)value = p->reuse[attr]; break;
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(uint64_t *)value = p->threshold; break;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = p->heap.reserved; break;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = p->heap.reserved_high; break;
  case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = p->used; break;
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(uint64_t *)value = p->used_high; break;
  default: LEAVE(CUDA_ERROR_INVALID_VALUE);
  }
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attr, void *value) {
  ENTER(FN_cuMemPoolSetAttribute);
  NEED(value);
  struct pool *p = pool_get(pool);
  if (p == NULL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  switch (attr) {
  case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: p->reuse[attr] = *(int *)value; break;
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: p->threshold = *(uint64_t *)value; break;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: p->heap.reserved_high = p->heap.reserved; break;
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH: p->used_high = p->used; break;
  default: LEAVE(CUDA_ERROR_INVALID_VALUE);
  }
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t n) {
  ENTER(FN_cuMemPoolSetAccess);
  LEAVE(pool_get(pool) == NULL || (map == NULL && n > 0) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

static CUresult alloc_async(enum fn_id fn, bool pt, CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, bool own,
                            CUstream stream) {
  ENTER(fn);
  NEED(ptr);
  NEED_STREAM(c, s, stream, pt);
  struct pool *p = own ? pool_get(pool) : current_pool(c->device);
  if (p == NULL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (s->cap == NULL)
    NEED_UNCAPTURED();
  if (bytes == 0) {
    *ptr = 0;
    LEAVE(CUDA_SUCCESS);
  }
  struct alloc *a;
  CUresult r = alloc_heap(c, &p->heap, A_POOL, bytes, &a);
  if (r != CUDA_SUCCESS)
    LEAVE(r);
  a->pool = p;
  p->used += bytes;
  if (p->used > p->used_high)
    p->used_high = p->used;
  struct work w = {.kind = W_NOP};
  if (s->cap != NULL) {
    // A captured allocation gets its address now and keeps it for every
    // replay. Here it has its memory from now on, too.
    struct graph_memory *m = calloc(1, sizeof *m);
    if (m == NULL) {
      alloc_drop(a);
      LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *m = (struct graph_memory){.refs = 1, .alloc = a};
    a->type = A_GRAPH;
    a->graph = m;
    w = (struct work){.kind = W_ALLOC, .u.a.mem = m};
  }
  bool graph = a->type == A_GRAPH;
  a->freed = graph; // until it is the caller's
  r = submit(s, &w, NULL);
  if (r != CUDA_SUCCESS) {
    if (!graph)
      alloc_drop(a); // else submit has done that
    LEAVE(r);
  }
  a->freed = false;
  *ptr = a->base;
  log_line(fn, s, " bytes=%zu ptr=0x%llx result=0", bytes, *ptr);
  LEAVE(CUDA_SUCCESS);
}

void graph_memory_unref(struct graph_memory *m) {
  if (--m->refs > 0)
    return;
  struct alloc *a = m->alloc;
  a->graph = NULL;
  if (a->freed)
    alloc_drop(a);
  else
    a->type = A_POOL; // still there for whoever frees it
  free(m);
}

static CUresult do_cuMemAllocAsync(enum fn_id fn, bool pt, CUdeviceptr *ptr, size_t bytes, CUstream stream) {
  return alloc_async(fn, pt, ptr, bytes, NULL, false, stream);
}
PAIR(cuMemAllocAsync, _ptsz, (CUdeviceptr *ptr, size_t bytes, CUstream stream), (ptr, bytes, stream))

static CUresult do_cuMemAllocFromPoolAsync(enum fn_id fn, bool pt, CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool,
                                           CUstream stream) {
  return alloc_async(fn, pt, ptr, bytes, pool, true, stream);
}
PAIR(cuMemAllocFromPoolAsync, _ptsz, (CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream),
     (ptr, bytes, pool, stream))

static CUresult do_cuMemFreeAsync(enum fn_id fn, bool pt, CUdeviceptr ptr, CUstream stream) {
  ENTER(fn);
  NEED_STREAM(c, s, stream, pt);
  if (s->cap == NULL)
    NEED_UNCAPTURED();
  if (ptr == 0)
    LEAVE(CUDA_SUCCESS);
  // Plain memory may be freed in stream order too.
  struct alloc *a = alloc_exact((uintptr_t)ptr);
  if (a == NULL || (a->type != A_POOL && a->type != A_GRAPH && a->type != A_DEVICE && a->type != A_MANAGED) || a->freed)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  log_line(fn, s, " ptr=0x%llx bytes=%zu", ptr, a->size);
  if (s->cap != NULL) {
    // The address stays the graph's: every replay allocates it again.
    struct work w = {.kind = W_NOP};
    CUresult r = capture_add(s, CU_GRAPH_NODE_TYPE_MEM_FREE, &w, NULL);
    a->freed = a->freed || (r == CUDA_SUCCESS && a->type == A_GRAPH);
    LEAVE(r);
  }
  if (a->type == A_GRAPH) {
    a->freed = true;
    LEAVE(CUDA_SUCCESS);
  }
  alloc_remove(a);
  struct work w = {.kind = W_FREE, .u.f.alloc = a};
  LEAVE(submit(s, &w, NULL));
}
PAIR(cuMemFreeAsync, _ptsz, (CUdeviceptr ptr, CUstream stream), (ptr, stream))
