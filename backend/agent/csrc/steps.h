// SPDX-License-Identifier: Apache-2.0
//
// From the program's ranges and launches to steps and lanes.
//
// A range that is a lane opens it at the thread's first launch inside it, on the
// stream that launch names, and closes it when it ends, on every stream it was
// opened on; a range without launches costs the GPU nothing. Ranges nest, and so do
// their lanes. Lanes belong to the step that was current when their range began: the
// thread's own, else the latest of the process.
//
// Which range is a step and which are lanes is a setting:
//
//	LANETRACE_STEP   patterns of ranges that are steps, with * for any text, separated
//	                 by commas. FIRST...LAST is a step from the beginning of a range
//	                 that matches FIRST to the end of the next that matches LAST, or to
//	                 the next FIRST. Or one of: vllm, sglang (and their lanes); graph:
//	                 each graph launch is a step; window or window:MS: a step is what is
//	                 launched within so many milliseconds (100); none; auto or auto:MS.
//	LANETRACE_LANES  patterns of ranges that are lanes, each of which may be followed by
//	                 =NAME, where * stands for what the pattern's first * matched.
//	                 Default: *, or the preset's.
//
// auto, the default: the engine's own calls of lanetrace.h; vLLM's and SGLang's ranges,
// known by their names or announced by the variables that switch them on; else a
// thread's outermost range is a step. When launches have gone on for so many milliseconds
// (5,000) without any of these, at the start or later, graph launches stand in for steps if
// there are any, windows if not, which is said once on standard error; a mark ends that.
// For vLLM and SGLang, however told, only graph launches stand in, as not every version
// marks its scopes, and loading is no step. After an engine's own calls nothing stands in.
//
// A list that cannot be right is said on standard error, and the default taken.
//
// A pattern is about ranges of NVTX's global domain and of the domain NVTX, in which
// Python's nvtx package puts its own. DOMAIN//NAME is about ranges of another domain.
#ifndef LANETRACE_AGENT_STEPS_H
#define LANETRACE_AGENT_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hub.h"

// Ranges. text need not be ended by NUL; domain is "" or a domain's name.
//
// Before the hub starts, ranges are followed at every level: those still open at its
// start are part of call sites at once, and steps and lanes from the thread's first
// launch or range that is seen. At level off nothing more is begun. What is open then ends as it would have, and stays known; a range that
// begins meanwhile is only counted, on threads with others open, so that each pop
// finds its own push. Otherwise both are a load or two.

// lt_ranges_followed: lt_range_push follows. When not, call lt_range_missed instead.
static inline bool lt_ranges_followed(void) { return lt_hub_level() != LT_LEVEL_OFF || lt_hub_awaited(); }
// lt_ranges_idle: the level is off and no range was ever followed: there is nothing to do.
static inline bool lt_ranges_idle(void) {
  return lt_hub_level() == LT_LEVEL_OFF && atomic_load_explicit(&lt_ranges_word, memory_order_relaxed) == 0;
}
void lt_range_missed(void);

// lt_range_push begins a range on the calling thread; it returns how many were open.
int lt_range_push(const char *text, size_t bytes, const char *domain);
// lt_range_pop ends the thread's innermost range of the domain; it returns how many
// are left open, -1 when there was none.
int lt_range_pop(const char *domain);
// lt_range_start begins a range that any thread may end; its lanes are opened by the
// thread that began it. 0 when it is not followed. Before the hub starts it is followed
// as one that is pushed.
uint64_t lt_range_start(const char *text, size_t bytes, const char *domain);
void lt_range_stop(uint64_t range);

// Launches, called before the launch.

// lt_steps_launch opens the lanes that are due on the stream and returns the step that
// the launch belongs to outside of any lane, 0: none.
lt_step lt_steps_launch(void *stream);

// A graph launch that stands in for a step.
typedef struct lt_stand_in {
  lt_step step;
  lt_lane lane;
} lt_stand_in;
lt_step lt_steps_graph_begin(lt_stand_in *in, void *stream);
void lt_steps_graph_end(lt_stand_in *in);

// lt_steps_overlapping counts a launch that was not timed because it overlaps others.
void lt_steps_overlapping(void);

// lt_steps_range is the text of the calling thread's innermost range, NULL outside of
// all. It stays where it is, and is the same for the same text.
const char *lt_steps_range(void);

// Steps of the engine's own.
lt_step lt_steps_own_begin(void);
void lt_steps_own_end(lt_step s);

// lt_pattern_matches: text matches the pattern, in which * stands for any text.
bool lt_pattern_matches(const char *pattern, const char *text, size_t bytes);

#endif
