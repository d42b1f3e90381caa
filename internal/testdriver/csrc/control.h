// SPDX-License-Identifier: Apache-2.0
//
// What a test may ask of the stand-in driver beyond the driver's own
// interface. All of it is found with dlsym in the same libcuda.so.1, none of
// it is counted as a driver call, and all of it may be called from any thread
// at any time, before cuInit too.
//
// Settings with an environment variable beside them can be given to whole
// programs; the variables are read once, when the library is loaded.
#ifndef LT_TESTDRIVER_CONTROL_H
#define LT_TESTDRIVER_CONTROL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// lt_testdriver_reset puts every setting, fault and counter back to what it
// was when the library was loaded, forgets registered kernels and closes the
// log. It leaves contexts, streams and memory alone.
void lt_testdriver_reset(void);

// Kernels ------------------------------------------------------------------

// A kernel's body. params[i] points at the launch's own copy of parameter i.
// It runs on the stream's worker thread, once a launch, when the kernel's time
// is over and before anything can see it complete.
typedef void (*lt_testdriver_kernel_fn)(void **params, const unsigned grid[3], const unsigned block[3]);

// lt_testdriver_set_kernel gives entries of that name a body; NULL takes it
// away. Launches already enqueued keep the body they had. Returns 0, or -1 out
// of memory.
int lt_testdriver_set_kernel(const char *name, lt_testdriver_kernel_fn fn);

// lt_testdriver_set_kernel_ns sets how long a kernel of that name takes on the
// GPU; name NULL sets the time of those without one (default 5,000;
// LANETRACE_TESTDRIVER_KERNEL_NS); a negative time takes the setting back.
int lt_testdriver_set_kernel_ns(const char *name, int64_t ns);

// lt_spin(cycles) takes cycles / 1.98 GHz plus this (default 523).
void lt_testdriver_set_spin_fixed_ns(int64_t ns);

// Time ---------------------------------------------------------------------

// The GPU's clock reads CLOCK_MONOTONIC + offset + drift since this call,
// stepping in units of 32 ns. (LANETRACE_TESTDRIVER_CLOCK_OFFSET_NS,
// LANETRACE_TESTDRIVER_CLOCK_DRIFT_PPB; drift then counts from loading.)
void lt_testdriver_set_clock(int64_t offset_ns, int64_t drift_ppb);

// lt_testdriver_gpu_ns is what the GPU's clock reads at mono_ns, unquantised.
int64_t lt_testdriver_gpu_ns(int64_t mono_ns);

// lt_testdriver_event_time says when a completed, timed event was really
// recorded: on CLOCK_MONOTONIC and on the GPU's clock as stamped. It is the
// truth to hold a clock mapping against. Returns 0, or a CUresult as
// cuEventElapsedTime(event, event) would.
int lt_testdriver_event_time(void *event, int64_t *mono_ns, int64_t *gpu_ns);

// A timed event record occupies the stream this long (default 1,460;
// LANETRACE_TESTDRIVER_RECORD_NS); the stamp is taken at its end.
void lt_testdriver_set_record_ns(int64_t ns);

// A kernel right behind a timed record on its stream starts this much later
// (default 0; LANETRACE_TESTDRIVER_AFTER_RECORD_NS). 1,580 makes a pair's
// excess over its kernel 3,040 ns, as measured on an H200.
void lt_testdriver_set_after_record_ns(int64_t ns);

// Work starts no earlier than this after its enqueue (default 4,000;
// LANETRACE_TESTDRIVER_LAUNCH_LATENCY_NS).
void lt_testdriver_set_launch_latency_ns(int64_t ns);

// A copy or set takes fixed_ns + bytes / bytes_per_us microseconds (default
// 1,500 and 50,000).
void lt_testdriver_set_copy_cost(int64_t fixed_ns, int64_t bytes_per_us);

// lt_testdriver_set_call_ns makes every call of that driver function take the
// host at least so long. Returns 0, or -1 if there is no such function.
int lt_testdriver_set_call_ns(const char *function, int64_t ns);

// lt_testdriver_stall_stream(stream, 1) makes the stream complete nothing, a
// work item already begun included, until lt_testdriver_stall_stream(stream,
// 0). What was held back happens, and is stamped, after the release. NULL, 1
// and 2 are the current context's default streams. Returns a CUresult.
int lt_testdriver_stall_stream(void *stream, int on);

// Device -------------------------------------------------------------------

// All devices' memory, rounded down to 2 MiB (default 139 GiB;
// LANETRACE_TESTDRIVER_TOTAL_MEMORY, in bytes). LANETRACE_TESTDRIVER_DEVICES
// (default 1, at most 16) sets how many devices there are.
void lt_testdriver_set_total_memory(uint64_t bytes);

// What CU_DEVICE_ATTRIBUTE_INTEGRATED says (default 0;
// LANETRACE_TESTDRIVER_INTEGRATED).
void lt_testdriver_set_integrated(int on);

// Graphs -------------------------------------------------------------------

// After how many calls of cuGraphExecEventRecordNodeSetEvent on a node the
// events put in can no longer be timed: cuEventElapsedTime then says 400. < 0
// is never, the default and what driver 580 was seen to do; 1 is what another
// measurement saw.
void lt_testdriver_set_swap_limit(int times);

// Faults -------------------------------------------------------------------

// lt_testdriver_fail makes calls of a driver function return result without
// doing anything else: the first skip calls from now on pass, then times calls
// fail (0: all). function is the exported symbol ("cuMemAlloc_v2",
// "cuLaunchKernel_ptsz"); "*" is every function. Several rules may stand for
// one function, each counting for itself; the earliest that fails decides.
// Returns 0, or -1 if there is no such function.
// LANETRACE_TESTDRIVER_FAIL="function:result:skip:times,..." (the last two may
// be left out).
int lt_testdriver_fail(const char *function, int result, int skip, int times);

// lt_testdriver_clear_faults takes all rules back, and the sticky error too.
void lt_testdriver_clear_faults(void);

// lt_testdriver_set_sticky makes every call that needs a context, and every
// wait already under way, return result: what a kernel's illegal address does
// to a context.
void lt_testdriver_set_sticky(int result);

// lt_testdriver_hide makes cuGetProcAddress not find a symbol, by base name or
// by exported name (LANETRACE_TESTDRIVER_HIDE="a,b"). dlsym still finds it:
// for that, build the library without it (BuildWithout in testdriver.go).
int lt_testdriver_hide(const char *symbol, int on);

// Watching -----------------------------------------------------------------

// How often a driver function was entered, failed calls included; UINT64_MAX
// if there is no such function.
uint64_t lt_testdriver_calls(const char *function);
uint64_t lt_testdriver_calls_total(void);
// lt_testdriver_calls_here is the total of the calling thread alone, never reset.
uint64_t lt_testdriver_calls_here(void);
void lt_testdriver_reset_calls(void);

// How many objects of a kind live: "context", "stream", "event", "module",
// "function", "library", "kernel", "graph", "exec", "node", "pool",
// "allocation" (ranges of any kind), "physical". UINT64_MAX for another word.
uint64_t lt_testdriver_live(const char *kind);

// lt_testdriver_log appends a line to the file for each launch, graph launch,
// copy, set, event record, allocation and free that is enqueued or captured;
// NULL ends it (LANETRACE_TESTDRIVER_LOG). A line is space-separated:
// sequence number, function, then key=value; values hold no space. Returns 0,
// or an errno.
int lt_testdriver_log(const char *path);

#ifdef __cplusplus
}
#endif
#endif
