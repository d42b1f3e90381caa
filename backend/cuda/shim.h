// SPDX-License-Identifier: Apache-2.0
//
// The C side of the binding: the CUDA driver library, found at run time, and one
// function here for each operation there, so that an operation is one crossing
// from Go whatever it takes of the driver. Nothing here allocates on a hot path,
// keeps a pointer to memory that was passed in, or calls back.
//
// Every function that takes an lt_ctx makes its context the calling thread's for
// as long as it runs and puts back what was there: the thread may be another
// library's guest. Functions marked [relaxed] exchange the thread's capture mode
// to RELAXED meanwhile, so that they neither fail during nor spoil somebody's
// capture.
//
// No header of CUDA's is needed: what is used of its interface is declared here.
#ifndef LANETRACE_CUDA_SHIM_H
#define LANETRACE_CUDA_SHIM_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t lt_result;  // CUresult
typedef uintptr_t lt_handle; // CUstream, CUevent, CUmodule, CUfunction, CUgraphExec
typedef uint64_t lt_devptr; // CUdeviceptr

enum { LT_NOT_READY = 600, LT_CAPTURING = -1 };

typedef struct lt_lib lt_lib;

typedef struct lt_ctx {
  const lt_lib *lib;
  void *ctx;
  int device;
} lt_ctx;

// Loading -------------------------------------------------------------------

// lt_open loads the library and looks up its entry points. NULL: message says
// why, and missing which entry point it lacks, if that is why.
lt_lib *lt_open(const char *path, char *message, size_t message_bytes, char *missing, size_t missing_bytes);

// lt_close frees the table. The library stays loaded: drivers do not like to go.
void lt_close(lt_lib *lib);

// What a library has that not every driver has.
enum { LT_HAS_STREAM_ID = 1, LT_HAS_PARAM_INFO = 2, LT_HAS_UUID = 4, LT_HAS_ELAPSED_V2 = 8 };
int lt_features(const lt_lib *lib);

// lt_error_name is the driver's name for a result, NULL if it has none.
const char *lt_error_name(const lt_lib *lib, lt_result r);

// Device and context ---------------------------------------------------------

typedef struct lt_device {
  int32_t version; // of the driver, major*1000 + minor*10
  int32_t count;
  int32_t capability; // major*10 + minor
  int32_t sms;
  int32_t mig;
  int32_t integrated;
  uint64_t total_bytes;
  uint8_t uuid[16];
  char name[256];
} lt_device;

// lt_init initialises the driver and describes a device. *step is what failed.
enum { LT_STEP_INIT = 1, LT_STEP_COUNT, LT_STEP_ORDINAL, LT_STEP_DESCRIBE };
lt_result lt_init(const lt_lib *lib, int ordinal, lt_device *out, int *step);

// lt_retain takes a reference to the device's primary context.
lt_result lt_retain(const lt_lib *lib, int ordinal, lt_ctx **out);
// lt_release gives it back and frees c.
lt_result lt_release(lt_ctx *c);

lt_result lt_mem_info(lt_ctx *c, uint64_t *free_bytes, uint64_t *total_bytes);

// Modules ---------------------------------------------------------------------

// lt_module_load loads a NUL-terminated image. log gets the compiler's words.
lt_result lt_module_load(lt_ctx *c, const void *image, lt_handle *module, char *log, size_t log_bytes);
lt_result lt_module_unload(lt_ctx *c, lt_handle module);
// lt_function looks a function up; *count is its number of parameters and sizes
// their sizes, or *count is -1 where the driver cannot say.
lt_result lt_function(lt_ctx *c, lt_handle module, const char *name, lt_handle *fn, uint32_t *sizes, int max, int *count);

// Streams and events ------------------------------------------------------------

lt_result lt_stream_create(lt_ctx *c, lt_handle *s);
lt_result lt_stream_destroy(lt_ctx *c, lt_handle s);
lt_result lt_stream_sync(lt_ctx *c, lt_handle s);
lt_result lt_stream_query(lt_ctx *c, lt_handle s);
// lt_stream_quiet is lt_stream_query that leaves a capture alone: LT_CAPTURING.
lt_result lt_stream_quiet(lt_ctx *c, lt_handle s);
lt_result lt_stream_wait(lt_ctx *c, lt_handle s, lt_handle e);
int lt_stream_capturing(lt_ctx *c, lt_handle s); // 0: no; also 1 when that cannot be had

lt_result lt_event_create(lt_ctx *c, lt_handle *e); // without time stamps
lt_result lt_event_destroy(lt_ctx *c, lt_handle e);
lt_result lt_event_record(lt_ctx *c, lt_handle e, lt_handle s);
lt_result lt_event_query(lt_ctx *c, lt_handle e);
lt_result lt_event_sync(lt_ctx *c, lt_handle e);

// Captures ------------------------------------------------------------------------

lt_result lt_capture_begin(lt_ctx *c, lt_handle s, int mode);
// lt_capture_end ends a capture and instantiates its graph. *step is what failed.
enum { LT_STEP_END = 1, LT_STEP_INSTANTIATE, LT_STEP_NODES };
lt_result lt_capture_end(lt_ctx *c, lt_handle s, lt_handle *exec, uint64_t *nodes, int *step);
void lt_capture_abort(lt_ctx *c, lt_handle s);
lt_result lt_graph_destroy(lt_ctx *c, lt_handle exec);

// Launches --------------------------------------------------------------------------

// An argument's value, in its first size bytes.
typedef struct lt_arg {
  uint64_t bits;
  uint8_t size;
} lt_arg;

enum { LT_MAX_ARGS = 64 };

// A kernel launch, or with exec a graph launch.
typedef struct lt_launch_desc {
  lt_handle fn, exec, stream;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  uint32_t nargs; // LT_MAX_ARGS at most
  uint32_t form;  // LT_ARGS…
} lt_launch_desc;

// What a launch's arguments are.
enum {
  LT_ARGS = 0,    // lt_arg[nargs]
  LT_FLAT = 1,    // lt_flat
  LT_POINTERS = 2 // uintptr_t[nargs], the addresses of their values
};
enum { LT_MAX_PARAM_BYTES = 4096 };
typedef struct lt_flat {
  uint32_t at[LT_MAX_ARGS]; // where in bytes each value begins
  _Alignas(16) uint8_t bytes[LT_MAX_PARAM_BYTES];
} lt_flat;

typedef struct lt_launch_result {
  int32_t capturing, start_recorded, end_recorded, pending;
  lt_result start, launch, end;
  int32_t calls; // beyond those of a plain launch
} lt_launch_result;

lt_result lt_launch(lt_ctx *c, const lt_launch_desc *d, const void *args);
// lt_launch_timed records start before and end behind the launch. On a capturing
// stream it launches and records nothing.
void lt_launch_timed(lt_ctx *c, const lt_launch_desc *d, const void *args, lt_handle start, lt_handle end,
                     lt_launch_result *out);

// Memory ------------------------------------------------------------------------------

lt_result lt_alloc(lt_ctx *c, uint64_t bytes, lt_devptr *p);
lt_result lt_alloc_managed(lt_ctx *c, uint64_t bytes, lt_devptr *p);
lt_result lt_free(lt_ctx *c, lt_devptr p);
lt_result lt_host_alloc(lt_ctx *c, size_t bytes, void **p); // [relaxed]
lt_result lt_host_free(lt_ctx *c, void *p);                 // [relaxed]
// Blocking, ordered on s. On a capturing stream they do nothing and return
// LT_CAPTURING.
lt_result lt_copy_htod(lt_ctx *c, lt_devptr dst, const void *src, size_t bytes, lt_handle s);
lt_result lt_copy_dtoh(lt_ctx *c, void *dst, lt_devptr src, size_t bytes, lt_handle s);
// lt_copy_htod_staged enqueues a copy and records done behind it. On a capturing
// stream it does nothing and returns LT_CAPTURING.
lt_result lt_copy_htod_staged(lt_ctx *c, lt_devptr dst, const void *src, size_t bytes, lt_handle s, lt_handle done);
lt_result lt_copy_htod_captured(lt_ctx *c, lt_devptr dst, const void *src, size_t bytes, lt_handle s);
// Copies from and to memory that stays until s was waited for. On a capturing
// stream, unless captured, they do nothing and return LT_CAPTURING.
lt_result lt_copy_htod_kept(lt_ctx *c, lt_devptr dst, const void *src, size_t bytes, lt_handle s, int captured);
lt_result lt_copy_dtoh_kept(lt_ctx *c, void *dst, lt_devptr src, size_t bytes, lt_handle s, int captured);
// lt_copy_dtod_2d copies rows of width bytes.
lt_result lt_copy_dtod_2d(lt_ctx *c, lt_devptr dst, size_t dst_pitch, lt_devptr src, size_t src_pitch, size_t width,
                          size_t height, lt_handle s);
lt_result lt_host_device_ptr(lt_ctx *c, void *host, lt_devptr *p);
// lt_bind makes the context the calling thread's, for good.
lt_result lt_bind(lt_ctx *c);
// lt_module_word reads a 32-bit global of a module's, on a stream made for it.
// [relaxed]
lt_result lt_module_word(lt_ctx *c, lt_handle module, const char *name, uint32_t *value);
// lt_staged_wait asks about, or with block waits for, a staged copy. [relaxed]
lt_result lt_staged_wait(lt_ctx *c, lt_handle done, int block);
// With block they wait, and return LT_CAPTURING on a capturing stream.
lt_result lt_copy_dtod(lt_ctx *c, lt_devptr dst, lt_devptr src, size_t bytes, lt_handle s, int block);
lt_result lt_memset(lt_ctx *c, lt_devptr p, uint8_t value, size_t bytes, lt_handle s, int block);

// Guard bands, on a stream of their own. [relaxed]
typedef struct lt_band_read {
  lt_devptr addr;
  uint64_t at, bytes; // where in the buffer, and how many
  uint64_t bands;     // for the caller
} lt_band_read;
lt_result lt_band_fill(lt_ctx *c, lt_devptr p, uint8_t value, size_t bytes, lt_handle s, int wait);
// lt_band_read_all copies to page-locked memory and waits once.
lt_result lt_band_read_all(lt_ctx *c, void *buffer, const lt_band_read *reads, size_t n, lt_handle s);
// lt_stream_settle waits for a stream. On one that is being captured it does
// nothing and returns LT_CAPTURING. [relaxed]
lt_result lt_stream_settle(lt_ctx *c, lt_handle s);

// Telemetry -----------------------------------------------------------------------------

typedef struct lt_pair {
  lt_handle start, end;
} lt_pair;

typedef struct lt_times {
  float duration_ms, since_anchor_ms;
  lt_result since;
} lt_times;

lt_result lt_tel_events_create(lt_ctx *c, lt_handle *events, size_t n);        // [relaxed] all or none
lt_result lt_tel_events_destroy(lt_ctx *c, const lt_handle *events, size_t n); // [relaxed]
lt_result lt_tel_stream_create(lt_ctx *c, lt_handle *s);                       // [relaxed]
lt_result lt_tel_stream_destroy(lt_ctx *c, lt_handle s);                       // [relaxed]
lt_result lt_tel_stream_id(lt_ctx *c, lt_handle s, uint64_t *id);              // [relaxed]

typedef struct lt_recorded {
  int32_t capturing;
  lt_result result;
  int32_t calls;
} lt_recorded;
// lt_tel_record_external records an event in the capture of s.
lt_result lt_tel_record_external(lt_ctx *c, lt_handle e, lt_handle s);
void lt_tel_record(lt_ctx *c, lt_handle e, lt_handle s, lt_recorded *out);

typedef struct lt_elapsed_result {
  int32_t n, calls;
  lt_result result;
} lt_elapsed_result;
void lt_tel_elapsed(lt_ctx *c, lt_handle anchor, const lt_pair *pairs, lt_times *out, size_t n, lt_elapsed_result *res);
lt_result lt_tel_pending(lt_ctx *c, lt_handle e);
lt_result lt_tel_since(lt_ctx *c, lt_handle a, lt_handle b, float *ms);

typedef struct lt_anchor_try {
  int64_t before_ns, after_ns; // CLOCK_MONOTONIC
  lt_result result;
  int32_t calls;
} lt_anchor_try;
void lt_tel_anchor(lt_ctx *c, lt_handle e, lt_handle s, int64_t bound_ns, lt_anchor_try *out);

// lt_tel_spin_load loads the spin kernel. [relaxed]
lt_result lt_tel_spin_load(lt_ctx *c, lt_handle *module, lt_handle *fn);
lt_result lt_tel_module_unload(lt_ctx *c, lt_handle module); // [relaxed]
// lt_tel_spin enqueues it, between two event records if start is not 0. [relaxed]
lt_result lt_tel_spin(lt_ctx *c, lt_handle fn, lt_handle s, uint64_t cycles, lt_handle start, lt_handle end);

// Fork ----------------------------------------------------------------------------------

// lt_fork_guard makes a child of fork() close descriptor fd, as long as it still
// is the file that it is now. A ring's lock belongs to the open file: as long as a
// child keeps it, the dead engine looks alive. Returns 0, or an errno.
int lt_fork_guard(int fd);

#endif
