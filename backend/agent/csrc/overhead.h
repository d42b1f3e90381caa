// SPDX-License-Identifier: Apache-2.0
//
// What timing may cost. Budgets are shares of step time and are paid after the fact:
// what was spent must be covered by the time of steps before more is spent. So
//
//     in any run of steps, what was spent is at most the budget's share of their time
//     and what the last step that spent cost,
//
// whatever the load does. Where steps overlap, all that were open then count instead of
// the last; what of the steps before runs on the GPU when the first of the run begins,
// may be paid for in it. Where the budget for lanes leaves some out, time between steps
// stands in for what steps have on the GPU beyond their part on the host. The Go
// library's overhead.go and arming.go are the same, to the last bit.
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
// before more may be spent. What is under 0 was paid beyond that and covers nothing that
// is spent later.
typedef struct lt_budget {
  double share;
  _Atomic int64_t owed_ns;
} lt_budget;

// An exponentially weighted mean, as bits of a double.
typedef struct lt_mean {
  _Atomic uint64_t bits;
  _Atomic bool any;
} lt_mean;

typedef struct lt_overhead {
  // Which steps are armed: one in every, as far as the budget allows, and those asked
  // for, which come on top.
  struct {
    uint32_t every;
    lt_budget budget;
    _Atomic int64_t until; // steps until the next armed one is due
    _Atomic int64_t asked;
    lt_mean cost_ns; // of armed steps
  } arms;
  // Which steps' lanes are timed.
  struct {
    lt_budget budget;
    lt_mean cost_ns;            // of the steps that it was spent on
    _Atomic uint32_t published; // stride
  } lanes;
  // What steps take: each the longer of its part on the host and on the GPU, the latter
  // from the first outermost lane's start to the last one's end. Of parts that overlap no
  // moment counts twice.
  struct {
    _Atomic int64_t host_until_ns, gpu_until_ns; // up to here it has been counted
    _Atomic uint64_t mean_ns; // of unarmed steps, bits of a double
  } time;
  // How much of the time in which the host is between two steps is step time: as large a
  // share of it as the GPU was busy after steps whose lanes were timed. It is busy from a
  // step's end to that of its lanes, since what they may have waited for are the steps
  // before.
  struct {
    lt_mean gap_ns, busy_ns; // of the time after timed steps
  } between;
} lt_overhead;

// What a step's end and its landing say of it. All 0: it has just begun.
typedef struct lt_step_cost {
  // What of the step's part on the host the GPU's has not been held against yet, and 1;
  // 0 before the end.
  _Atomic int64_t host_ns;
  _Atomic int64_t gpu_ns; // the GPU's part that no one has taken in yet
  _Atomic bool landed;    // there is any
  // Its length is in the mean. Of lanes on several GPUs the first to land make it.
  _Atomic bool averaged;
} lt_step_cost;

// A step at its end.
typedef struct lt_ended_step {
  int64_t begin_ns, end_ns;
  bool armed, asked, untimed;
  uint32_t lanes, launches; // timed
} lt_ended_step;

// A step whose outermost lanes, or some of them, have landed.
typedef struct lt_landed_step {
  bool armed;
  int64_t from_ns, to_ns; // what they ran
  // Its end on the host, and the begin of the step that follows; 0 where it is not known.
  int64_t end_ns, next_ns;
} lt_landed_step;

void lt_overhead_init(lt_overhead *o, uint32_t every, double kernels, double lanes);

// lt_overhead_begin says how the step that begins now is timed; kernel tells whether it
// may be armed. It returns whether it is. [hot]
bool lt_overhead_begin(lt_overhead *o, bool kernel, bool *asked, bool *untimed);

// lt_overhead_ended takes in a step that ended on the host, lt_overhead_on_gpu what ran
// of it on the GPU. Both return the time that became known by it. [hot]
int64_t lt_overhead_ended(lt_overhead *o, lt_step_cost *c, const lt_ended_step *e);
int64_t lt_overhead_on_gpu(lt_overhead *o, lt_step_cost *c, const lt_landed_step *l);

// lt_step_cost_reset makes a step's place another's. [hot]
void lt_step_cost_reset(lt_step_cost *c);

uint32_t lt_overhead_asked(const lt_overhead *o);
// The strides: how many steps it takes from one armed step to the next, and from one
// whose lanes are timed.
uint32_t lt_overhead_kernel_stride(const lt_overhead *o);
uint32_t lt_overhead_lane_stride(const lt_overhead *o);

#endif
