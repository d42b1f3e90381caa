// SPDX-License-Identifier: Apache-2.0
//
// What timing may cost. Budgets are shares of step time and are paid after the fact:
// what was spent must be covered by the time of steps before more is spent. So
//
//     in any run of steps, what was spent is at most the budget's share of their time
//     and what the last step that spent cost,
//
// whatever the load does. Where steps overlap, all that were open then count instead of
// the last; the time of a step that runs on the GPU beyond its part on the host is
// estimated until its lanes have landed. The Go library's overhead.go and arming.go are
// the same, to the last bit.
//
// Every function may be called from any thread; none waits.
#ifndef LANETRACE_AGENT_OVERHEAD_H
#define LANETRACE_AGENT_OVERHEAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// What a pair around a launch, and a lane of its own, cost a step in ns: measured on an
// H200.
enum { LT_LAUNCH_COST_NS = 3500, LT_LANE_COST_NS = 3500 };

// A share of step time; 0 is without bound. owed_ns is the step time that has to pass
// before more may be spent. What is under 0 was paid beyond that, and may still be taken
// back; it covers nothing that is spent later.
typedef struct lt_budget {
  double share;
  _Atomic int64_t owed_ns;
} lt_budget;

typedef struct lt_overhead {
  // Which steps are armed: one in every, as far as the budget allows, and those asked
  // for, which come on top.
  struct {
    uint32_t every;
    lt_budget budget;
    _Atomic int64_t until; // steps until the next armed one is due
    _Atomic int64_t asked;
    _Atomic int64_t cost_ns; // of the last armed step
  } arms;
  // Which steps' lanes are timed.
  struct {
    lt_budget budget;
    _Atomic int64_t cost_ns;    // of the last step that it was spent on
    _Atomic uint32_t published; // stride
  } lanes;
  // What steps take: each the longer of its part on the host and on the GPU, the latter
  // from the first outermost lane's start to the last one's end. Of parts that overlap no
  // moment counts twice.
  struct {
    _Atomic int64_t host_until_ns, gpu_until_ns; // up to here it has been counted
    // What the GPU's part of unarmed steps had beyond the host's: of the last that
    // landed, and on average.
    _Atomic int64_t last_beyond_ns, mean_beyond_ns;
    _Atomic uint64_t mean_ns; // of unarmed steps, bits of a double
  } time;
} lt_overhead;

// What a step's end and its landing say of it. All 0: it has just begun.
typedef struct lt_step_cost {
  // What of the step's part on the host the GPU's has not been held against yet, and 1;
  // 0 before the end.
  _Atomic int64_t host_ns;
  _Atomic int64_t booked_ns; // paid for the GPU's part before it was known
  _Atomic int64_t gpu_ns;    // the GPU's part that no one has taken in yet
  _Atomic bool landed;       // there is any
} lt_step_cost;

// A step at its end.
typedef struct lt_ended_step {
  int64_t begin_ns, end_ns;
  bool armed, asked, untimed;
  uint32_t lanes, launches; // timed
} lt_ended_step;

void lt_overhead_init(lt_overhead *o, uint32_t every, double kernels, double lanes);

// lt_overhead_begin says how the step that begins now is timed; kernel tells whether it
// may be armed. It returns whether it is. [hot]
bool lt_overhead_begin(lt_overhead *o, bool kernel, bool *asked, bool *untimed);

// lt_overhead_ended takes in a step that ended on the host, lt_overhead_on_gpu that its
// outermost lanes, or some of them, ran from and to. Both return the time that became
// known by it. [hot]
int64_t lt_overhead_ended(lt_overhead *o, lt_step_cost *c, const lt_ended_step *e);
int64_t lt_overhead_on_gpu(lt_overhead *o, lt_step_cost *c, bool armed, int64_t from_ns, int64_t to_ns);

// lt_step_cost_reset makes a step's place another's. [hot]
void lt_step_cost_reset(lt_step_cost *c);

uint32_t lt_overhead_asked(const lt_overhead *o);
// The strides: how many steps it takes from one armed step to the next, and from one
// whose lanes are timed.
uint32_t lt_overhead_kernel_stride(const lt_overhead *o);
uint32_t lt_overhead_lane_stride(const lt_overhead *o);

#endif
