// SPDX-License-Identifier: Apache-2.0
//
// The driver as the agent calls it itself: the few entry points that telemetry
// needs, found past the agent's own hooks, so that a call of ours is never seen
// as the program's. Nothing here knows how they are found; who hooks the program
// looks them up with what finds the real functions.
//
// No header of CUDA's is needed: what is used of its interface is declared here.
#ifndef LANETRACE_AGENT_DRIVER_H
#define LANETRACE_AGENT_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t lt_result; // CUresult; 0 is success

enum { LT_OK = 0, LT_INVALID_VALUE = 1, LT_INVALID_CONTEXT = 201, LT_NOT_READY = 600 };

// Stream handles that mean a default stream. A hook of a *_ptsz or *_ptds variant
// passes LT_STREAM_PER_THREAD on where the program passed NULL.
#define LT_STREAM_LEGACY ((void *)1)
#define LT_STREAM_PER_THREAD ((void *)2)

// By exported name. Of functions with a per-thread variant these are the plain
// ones: the zero stream is the legacy default.
#define LT_DRIVER_REQUIRED(X)                                                                                      \
  X(cuCtxGetCurrent, (void **))                                                                                    \
  X(cuCtxPushCurrent_v2, (void *))                                                                                 \
  X(cuCtxPopCurrent_v2, (void **))                                                                                 \
  X(cuCtxGetDevice, (int *))                                                                                       \
  X(cuDeviceGetName, (char *, int, int))                                                                           \
  X(cuDeviceGetAttribute, (int *, int, int))                                                                       \
  X(cuStreamCreate, (void **, unsigned))                                                                           \
  X(cuStreamDestroy_v2, (void *))                                                                                  \
  X(cuStreamIsCapturing, (void *, int *))                                                                          \
  X(cuThreadExchangeStreamCaptureMode, (int *))                                                                    \
  X(cuEventCreate, (void **, unsigned))                                                                            \
  X(cuEventDestroy_v2, (void *))                                                                                   \
  X(cuEventRecord, (void *, void *))                                                                               \
  X(cuEventElapsedTime, (float *, void *, void *))                                                                 \
  X(cuModuleLoadDataEx, (void **, const void *, unsigned, int *, void **))                                         \
  X(cuModuleUnload, (void *))                                                                                      \
  X(cuModuleGetFunction, (void **, void *, const char *))                                                          \
  X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, \
                     void **))

// Entry points that older drivers lack.
#define LT_DRIVER_OPTIONAL(X)                      \
  X(cuDeviceGetUuid, (void *, int))                \
  X(cuDeviceGetUuid_v2, (void *, int))             \
  X(cuEventElapsedTime_v2, (float *, void *, void *))

typedef struct lt_driver {
#define X(name, params) lt_result(*name) params;
  LT_DRIVER_REQUIRED(X)
  LT_DRIVER_OPTIONAL(X)
#undef X
  // The later of the two: it reads stamps and leaves the context's latest error
  // to others.
  lt_result (*elapsed)(float *ms, void *start, void *end);
} lt_driver;

// lt_lookup finds a function of the driver by its exported name, NULL if there is
// none. user is lt_driver_resolve's.
typedef void *(*lt_lookup)(void *user, const char *name);

// lt_driver_resolve fills *d. It returns NULL, or the name of the first required
// function that is missing, and then *d must not be used. It makes no driver call.
const char *lt_driver_resolve(lt_driver *d, lt_lookup find, void *user);

#endif
