// SPDX-License-Identifier: Apache-2.0

#include "overhead.h"

#include <string.h>

#include "clock.h"

#define MAX_OWED_NS (INT64_C(1) << 60) // 36 years

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static double load(const _Atomic uint64_t *bits) {
  const uint64_t b = atomic_load_explicit(bits, memory_order_relaxed);
  double v;
  memcpy(&v, &b, sizeof v);
  return v;
}

static void store(_Atomic uint64_t *bits, double v) {
  uint64_t b;
  memcpy(&b, &v, sizeof b);
  atomic_store_explicit(bits, b, memory_order_relaxed);
}

// Over some eight. Observations at the same moment may lose one of each other, which
// does no harm.
static void observe(lt_mean *m, double v) {
  const double old = load(&m->bits);
  if (atomic_exchange(&m->any, true))
    v = old + (v - old) / 8;
  store(&m->bits, v);
}

// Budgets ----------------------------------------------------------------------------

static bool bounds(const lt_budget *b) { return b->share > 0 && b->share < 1; }

static bool clear(const lt_budget *b) { return atomic_load(&b->owed_ns) <= 0; }

static void spend(lt_budget *b, int64_t cost_ns) {
  if (!bounds(b) || cost_ns <= 0)
    return;
  const int64_t owed = least(lt_ceil((double)cost_ns / b->share), MAX_OWED_NS);
  int64_t old = atomic_load(&b->owed_ns);
  while (!atomic_compare_exchange_weak(&b->owed_ns, &old, least(most(old, 0) + owed, MAX_OWED_NS))) {
  }
}

static void pay(lt_budget *b, int64_t step_ns) {
  if (!bounds(b) || step_ns <= 0)
    return;
  int64_t old = atomic_load(&b->owed_ns);
  while (!atomic_compare_exchange_weak(&b->owed_ns, &old, most(old - step_ns, -MAX_OWED_NS))) {
  }
}

// pay_both pays both budgets.
static void pay_both(lt_overhead *o, int64_t ns) {
  pay(&o->arms.budget, ns);
  pay(&o->lanes.budget, ns);
}

// stride is in how many steps of that length the cost is within the budget.
static uint32_t stride(const lt_budget *b, double cost_ns, double step_ns) {
  if (!bounds(b) || !(cost_ns > 0) || !(step_ns > 0))
    return 1;
  return (uint32_t)most(1, least(lt_ceil(cost_ns / (b->share * step_ns)), INT32_MAX));
}

// Step time --------------------------------------------------------------------------

// at_most cuts ns at ten times the mean, so that one stall does not say much.
static double at_most(const lt_overhead *o, int64_t ns) { return lt_min((double)ns, 10 * load(&o->time.mean_ns)); }

// Over some 32.
static void observe_step(lt_overhead *o, int64_t ns) {
  if (ns <= 0)
    return;
  double v = (double)ns;
  const double m = load(&o->time.mean_ns);
  if (m > 0)
    v = m + (at_most(o, ns) - m) / 32;
  store(&o->time.mean_ns, v);
}

// advance moves until to to_ns. It returns what of the time from from_ns on lies behind
// it, and the gap that it leaves before.
static int64_t advance(_Atomic int64_t *until, int64_t from_ns, int64_t to_ns, int64_t *gap_ns) {
  int64_t old = atomic_load(until);
  *gap_ns = 0;
  do
    if (to_ns <= old)
      return 0;
  while (!atomic_compare_exchange_weak(until, &old, to_ns));
  if (old != 0)
    *gap_ns = most(0, from_ns - old);
  return to_ns - least(to_ns, most(from_ns, old));
}

// busy is what of a gap between steps is step time.
static int64_t busy(const lt_overhead *o, int64_t gap_ns) {
  const double gaps = load(&o->between.gap_ns.bits);
  if (gap_ns <= 0 || !(gaps > 0))
    return 0;
  return (int64_t)(at_most(o, gap_ns) * lt_min(1, load(&o->between.busy_ns.bits) / gaps));
}

// saw takes in what the GPU did after a step.
static void saw(lt_overhead *o, const lt_landed_step *l) {
  if (l->end_ns == 0 || l->next_ns <= l->end_ns)
    return;
  const double gap = at_most(o, l->next_ns - l->end_ns);
  if (!(gap > 0))
    return;
  observe(&o->between.gap_ns, gap);
  observe(&o->between.busy_ns, lt_max(0, lt_min((double)(l->to_ns - l->end_ns), gap)));
}

// Steps ------------------------------------------------------------------------------

void lt_overhead_init(lt_overhead *o, uint32_t every, double kernels, double lanes) {
  memset(o, 0, sizeof *o);
  o->arms.every = every > INT32_MAX ? INT32_MAX : every;
  o->arms.budget.share = kernels;
  o->lanes.budget.share = lanes;
  atomic_store(&o->arms.until, (int64_t)o->arms.every);
}

// A step that is due while one is asked for, or while the budget is owed something,
// remains due. Of steps that begin at once, one takes it.
static bool arms(lt_overhead *o, bool *asked) {
  int64_t until = atomic_fetch_sub(&o->arms.until, 1) - 1;
  int64_t n = atomic_load(&o->arms.asked);
  while (n > 0 && !*asked)
    *asked = atomic_compare_exchange_weak(&o->arms.asked, &n, n - 1);
  return *asked ||
         (until <= 0 && clear(&o->arms.budget) && atomic_compare_exchange_strong(&o->arms.until, &until, (int64_t)o->arms.every));
}

bool lt_overhead_begin(lt_overhead *o, bool kernel, bool *asked, bool *untimed) {
  *asked = false;
  const bool armed = kernel && arms(o, asked);
  *untimed = !armed && !clear(&o->lanes.budget);
  return armed;
}

// take holds the GPU's part of a step against its host's, and pays by what it has
// beyond.
static int64_t take(lt_overhead *o, lt_step_cost *c, bool armed) {
  if (!atomic_exchange(&c->landed, false))
    return 0;
  const int64_t gpu = atomic_exchange(&c->gpu_ns, 0), host = atomic_load(&c->host_ns) - 1;
  const int64_t beyond = gpu - least(host, gpu);
  atomic_fetch_add(&c->host_ns, beyond - gpu);
  if (!armed && !atomic_exchange(&c->averaged, true))
    observe_step(o, host + beyond);
  pay_both(o, beyond);
  return beyond;
}

int64_t lt_overhead_ended(lt_overhead *o, lt_step_cost *c, const lt_ended_step *e) {
  int64_t gap;
  int64_t known = advance(&o->time.host_until_ns, e->begin_ns, e->end_ns, &gap);
  const bool seen = bounds(&o->lanes.budget);
  if (seen)
    known += busy(o, gap);
  const int64_t launches = (int64_t)e->launches * LT_LAUNCH_COST_NS, lanes = (int64_t)e->lanes * LT_LANE_COST_NS;
  if (e->armed && !e->asked) {
    // With a budget for lanes, its lanes were timed for its kernels.
    const int64_t cost = o->lanes.budget.share > 0 ? launches + lanes : launches;
    observe(&o->arms.cost_ns, (double)cost);
    spend(&o->arms.budget, cost);
  } else if (!e->armed && !e->untimed && lanes > 0) {
    observe(&o->lanes.cost_ns, (double)lanes);
    spend(&o->lanes.budget, lanes);
  }
  pay_both(o, known);
  if (seen || e->lanes == 0) {
    if (!e->armed)
      observe_step(o, known);
    return known; // more will not be known
  }
  atomic_store(&c->host_ns, known + 1);
  return known + (atomic_load(&c->landed) ? take(o, c, e->armed) : 0);
}

int64_t lt_overhead_on_gpu(lt_overhead *o, lt_step_cost *c, const lt_landed_step *l) {
  if (bounds(&o->lanes.budget)) {
    saw(o, l);
    return 0;
  }
  int64_t gap;
  atomic_fetch_add(&c->gpu_ns, advance(&o->time.gpu_until_ns, l->from_ns, l->to_ns, &gap));
  atomic_store(&c->landed, true);
  // Before its end, that takes it.
  return atomic_load(&c->host_ns) == 0 ? 0 : take(o, c, l->armed);
}

void lt_step_cost_reset(lt_step_cost *c) {
  if (atomic_load(&c->host_ns) != 0)
    atomic_store(&c->host_ns, 0);
  if (atomic_load(&c->landed)) {
    atomic_store(&c->landed, false);
    atomic_store(&c->gpu_ns, 0);
  }
  if (atomic_load(&c->averaged))
    atomic_store(&c->averaged, false);
}

uint32_t lt_overhead_asked(const lt_overhead *o) {
  const int64_t n = atomic_load(&o->arms.asked);
  return n < 0 ? 0 : n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

uint32_t lt_overhead_kernel_stride(const lt_overhead *o) {
  return (uint32_t)most(o->arms.every, stride(&o->arms.budget, load(&o->arms.cost_ns.bits), load(&o->time.mean_ns)));
}

uint32_t lt_overhead_lane_stride(const lt_overhead *o) {
  return stride(&o->lanes.budget, load(&o->lanes.cost_ns.bits), load(&o->time.mean_ns));
}
