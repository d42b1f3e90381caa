// SPDX-License-Identifier: Apache-2.0
//
// Copies and sets.

#include "internal.h"

// What the driver knows about one end of a copy.
enum place { P_PAGEABLE, P_PINNED, P_DEVICE };

static enum place place_of(const void *p) {
  struct alloc *a = alloc_find((uintptr_t)p);
  if (a == NULL)
    return P_PAGEABLE;
  return a->type == A_HOST || a->type == A_REGISTERED ? P_PINNED : P_DEVICE;
}

struct span2d {
  void *dst;
  const void *src;
  size_t width, height, dpitch, spitch;
  bool dst_device, src_device; // must be memory that the driver knows
};

static size_t extent(size_t width, size_t height, size_t pitch) {
  return height == 0 || width == 0 ? 0 : (height - 1) * pitch + width;
}

// copy does one copy on a stream. The caller holds the lock.
static CUresult copy(enum fn_id fn, struct stream *s, struct span2d m, bool async) {
  if (m.width == 0 || m.height == 0)
    return CUDA_SUCCESS;
  if (m.dst == NULL || m.src == NULL || (m.height > 1 && (m.dpitch < m.width || m.spitch < m.width)))
    return CUDA_ERROR_INVALID_VALUE;
  if ((m.dst_device && !alloc_covers((uintptr_t)m.dst, extent(m.width, m.height, m.dpitch))) ||
      (m.src_device && !alloc_covers((uintptr_t)m.src, extent(m.width, m.height, m.spitch))))
    return CUDA_ERROR_INVALID_VALUE;
  // A copy that the host waits for is harmless to captures elsewhere, as
  // measured; on a capturing stream it cannot be.
  if (!async && s->cap != NULL) {
    capture_invalidate(s->cap);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  struct work w = {.kind = W_COPY,
                   .dur_ns = -1,
                   .u.c = {.dst = m.dst, .src = m.src, .width = m.width, .height = m.height, .dpitch = m.dpitch,
                           .spitch = m.spitch}};
  // Pageable memory is the caller's again when the call returns: what is to be
  // read is staged now, and what is to be written is waited for.
  bool wait = !async || (s->cap == NULL && place_of(m.dst) == P_PAGEABLE);
  if (async && s->cap == NULL && place_of(m.src) == P_PAGEABLE) {
    w.u.c.staged = malloc(m.width * m.height);
    if (w.u.c.staged == NULL)
      return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t y = 0; y < m.height; y++)
      memcpy(w.u.c.staged + y * m.width, (const char *)m.src + y * m.spitch, m.width);
    w.u.c.src = w.u.c.staged;
    w.u.c.spitch = m.width;
  }
  log_line(fn, s, " dst=%p src=%p width=%zu height=%zu", m.dst, m.src, m.width, m.height);
  struct op *op;
  CUresult r = submit(s, &w, &op);
  if (r != CUDA_SUCCESS)
    return r;
  if (op != NULL) {
    if (wait)
      op_wait(op);
    op_unref(op);
  }
  return wait ? wait_result() : CUDA_SUCCESS;
}

#define FLAT(d, s, n, dd, sd) \
  (struct span2d) { .dst = (void *)(uintptr_t)(d), .src = (const void *)(uintptr_t)(s), .width = (n), .height = 1, .dpitch = (n), .spitch = (n), .dst_device = (dd), .src_device = (sd) }

// COPY defines a copy function and its per-thread twin; h is its stream.
#define COPY(name, sfx, params, args, h, flat, async)                    \
  static CUresult do_##name(enum fn_id fn, bool pt, UNPACK params) {     \
    ENTER(fn);                                                           \
    NEED_STREAM(c, s, h, pt);                                            \
    LEAVE(copy(fn, s, flat, async));                                  \
  }                                                                      \
  PAIR(name, sfx, params, args)

COPY(cuMemcpy, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t n), (dst, src, n), NULL,
     FLAT(dst, src, n, false, false), false)
COPY(cuMemcpyAsync, _ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream), (dst, src, n, stream), stream,
     FLAT(dst, src, n, false, false), true)
COPY(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr dst, const void *src, size_t n), (dst, src, n), NULL,
     FLAT(dst, src, n, true, false), false)
COPY(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr dst, const void *src, size_t n, CUstream stream), (dst, src, n, stream),
     stream, FLAT(dst, src, n, true, false), true)
COPY(cuMemcpyDtoH_v2, _ptds, (void *dst, CUdeviceptr src, size_t n), (dst, src, n), NULL,
     FLAT(dst, src, n, false, true), false)
COPY(cuMemcpyDtoHAsync_v2, _ptsz, (void *dst, CUdeviceptr src, size_t n, CUstream stream), (dst, src, n, stream),
     stream, FLAT(dst, src, n, false, true), true)
COPY(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t n), (dst, src, n), NULL,
     FLAT(dst, src, n, true, true), false)
COPY(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream), (dst, src, n, stream),
     stream, FLAT(dst, src, n, true, true), true)

static CUresult peer(CUcontext a, CUcontext b) {
  return obj_get(a, K_CONTEXT) != NULL && obj_get(b, K_CONTEXT) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult do_cuMemcpyPeer(enum fn_id fn, bool pt, CUdeviceptr dst, CUcontext dctx, CUdeviceptr src, CUcontext sctx,
                                size_t n) {
  ENTER(fn);
  NEED_STREAM(c, s, NULL, pt);
  CUresult r = peer(dctx, sctx);
  LEAVE(r != CUDA_SUCCESS ? r : copy(fn, s, FLAT(dst, src, n, true, true), false));
}
PAIR(cuMemcpyPeer, _ptds, (CUdeviceptr dst, CUcontext dctx, CUdeviceptr src, CUcontext sctx, size_t n),
     (dst, dctx, src, sctx, n))

static CUresult do_cuMemcpyPeerAsync(enum fn_id fn, bool pt, CUdeviceptr dst, CUcontext dctx, CUdeviceptr src,
                                     CUcontext sctx, size_t n, CUstream stream) {
  ENTER(fn);
  NEED_STREAM(c, s, stream, pt);
  CUresult r = peer(dctx, sctx);
  LEAVE(r != CUDA_SUCCESS ? r : copy(fn, s, FLAT(dst, src, n, true, true), true));
}
PAIR(cuMemcpyPeerAsync, _ptsz, (CUdeviceptr dst, CUcontext dctx, CUdeviceptr src, CUcontext sctx, size_t n, CUstream stream),
     (dst, dctx, src, sctx, n, stream))

static CUresult copy2d(enum fn_id fn, bool pt, const CUDA_MEMCPY2D *p, CUstream stream, bool async) {
  ENTER(fn);
  NEED(p);
  NEED_STREAM(c, s, stream, pt);
  struct span2d m = {.width = p->WidthInBytes, .height = p->Height};
  switch (p->srcMemoryType) {
  case CU_MEMORYTYPE_HOST: m.src = p->srcHost; break;
  case CU_MEMORYTYPE_DEVICE: m.src_device = true; // fall through
  case CU_MEMORYTYPE_UNIFIED: m.src = (const void *)(uintptr_t)p->srcDevice; break;
  default: LEAVE(CUDA_ERROR_INVALID_VALUE);
  }
  switch (p->dstMemoryType) {
  case CU_MEMORYTYPE_HOST: m.dst = p->dstHost; break;
  case CU_MEMORYTYPE_DEVICE: m.dst_device = true; // fall through
  case CU_MEMORYTYPE_UNIFIED: m.dst = (void *)(uintptr_t)p->dstDevice; break;
  default: LEAVE(CUDA_ERROR_INVALID_VALUE);
  }
  // A pitch of 0 means rows without a gap.
  m.spitch = p->srcPitch != 0 ? p->srcPitch : p->srcXInBytes + p->WidthInBytes;
  m.dpitch = p->dstPitch != 0 ? p->dstPitch : p->dstXInBytes + p->WidthInBytes;
  if (m.src == NULL || m.dst == NULL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  m.src = (const char *)m.src + p->srcY * m.spitch + p->srcXInBytes;
  m.dst = (char *)m.dst + p->dstY * m.dpitch + p->dstXInBytes;
  LEAVE(copy(fn, s, m, async));
}
static CUresult do_cuMemcpy2D_v2(enum fn_id fn, bool pt, const CUDA_MEMCPY2D *p) { return copy2d(fn, pt, p, NULL, false); }
PAIR(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D *p), (p))
static CUresult do_cuMemcpy2DUnaligned_v2(enum fn_id fn, bool pt, const CUDA_MEMCPY2D *p) {
  return copy2d(fn, pt, p, NULL, false);
}
PAIR(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D *p), (p))
static CUresult do_cuMemcpy2DAsync_v2(enum fn_id fn, bool pt, const CUDA_MEMCPY2D *p, CUstream stream) {
  return copy2d(fn, pt, p, stream, true);
}
PAIR(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D *p, CUstream stream), (p, stream))

// Sets ----------------------------------------------------------------------------

static CUresult set(enum fn_id fn, bool pt, CUdeviceptr dst, unsigned element, unsigned value, size_t width, size_t height,
                    size_t pitch, CUstream stream) {
  ENTER(fn);
  NEED_STREAM(c, s, stream, pt);
  if (width == 0 || height == 0)
    LEAVE(CUDA_SUCCESS);
  size_t row;
  if (__builtin_mul_overflow(width, (size_t)element, &row) || (height > 1 && pitch < row) || dst % element != 0 ||
      !alloc_covers((uintptr_t)dst, extent(row, height, pitch)))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  struct work w = {.kind = W_SET,
                   .dur_ns = -1,
                   .u.s = {.dst = (unsigned char *)(uintptr_t)dst, .value = value, .element = element, .width = width,
                           .height = height, .pitch = pitch}};
  log_line(fn, s, " dst=0x%llx value=0x%x element=%u width=%zu height=%zu", dst, value, element, width, height);
  // Sets without a stream are asynchronous to the host all the same.
  LEAVE(submit(s, &w, NULL));
}

#define SET(name, sfx, params, args, element, width, height, pitch, h)                \
  static CUresult do_##name(enum fn_id fn, bool pt, UNPACK params) {                  \
    return set(fn, pt, dst, element, value, width, height, pitch, h);                 \
  }                                                                                   \
  PAIR(name, sfx, params, args)

SET(cuMemsetD8_v2, _ptds, (CUdeviceptr dst, unsigned char value, size_t n), (dst, value, n), 1, n, 1, n, NULL)
SET(cuMemsetD16_v2, _ptds, (CUdeviceptr dst, unsigned short value, size_t n), (dst, value, n), 2, n, 1, n, NULL)
SET(cuMemsetD32_v2, _ptds, (CUdeviceptr dst, unsigned value, size_t n), (dst, value, n), 4, n, 1, n, NULL)
SET(cuMemsetD8Async, _ptsz, (CUdeviceptr dst, unsigned char value, size_t n, CUstream st), (dst, value, n, st), 1, n, 1, n, st)
SET(cuMemsetD16Async, _ptsz, (CUdeviceptr dst, unsigned short value, size_t n, CUstream st), (dst, value, n, st), 2, n, 1, n, st)
SET(cuMemsetD32Async, _ptsz, (CUdeviceptr dst, unsigned value, size_t n, CUstream st), (dst, value, n, st), 4, n, 1, n, st)
SET(cuMemsetD2D8_v2, _ptds, (CUdeviceptr dst, size_t pitch, unsigned char value, size_t w, size_t h), (dst, pitch, value, w, h),
    1, w, h, pitch, NULL)
SET(cuMemsetD2D8Async, _ptsz, (CUdeviceptr dst, size_t pitch, unsigned char value, size_t w, size_t h, CUstream st),
    (dst, pitch, value, w, h, st), 1, w, h, pitch, st)
SET(cuMemsetD2D32Async, _ptsz, (CUdeviceptr dst, size_t pitch, unsigned value, size_t w, size_t h, CUstream st),
    (dst, pitch, value, w, h, st), 4, w, h, pitch, st)
