// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: address ranges, physical allocations and the
// mappings between them. A physical allocation is a memory file, so mapping it
// twice really aliases, and access rights are the pages' own.

#include "internal.h"

#include <sys/mman.h>
#include <unistd.h>

struct physical {
  struct obj o;
  size_t size;
  int fd;
  CUmemAllocationProp prop;
  unsigned refs; // handles given out, and mappings
  unsigned handles;
};

struct reservation {
  struct reservation *next;
  uintptr_t base;
  size_t size;
};
static struct reservation *reservations;

static bool granular(size_t n) { return n > 0 && n % CHUNK_BYTES == 0; }

static struct reservation *reserved(uintptr_t p, size_t size) {
  for (struct reservation *r = reservations; r != NULL; r = r->next)
    if (p >= r->base && size <= r->size && p - r->base <= r->size - size)
      return r;
  return NULL;
}

static void physical_unref(struct physical *p) {
  if (--p->refs > 0)
    return;
  close(p->fd);
  drv.dev[p->prop.location.id].used -= p->size;
  obj_free(p);
}

static struct physical *physical_get(CUmemGenericAllocationHandle h) {
  struct physical *p = obj_get((void *)(uintptr_t)h, K_PHYSICAL);
  return p != NULL && p->handles > 0 ? p : NULL;
}

static bool prop_ok(const CUmemAllocationProp *prop) {
  return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         prop->location.id >= 0 && prop->location.id < drv.set.devices;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option) {
  ENTER(FN_cuMemGetAllocationGranularity);
  NEED(granularity);
  NEED(prop);
  (void)option; // minimum and recommended are the same
  if (!prop_ok(prop))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  *granularity = CHUNK_BYTES;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t align, CUdeviceptr addr,
                                    unsigned long long flags) {
  ENTER(FN_cuMemAddressReserve);
  NEED(ptr);
  (void)addr; // a hint
  if (!granular(size) || flags != 0 || (align & (align - 1)) != 0)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  struct reservation *r = calloc(1, sizeof *r);
  if (r == NULL)
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  r->base = map_aligned(size, align > CHUNK_BYTES ? align : CHUNK_BYTES, PROT_NONE);
  if (r->base == 0) {
    free(r);
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  r->size = size;
  r->next = reservations;
  reservations = r;
  *ptr = r->base;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  ENTER(FN_cuMemAddressFree);
  for (struct reservation **at = &reservations; *at != NULL; at = &(*at)->next) {
    struct reservation *r = *at;
    if (r->base != ptr || r->size != size)
      continue;
    for (uintptr_t p = r->base; p < r->base + r->size; p += CHUNK_BYTES)
      if (alloc_find(p) != NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE); // still mapped
    *at = r->next;
    munmap((void *)r->base, r->size);
    free(r);
    LEAVE(CUDA_SUCCESS);
  }
  LEAVE(CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                            unsigned long long flags) {
  ENTER(FN_cuMemCreate);
  NEED(handle);
  NEED(prop);
  if (!granular(size) || flags != 0 || !prop_ok(prop))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  struct device *d = &drv.dev[prop->location.id];
  if (size > drv.set.total_memory || d->used > drv.set.total_memory - size)
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  int fd = memfd_create("lt-testdriver", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)size) != 0) {
    if (fd >= 0)
      close(fd);
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  struct physical *p = obj_new(K_PHYSICAL, sizeof *p);
  if (p == NULL) {
    close(fd);
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  p->size = size;
  p->fd = fd;
  p->prop = *prop;
  p->refs = p->handles = 1;
  d->used += size;
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
  log_line(FN_cuMemCreate, NULL, " bytes=%zu handle=0x%llx result=0", size, *handle);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  ENTER(FN_cuMemRelease);
  struct physical *p = physical_get(handle);
  if (p == NULL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  log_line(FN_cuMemRelease, NULL, " handle=0x%llx", handle);
  p->handles--;
  physical_unref(p);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
  ENTER(FN_cuMemMap);
  struct physical *p = physical_get(handle);
  if (!granular(size))
    LEAVE(CUDA_ERROR_NOT_SUPPORTED); // as measured
  if (p == NULL || flags != 0 || ptr % CHUNK_BYTES != 0 || offset % CHUNK_BYTES != 0 ||
      offset > p->size || size > p->size - offset || reserved((uintptr_t)ptr, size) == NULL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  for (uintptr_t at = (uintptr_t)ptr; at < ptr + size; at += CHUNK_BYTES)
    if (alloc_find(at) != NULL)
      LEAVE(CUDA_ERROR_INVALID_VALUE);
  struct alloc *a = alloc_add(NULL, A_MAPPED, (uintptr_t)ptr, size, size);
  if (a == NULL)
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  if (mmap((void *)(uintptr_t)ptr, size, PROT_NONE, MAP_SHARED | MAP_FIXED, p->fd, (off_t)offset) == MAP_FAILED) {
    alloc_remove(a);
    free(a);
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  a->device = p->prop.location.id;
  a->phys = p;
  a->phys_offset = offset;
  a->flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  p->refs++;
  log_line(FN_cuMemMap, NULL, " ptr=0x%llx bytes=%zu handle=0x%llx", ptr, size, handle);
  LEAVE(CUDA_SUCCESS);
}

// whole_mappings says whether [ptr, ptr+size) is made of whole mappings.
static bool whole_mappings(uintptr_t ptr, size_t size) {
  while (size > 0) {
    struct alloc *a = alloc_find(ptr);
    if (a == NULL || a->type != A_MAPPED || a->base != ptr || a->size > size)
      return false;
    ptr += a->size;
    size -= a->size;
  }
  return true;
}

static bool nothing_mapped(uintptr_t ptr, size_t size) {
  if (reserved(ptr, size) == NULL)
    return false;
  for (uintptr_t at = ptr; at < ptr + size; at += CHUNK_BYTES)
    if (alloc_find(at) != NULL)
      return false;
  return true;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  ENTER(FN_cuMemUnmap);
  if (granular(size) && nothing_mapped((uintptr_t)ptr, size))
    LEAVE(CUDA_SUCCESS); // as measured
  if (!granular(size) || !whole_mappings((uintptr_t)ptr, size))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  CUresult r;
  struct context *c = ctx_current(&r);
  if (c != NULL)
    ctx_sync(c);
  if (!whole_mappings((uintptr_t)ptr, size))
    LEAVE(CUDA_ERROR_INVALID_VALUE); // somebody else did it meanwhile
  log_line(FN_cuMemUnmap, NULL, " ptr=0x%llx bytes=%zu", ptr, size);
  for (uintptr_t at = (uintptr_t)ptr; at < ptr + size;) {
    struct alloc *a = alloc_find(at);
    at += a->size;
    mmap((void *)a->base, a->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    alloc_remove(a);
    physical_unref(a->phys);
    free(a);
  }
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t n) {
  ENTER(FN_cuMemSetAccess);
  NEED(desc);
  if (n == 0 || !granular(size) || !whole_mappings((uintptr_t)ptr, size))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  // Devices share one address space here: the widest right wins.
  int flags = 0;
  for (size_t i = 0; i < n; i++)
    flags |= desc[i].flags;
  int prot = (flags & 1 ? PROT_READ : 0) | (flags & 2 ? PROT_WRITE : 0);
  for (uintptr_t at = (uintptr_t)ptr; at < ptr + size;) {
    struct alloc *a = alloc_find(at);
    mprotect((void *)a->base, a->size, prot);
    a->flags = (unsigned)flags;
    at += a->size;
  }
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
  ENTER(FN_cuMemGetAccess);
  NEED(flags);
  NEED(location);
  struct alloc *a = alloc_find((uintptr_t)ptr);
  if (a == NULL || a->type != A_MAPPED)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  *flags = a->flags;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                       CUmemGenericAllocationHandle handle) {
  ENTER(FN_cuMemGetAllocationPropertiesFromHandle);
  NEED(prop);
  struct physical *p = physical_get(handle);
  if (p == NULL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  *prop = p->prop;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
  ENTER(FN_cuMemRetainAllocationHandle);
  NEED(handle);
  struct alloc *a = alloc_find((uintptr_t)addr);
  if (a == NULL || a->type != A_MAPPED)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  a->phys->refs++;
  a->phys->handles++;
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)a->phys;
  LEAVE(CUDA_SUCCESS);
}
