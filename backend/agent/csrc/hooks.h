// SPDX-License-Identifier: Apache-2.0
//
// Which functions of the driver are hooked, as X-macros: a kind of call is a
// parameter list and what the agent does around it; a symbol is an exported name
// of one kind. Handles are void *, results and small enumerations int, device
// pointers and generic allocation handles uint64_t, as the ABI has them.
//
// Not hooked, because nothing follows from them: reserving and freeing address
// space (no memory), creating, trimming and destroying pools (what was allocated
// from them counts, and stays allocated), cuGraphExecUpdate (an executable graph
// keeps its nodes), allocations of host memory.
#ifndef LANETRACE_AGENT_HOOKS_H
#define LANETRACE_AGENT_HOOKS_H

#include <stddef.h>
#include <stdint.h>

// cuLaunchKernelEx's first argument.
struct lt_launch_attribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int i;
  } value;
};
struct lt_launch_config {
  unsigned grid[3], block[3], shared;
  void *stream;
  struct lt_launch_attribute *attrs;
  unsigned attr_count;
};

// The attributes that let a kernel begin while the one before it still runs.
enum { LT_ATTR_PROGRAMMATIC_SERIALIZATION = 6, LT_ATTR_PROGRAMMATIC_EVENT = 7 };

#define LT_P_launch \
  void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, \
      void **params, void **extra
#define LT_A_launch f, gx, gy, gz, bx, by, bz, shared, stream, params, extra
#define LT_P_launch_ex const struct lt_launch_config *config, void *f, void **params, void **extra
#define LT_A_launch_ex config, f, params, extra
#define LT_P_launch_coop \
  void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, \
      void **params
#define LT_A_launch_coop f, gx, gy, gz, bx, by, bz, shared, stream, params
#define LT_P_launch_multi void *list, unsigned n, unsigned flags
#define LT_A_launch_multi list, n, flags
#define LT_P_graph_launch void *exec, void *stream
#define LT_A_graph_launch exec, stream
#define LT_P_graph_flags void **exec, void *graph, unsigned long long flags
#define LT_A_graph_flags exec, graph, flags
#define LT_P_graph_log void **exec, void *graph, void **node, char *log, size_t bytes
#define LT_A_graph_log exec, graph, node, log, bytes
#define LT_P_graph_params void **exec, void *graph, void *how
#define LT_A_graph_params exec, graph, how
#define LT_P_graph_destroy void *exec
#define LT_A_graph_destroy exec
#define LT_P_capture_plain void *stream
#define LT_A_capture_plain stream
#define LT_P_capture_begin void *stream, int mode
#define LT_A_capture_begin stream, mode
#define LT_P_capture_graph void *stream, void *graph, void *deps, void *edges, size_t n, int mode
#define LT_A_capture_graph stream, graph, deps, edges, n, mode
#define LT_P_capture_end void *stream, void **graph
#define LT_A_capture_end stream, graph
#define LT_P_mem_alloc uint64_t *p, size_t n
#define LT_A_mem_alloc p, n
#define LT_P_mem_managed uint64_t *p, size_t n, unsigned flags
#define LT_A_mem_managed p, n, flags
#define LT_P_mem_pitch uint64_t *p, size_t *pitch, size_t width, size_t height, unsigned element
#define LT_A_mem_pitch p, pitch, width, height, element
#define LT_P_mem_free uint64_t p
#define LT_A_mem_free p
#define LT_P_mem_async uint64_t *p, size_t n, void *stream
#define LT_A_mem_async p, n, stream
#define LT_P_mem_pool uint64_t *p, size_t n, void *pool, void *stream
#define LT_A_mem_pool p, n, pool, stream
#define LT_P_mem_free_async uint64_t p, void *stream
#define LT_A_mem_free_async p, stream
#define LT_P_vm_create uint64_t *handle, size_t size, const int *prop, unsigned long long flags
#define LT_A_vm_create handle, size, prop, flags
#define LT_P_vm_import uint64_t *handle, void *os, int type
#define LT_A_vm_import handle, os, type
#define LT_P_vm_retain uint64_t *handle, void *address
#define LT_A_vm_retain handle, address
#define LT_P_vm_release uint64_t handle
#define LT_A_vm_release handle
#define LT_P_vm_map uint64_t p, size_t size, size_t offset, uint64_t handle, unsigned long long flags
#define LT_A_vm_map p, size, offset, handle, flags
#define LT_P_vm_unmap uint64_t p, size_t size
#define LT_A_vm_unmap p, size
#define LT_P_module_function void **f, void *module, const char *name
#define LT_A_module_function f, module, name
#define LT_P_library_kernel void **kernel, void *library, const char *name
#define LT_A_library_kernel kernel, library, name
#define LT_P_kernel_function void **f, void *kernel
#define LT_A_kernel_function f, kernel
#define LT_P_unload void *module
#define LT_A_unload module
#define LT_P_context_v2 void **context, unsigned flags, int device
#define LT_A_context_v2 context, flags, device
#define LT_P_context_v3 void **context, void *affinity, int n, unsigned flags, int device
#define LT_A_context_v3 context, affinity, n, flags, device
#define LT_P_context_v4 void **context, void *how, unsigned flags, int device
#define LT_A_context_v4 context, how, flags, device
#define LT_P_context_destroy void *context
#define LT_A_context_destroy context
#define LT_P_primary_retain void **context, int device
#define LT_A_primary_retain context, device
#define LT_P_primary_release int device
#define LT_A_primary_release device
#define LT_P_primary_reset int device
#define LT_A_primary_reset device
#define LT_P_stream_destroy void *stream
#define LT_A_stream_destroy stream
#define LT_P_proc const char *name, void **f, int version, uint64_t flags
#define LT_A_proc name, f, version, flags
#define LT_P_proc_v2 const char *name, void **f, int version, uint64_t flags, int *status
#define LT_A_proc_v2 name, f, version, flags, status

#define LT_KINDS(K)                                                                                               \
  K(launch) K(launch_ex) K(launch_coop) K(launch_multi) K(graph_launch) K(graph_flags) K(graph_log)               \
  K(graph_params) K(graph_destroy) K(capture_plain) K(capture_begin) K(capture_graph) K(capture_end)              \
  K(mem_alloc) K(mem_managed) K(mem_pitch) K(mem_free) K(mem_async) K(mem_pool) K(mem_free_async)                 \
  K(vm_create) K(vm_import) K(vm_retain) K(vm_release) K(vm_map) K(vm_unmap)                                      \
  K(module_function) K(library_kernel) K(kernel_function) K(unload)                                               \
  K(context_v2) K(context_v3) K(context_v4) K(context_destroy) K(primary_retain) K(primary_release)               \
  K(primary_reset) K(stream_destroy) K(proc) K(proc_v2)

// S(kind, symbol, base, since): an exported name. T is S, and the same for the
// variant whose NULL stream is the per-thread default stream. O(base, symbol, since):
// a variant that cuGetProcAddress gives programs of such an old CUDA that it is left
// alone. A(kind, base, since): a further name for it there.
#define LT_SYMBOLS(S, T, O, A)                                              \
  T(launch, cuLaunchKernel, cuLaunchKernel, 4000)                           \
  T(launch_ex, cuLaunchKernelEx, cuLaunchKernelEx, 11060)                   \
  T(launch_coop, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000) \
  S(launch_multi, cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice, 9000) \
  T(graph_launch, cuGraphLaunch, cuGraphLaunch, 10000)                      \
  S(graph_log, cuGraphInstantiate, cuGraphInstantiate, 10000)               \
  S(graph_log, cuGraphInstantiate_v2, cuGraphInstantiate, 11000)            \
  A(graph_flags, cuGraphInstantiate, 12000)                                 \
  S(graph_flags, cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040) \
  T(graph_params, cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, 12000) \
  S(graph_destroy, cuGraphExecDestroy, cuGraphExecDestroy, 10000)           \
  T(capture_plain, cuStreamBeginCapture, cuStreamBeginCapture, 10000)       \
  T(capture_begin, cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010)    \
  T(capture_graph, cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 12030) \
  T(capture_end, cuStreamEndCapture, cuStreamEndCapture, 10000)             \
  O(cuMemAlloc, cuMemAlloc, 2000)                                           \
  S(mem_alloc, cuMemAlloc_v2, cuMemAlloc, 3020)                             \
  S(mem_managed, cuMemAllocManaged, cuMemAllocManaged, 6000)                \
  O(cuMemAllocPitch, cuMemAllocPitch, 2000)                                 \
  S(mem_pitch, cuMemAllocPitch_v2, cuMemAllocPitch, 3020)                   \
  O(cuMemFree, cuMemFree, 2000)                                             \
  S(mem_free, cuMemFree_v2, cuMemFree, 3020)                                \
  T(mem_async, cuMemAllocAsync, cuMemAllocAsync, 11020)                     \
  T(mem_pool, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020)      \
  T(mem_free_async, cuMemFreeAsync, cuMemFreeAsync, 11020)                  \
  S(vm_create, cuMemCreate, cuMemCreate, 10020)                             \
  S(vm_import, cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020) \
  S(vm_retain, cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000) \
  S(vm_release, cuMemRelease, cuMemRelease, 10020)                          \
  S(vm_map, cuMemMap, cuMemMap, 10020)                                      \
  S(vm_unmap, cuMemUnmap, cuMemUnmap, 10020)                                \
  S(module_function, cuModuleGetFunction, cuModuleGetFunction, 2000)        \
  S(library_kernel, cuLibraryGetKernel, cuLibraryGetKernel, 12000)          \
  S(kernel_function, cuKernelGetFunction, cuKernelGetFunction, 12000)       \
  S(unload, cuModuleUnload, cuModuleUnload, 2000)                           \
  S(unload, cuLibraryUnload, cuLibraryUnload, 12000)                        \
  O(cuCtxCreate, cuCtxCreate, 2000)                                         \
  S(context_v2, cuCtxCreate_v2, cuCtxCreate, 3020)                          \
  S(context_v3, cuCtxCreate_v3, cuCtxCreate, 11040)                         \
  S(context_v4, cuCtxCreate_v4, cuCtxCreate, 12050)                         \
  S(context_destroy, cuCtxDestroy, cuCtxDestroy, 2000)                      \
  S(context_destroy, cuCtxDestroy_v2, cuCtxDestroy, 4000)                   \
  S(primary_retain, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000) \
  S(primary_release, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000) \
  S(primary_release, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000) \
  S(primary_reset, cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000)  \
  S(primary_reset, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000) \
  S(stream_destroy, cuStreamDestroy, cuStreamDestroy, 2000)                 \
  S(stream_destroy, cuStreamDestroy_v2, cuStreamDestroy, 4000)              \
  S(proc, cuGetProcAddress, cuGetProcAddress, 11030)                        \
  S(proc_v2, cuGetProcAddress_v2, cuGetProcAddress, 12000)

#endif
