/* SPDX-License-Identifier: Apache-2.0
 *
 * lanetrace.h: marks for engines that run under liblanetrace.so and want their
 * steps and lanes exact, instead of having them found from NVTX ranges.
 *
 * Nothing has to be linked. Each function looks its namesake up once, in the
 * library that `lanetrace run` has preloaded; where that is not loaded it does
 * nothing, and so it does while telemetry is off. From Python the same functions are
 * called by ctypes.CDLL(None): see examples/python.
 *
 * A step is one pass of the engine; a lane is a part of it on one stream, timed on the
 * GPU's clock from what is queued there when it begins to what is queued there when it
 * ends. All functions may be called from any thread and wait for nothing. At level off
 * each is a load and a return; a lane costs two event records.
 *
 * Programs that use this header on glibc before 2.34 link with -ldl.
 */
#ifndef LANETRACE_H
#define LANETRACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t lanetrace_step; /* 0 is none, with which every function does nothing */
typedef uint64_t lanetrace_lane; /* likewise */

enum { LANETRACE_GRAPH_UNKNOWN = 0, LANETRACE_GRAPH_EAGER = 1, LANETRACE_GRAPH_REPLAY = 2, LANETRACE_GRAPH_MIXED = 3 };

/* X(result, name, parameters, arguments, what it returns without the library)
 *
 * lanetrace_level        the level in force: 0 off, 1 basic, 2 lane, 3 kernel; off too
 *                        before the process has a CUDA context, and without the library.
 * lanetrace_step_begin   begins a step. Steps may overlap. Once a program has begun one,
 *                        NVTX ranges are lanes only and nothing stands in for steps.
 * lanetrace_step_end     ends it on the host; its work may still run.
 * lanetrace_step_attributes  says what the step works on: sequences, tokens generated,
 *                        prompt tokens processed, LANETRACE_GRAPH_...; the last call counts.
 * lanetrace_step_link    links it to a request: a W3C traceparent. -1 for no such text.
 * lanetrace_lane_begin   begins a lane of the step on a stream (a CUstream, that is a
 *                        cudaStream_t; NULL is the default stream) of the calling thread's
 *                        current context. The name is copied the first time it is seen.
 *                        At most 1,024 are open at once, of the process; one more is none.
 * lanetrace_lane_end     ends it, on any thread.
 * lanetrace_request_end  says that a request has ended: its traceparent, when it began and
 *                        ended on CLOCK_MONOTONIC in ns, prompt and output tokens. -1 for no
 *                        traceparent.
 * lanetrace_now          CLOCK_MONOTONIC in ns; 0 without the library.
 */
#define LANETRACE_FUNCTIONS(X)                                                                                  \
  X(int, lanetrace_level, (void), (), 0)                                                                        \
  X(lanetrace_step, lanetrace_step_begin, (void), (), 0)                                                        \
  X(int, lanetrace_step_end, (lanetrace_step step), (step), 0)                                                  \
  X(int, lanetrace_step_attributes,                                                                             \
    (lanetrace_step step, uint32_t batch_size, uint32_t decode_tokens, uint32_t prefill_tokens, int graph_mode), \
    (step, batch_size, decode_tokens, prefill_tokens, graph_mode), 0)                                           \
  X(int, lanetrace_step_link, (lanetrace_step step, const char *traceparent), (step, traceparent), 0)           \
  X(lanetrace_lane, lanetrace_lane_begin, (lanetrace_step step, const char *name, void *stream),                \
    (step, name, stream), 0)                                                                                    \
  X(int, lanetrace_lane_end, (lanetrace_lane lane), (lane), 0)                                                  \
  X(int, lanetrace_request_end,                                                                                 \
    (const char *traceparent, int64_t begin_ns, int64_t end_ns, uint32_t prompt_tokens, uint32_t output_tokens), \
    (traceparent, begin_ns, end_ns, prompt_tokens, output_tokens), 0)                                           \
  X(int64_t, lanetrace_now, (void), (), 0)

#ifndef LANETRACE_IMPLEMENTATION

/* dlsym, declared as dlfcn.h does. */
extern void *dlsym(void *__restrict handle, const char *__restrict name)
#ifdef __cplusplus
    throw()
#endif
    ;

#define LANETRACE_DEFINE(result, name, parameters, arguments, otherwise)                \
  __attribute__((unused)) static inline result name parameters {                        \
    typedef result(*function) parameters;                                               \
    static function known;                                                              \
    static int looked;                                                                  \
    if (!__atomic_load_n(&looked, __ATOMIC_ACQUIRE)) {                                  \
      void *p = dlsym((void *)0, #name);                                                \
      __builtin_memcpy(&known, &p, sizeof p);                                           \
      __atomic_store_n(&looked, 1, __ATOMIC_RELEASE);                                   \
    }                                                                                   \
    return known != NULL ? known arguments : (result)(otherwise);                       \
  }
LANETRACE_FUNCTIONS(LANETRACE_DEFINE)
#undef LANETRACE_DEFINE

#endif

#ifdef __cplusplus
}
#endif
#endif
