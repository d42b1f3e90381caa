// SPDX-License-Identifier: Apache-2.0
//
// Finding functions, and the names of errors.

#include "internal.h"

struct proc {
  const char *base, *symbol;
  int version;
  void *legacy, *per_thread;
};

#define FNPTR(f) ((void *)(uintptr_t)(f))
static const struct proc procs[] = {
#define F(sym, base, ver) {#base, #sym, ver, FNPTR(sym), FNPTR(sym)},
#define S(sym, sfx, base, ver) {#base, #sym, ver, FNPTR(sym), FNPTR(sym##sfx)},
#include "functions.h"
#undef F
#undef S
};

static CUresult get_proc(const char *symbol, void **pfn, int version, uint64_t flags, int *status) {
  const uint64_t known_flags = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (symbol == NULL || pfn == NULL || flags & ~known_flags || version > DRIVER_VERSION)
    return CUDA_ERROR_INVALID_VALUE;
  const struct proc *best = NULL;
  bool known = false;
  for (size_t i = 0; i < sizeof procs / sizeof procs[0]; i++) {
    const struct proc *p = &procs[i];
    if (strcmp(p->base, symbol) != 0 || symbol_hidden(p->base) || symbol_hidden(p->symbol))
      continue;
    known = true;
    if (p->version <= version && (best == NULL || p->version > best->version))
      best = p;
  }
  if (status != NULL)
    *status = best != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
              : known      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                           : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (best == NULL)
    return CUDA_ERROR_NOT_FOUND;
  *pfn = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? best->per_thread : best->legacy;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags) {
  ENTER(FN_cuGetProcAddress);
  LEAVE(get_proc(symbol, pfn, version, flags, NULL));
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status) {
  ENTER(FN_cuGetProcAddress_v2);
  // Not to be found is no error here: the status says it, and the pointer.
  int st = CU_GET_PROC_ADDRESS_SUCCESS;
  CUresult r = get_proc(symbol, pfn, version, flags, &st);
  if (r == CUDA_ERROR_NOT_FOUND) {
    *pfn = NULL;
    r = CUDA_SUCCESS;
  }
  if (r == CUDA_SUCCESS && status != NULL)
    *status = st;
  LEAVE(r);
}

static const struct {
  CUresult code;
  const char *name, *text;
} errors[] = {
#define E(code, text) {CUDA_##code, "CUDA_" #code, text}
    E(SUCCESS, "no error"),
    E(ERROR_INVALID_VALUE, "invalid argument"),
    E(ERROR_OUT_OF_MEMORY, "out of memory"),
    E(ERROR_NOT_INITIALIZED, "initialization error"),
    E(ERROR_DEINITIALIZED, "driver shutting down"),
    E(ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    E(ERROR_INVALID_DEVICE, "invalid device ordinal"),
    E(ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    E(ERROR_INVALID_CONTEXT, "invalid device context"),
    E(ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    E(ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    E(ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain."),
    E(ERROR_FILE_NOT_FOUND, "file not found"),
    E(ERROR_INVALID_HANDLE, "invalid resource handle"),
    E(ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    E(ERROR_NOT_FOUND, "named symbol not found"),
    E(ERROR_NOT_READY, "device not ready"),
    E(ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    E(ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    E(ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    E(ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    E(ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    E(ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    E(ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    E(ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    E(ERROR_NOT_PERMITTED, "operation not permitted"),
    E(ERROR_NOT_SUPPORTED, "operation not supported"),
    E(ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    E(ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    E(ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    E(ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    E(ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    E(ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    E(ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream"),
    E(ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    E(ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread"),
    E(ERROR_UNKNOWN, "unknown error"),
#undef E
};

static CUresult error_text(enum fn_id fn, CUresult error, const char **str, bool name) {
  ENTER(fn);
  NEED(str);
  *str = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
    if (errors[i].code == error) {
      *str = name ? errors[i].name : errors[i].text;
      LEAVE(CUDA_SUCCESS);
    }
  LEAVE(CUDA_ERROR_INVALID_VALUE);
}
EXPORT CUresult cuGetErrorName(CUresult error, const char **str) {
  return error_text(FN_cuGetErrorName, error, str, true);
}
EXPORT CUresult cuGetErrorString(CUresult error, const char **str) {
  return error_text(FN_cuGetErrorString, error, str, false);
}
