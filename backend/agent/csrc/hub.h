// SPDX-License-Identifier: Apache-2.0
//
// The hub: what the hooks, the NVTX layer and lanetrace.h call to have steps,
// lanes, kernels and graph launches timed. One hub a process: its ring, its level,
// its steps, the GPU contexts it knows, and one thread that harvests and watches
// the control file.
//
// Every function may be called from any thread at any time, also before the hub is
// started, after it was stopped and in a child of fork: then it does nothing, or
// says that nothing is timed. None waits for the GPU or for a reader; those on a
// server's path (marked [hot]) neither lock for long nor allocate once a stream is
// known. At level off each of them is one relaxed load and a return. Misuse is
// ignored and counted.
//
// Contexts and streams: a function that takes a stream means the calling thread's
// current context, as the driver does. NULL and LT_STREAM_LEGACY are the legacy
// default stream, LT_STREAM_PER_THREAD is the calling thread's own.
#ifndef LANETRACE_AGENT_HUB_H
#define LANETRACE_AGENT_HUB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver.h"

enum lt_level { LT_LEVEL_OFF = 0, LT_LEVEL_BASIC = 1, LT_LEVEL_LANE = 2, LT_LEVEL_KERNEL = 3 };

// Only lt_hub_level and lt_timing read these: they are the one load.
extern _Atomic uint32_t lt_hub_level_word __attribute__((visibility("hidden")));
extern _Atomic int32_t lt_hub_armed_open __attribute__((visibility("hidden")));
// Why ranges matter at level off, 0: they do not. One word, so that there they cost two
// loads: the level and this.
enum { LT_HUB_AWAITED = 1, LT_RANGES_SEEN = 2 };
extern _Atomic uint32_t lt_ranges_word __attribute__((visibility("hidden")));

// lt_hub_level is the level in force; LT_LEVEL_OFF without a hub. [hot]
static inline int lt_hub_level(void) {
  return (int)atomic_load_explicit(&lt_hub_level_word, memory_order_relaxed);
}

// lt_hub_awaited: the process has no hub yet and may still get one. One load. [hot]
static inline int lt_hub_awaited(void) {
  return (atomic_load_explicit(&lt_ranges_word, memory_order_relaxed) & LT_HUB_AWAITED) != 0;
}

// lt_hub_never says that the process gets no hub beyond the one that it may have.
void lt_hub_never(void);

// lt_timing: some armed step is open, so launches have to ask lt_launch_begin. One
// load. [hot]
static inline int lt_timing(void) { return atomic_load_explicit(&lt_hub_armed_open, memory_order_relaxed) > 0; }

// Life ------------------------------------------------------------------------------------

// lt_hub_start makes the process's hub: reads the LANETRACE_* variables, makes the
// ring (at level off too) and starts the thread. drv must stay as it is for the
// process's life. It makes no driver call. Returns 0, or -1: then why was said once
// on standard error, and telemetry is off for good. While a hub runs, and once one
// could not be made, it does nothing more and returns the same. In a child of fork a
// hub can be started afresh. Costs a millisecond or two.
int lt_hub_start(const lt_driver *drv);

// lt_hub_stop fails what is in flight as closed, without a driver call, and closes
// the ring cleanly. It waits until the thread is out of the driver, 200 ms at most.
// The hub calls it itself when the process exits (atexit, registered by
// lt_hub_start). Later calls of everything do nothing.
void lt_hub_stop(void);

// lt_hub_ring is the hub's ring, for the ledger and for interning names; NULL
// without a hub. The ring itself stays valid after lt_hub_stop.
struct lt_ring;
struct lt_ring *lt_hub_ring(void);

// lt_hub_set_level changes the level, as the control file does; what is already
// begun ends as it began. Makes the contexts' pools at the first rise to lane.
void lt_hub_set_level(int level);

// lt_hub_on_level has f called with each new level, after it came into force, from
// the thread that changed it; and once now. For the ledger: publish from
// LT_LEVEL_BASIC on. At most four functions; returns 0, or -1 when there are more.
int lt_hub_on_level(void (*f)(int level, void *user), void *user);

// lt_hub_arm asks for the next n steps to be armed; they are at level kernel only.
void lt_hub_arm(uint32_t n);

// Contexts, streams, captures ----------------------------------------------------------------

// lt_context_open takes a context in. Call it after a call of the program's that
// made one or made one current; for a context already known it is a short search.
// For a new one it makes driver calls: which device it is, and at level lane and
// above the pool of event pairs and the calibration (some ten milliseconds), unless
// something is being captured: then the thread makes them later. Returns the
// context's index in the ring, or -1 when it is not timed (said once).
int lt_context_open(void *ctx);

// lt_context_index is the index of a context that is open, -1 of any other. NULL is
// the calling thread's current one. [hot]
int lt_context_index(void *ctx);

// lt_context_end: call it before a call that may destroy the context. Waits for
// spans whose end was recorded, a second at most, fails the rest as closed and
// destroys the hub's events in it. Should the context live on, lt_context_open
// takes it in again, in the same place.
void lt_context_end(void *ctx);

// lt_stream_destroyed: call it before the stream is destroyed. Spans whose end was
// recorded still land. No driver call.
void lt_stream_destroyed(void *stream);

// lt_capture_begun and lt_capture_ended count the captures that are active, of every
// stream and thread: pools, calibration and anchors wait for none to be. Call the
// first before the call that begins one (and the second if that failed), the second
// after the call that ends one, whatever it returned.
void lt_capture_begun(void);
void lt_capture_ended(void);

// Steps -----------------------------------------------------------------------------------------

// A step; 0 is none, with which every function does nothing. It may be passed
// between threads.
typedef uint64_t lt_step;

// lt_step_id is the step's number within the run, from 1.
uint64_t lt_step_id(lt_step s);

// lt_step_armed: its kernels are timed.
static inline int lt_step_armed(lt_step s) { return s >> 63 != 0; }

// lt_step_untimed: the budget for lanes leaves its lanes out.
#define LT_STEP_UNTIMED (UINT64_C(1) << 54)
static inline int lt_step_untimed(lt_step s) { return (s & LT_STEP_UNTIMED) != 0; }

// lt_step_begin_by begins a step; source is LT_STEP_MARKED, or what stands in for a mark.
lt_step lt_step_begin_by(unsigned source);                          // [hot] steps may overlap
static inline lt_step lt_step_begin(void) { return lt_step_begin_by(0); } // [hot] a marked one
void lt_step_end(lt_step s);  // [hot] ending twice is misuse

enum lt_graph_mode { LT_GRAPH_UNKNOWN = 0, LT_GRAPH_EAGER = 1, LT_GRAPH_REPLAY = 2, LT_GRAPH_MIXED = 3 };

typedef struct lt_attrs {
  uint32_t batch_size;     // sequences
  uint32_t decode_tokens;  // tokens generated
  uint32_t prefill_tokens; // prompt tokens processed
  uint32_t graph_mode;     // enum lt_graph_mode
} lt_attrs;

// lt_step_attrs says what the step works on; the last call counts. [hot]
void lt_step_attrs(lt_step s, const lt_attrs *a);

// A W3C trace context.
typedef struct lt_trace_context {
  uint8_t trace_id[16];
  uint8_t span_id[8];
  uint8_t flags;
} lt_trace_context;

// lt_step_link links the step to a request's span. [hot]
void lt_step_link(lt_step s, const lt_trace_context *c);

typedef struct lt_request {
  lt_trace_context context;
  int64_t begin_mono_ns, end_mono_ns; // CLOCK_MONOTONIC
  uint32_t prompt_tokens, output_tokens;
} lt_request;

// lt_request_end says that a request has ended. [hot]
void lt_request_end(const lt_request *r);

// Lanes -------------------------------------------------------------------------------------------

// lt_lane_id numbers lanes by name (not NUL-terminated), from 1: the same for the same
// name. 0, which counts as misuse where it is used, without a hub, for an empty name
// or beyond 1,023 lanes. Takes a lock: keep the number.
uint16_t lt_lane_id(const char *name, uint32_t bytes);

// An open lane. A zero lt_lane is none.
typedef struct lt_lane {
  struct lt_pool *pool;
  struct lt_stream *stream;
  uint32_t slot, generation;
} lt_lane;

static inline int lt_lane_is_open(lt_lane l) { return l.generation != 0; }

// lt_lane_begin begins a lane of the step on a stream; its parent is the innermost
// lane of the same step open there. Records one event at level lane and above. None
// is begun on a stream that is being captured (counted), in a step whose lanes the
// budget for them leaves out, in one that has ended or where the lane is already open in
// this step (both misuse). [hot]
lt_lane lt_lane_begin(lt_step s, uint16_t lane, void *stream);
// lt_lane_try is lt_lane_begin, and says whether none was begun for a capture. [hot]
lt_lane lt_lane_try(lt_step s, uint16_t lane, void *stream, bool *capturing);

// lt_stream_is_captured asks the driver whether the stream is being captured (or its
// status cannot be had).
bool lt_stream_is_captured(void *stream);

// lt_lane_end ends it, once, on any thread (a lane on LT_STREAM_PER_THREAD on its
// own). Records one event; on a stream that is being captured the span has failed
// instead. [hot]
void lt_lane_end(lt_lane l);

// lt_lane_next ends l and begins another lane of the same step and stream with one
// event for both. Only for what is known to follow immediately: nothing may be
// launched between. Where l is none or was ended before, nothing is begun. [hot]
lt_lane lt_lane_next(lt_lane l, uint16_t lane);

// lt_bind says that launches on the stream outside any lane belong to the step; 0
// takes that back. [hot]
void lt_bind(lt_step s, void *stream);

// Launches ------------------------------------------------------------------------------------------

enum lt_launch_kind { LT_LAUNCH_KERNEL = 4, LT_LAUNCH_GRAPH = 5 }; // the kinds of entry

// A launch that is being timed. It lives on the caller's stack.
typedef struct lt_launch {
  struct lt_pool *pool;
  struct lt_stream *stream;
  void *handle;
  uint64_t step;
  uint32_t slot, generation;
  lt_result start;
  int32_t calls;
} lt_launch;

// lt_launch_begin takes a pair for a launch that comes next on this thread, and
// records its start. It belongs to the innermost lane open on the stream, else to
// the step bound to the stream, else to own (the step that the calling thread is in;
// 0: none). name is a kernel's or a graph's in the ring's table (graph id and node
// count are part of the latter). Returns 1: make the launch and then call
// lt_launch_end, whatever came of it. Returns 0: make the launch, nothing else. Ask
// lt_timing first. [hot]
int lt_launch_begin(lt_launch *l, int kind, void *stream, uint32_t name, lt_step own);

// lt_launch_untimed says that a kernel is launched that gets no pair though others may:
// how many wait behind those is not known. Ask lt_timing first. [hot]
void lt_launch_untimed(void *stream);

// lt_launch_end records the end behind the launch, which returned result. Call it at
// once: whether the start is still pending now is what tells a queued launch from a
// starved one. [hot]
void lt_launch_end(lt_launch *l, lt_result result);

// Self ------------------------------------------------------------------------------------------------

// lt_hub_harvest reads the pairs that have completed and writes them to the ring, as
// the hub's thread does every 5 ms while something is in flight; for tests.
void lt_hub_harvest(void);

// lt_hub_in_flight is how many spans of all contexts are neither landed nor failed.
int64_t lt_hub_in_flight(void);

#endif
