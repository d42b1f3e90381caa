// SPDX-License-Identifier: Apache-2.0

#include "overhead.h"

#include <string.h>

#include "clock.h"

#define OVER 32                           // how many steps a running mean is over
#define MAX_OWED_NS (INT64_C(1) << 60)    // 36 years

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

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
  if (!bounds(b) || step_ns == 0)
    return;
  int64_t old = atomic_load(&b->owed_ns);
  while (!atomic_compare_exchange_weak(&b->owed_ns, &old, most(-MAX_OWED_NS, least(old - step_ns, MAX_OWED_NS)))) {
  }
}

// pay_both pays both budgets; ns under 0 takes back.
static void pay_both(lt_overhead *o, int64_t ns) {
  pay(&o->arms.budget, ns);
  pay(&o->lanes.budget, ns);
}

// stride is in how many steps of that length the cost is within the budget.
static uint32_t stride(const lt_budget *b, int64_t cost_ns, double step_ns) {
  if (!bounds(b) || cost_ns <= 0 || !(step_ns > 0))
    return 1;
  return (uint32_t)most(1, least(lt_ceil((double)cost_ns / (b->share * step_ns)), INT32_MAX));
}

// Step time --------------------------------------------------------------------------

static double mean(const lt_overhead *o) {
  const uint64_t bits = atomic_load_explicit(&o->time.mean_ns, memory_order_relaxed);
  double v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

// A length counts for at most ten times the mean, so that one stall does not say much.
// Observations at the same moment may lose one of each other, which does no harm.
static void observe(lt_overhead *o, int64_t ns) {
  if (ns <= 0)
    return;
  double v = (double)ns, m = mean(o);
  if (m > 0)
    v = m + (lt_min(v, 10 * m) - m) / OVER;
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  atomic_store_explicit(&o->time.mean_ns, bits, memory_order_relaxed);
}

static void observe_beyond(lt_overhead *o, int64_t ns) {
  atomic_store(&o->time.last_beyond_ns, ns);
  const int64_t m = atomic_load(&o->time.mean_beyond_ns);
  atomic_store(&o->time.mean_beyond_ns, m + (ns - m) / OVER);
}

// beyond_host estimates what a step's part on the GPU will have beyond the host's: no
// more than the last one had, so that a load that shrinks is seen at once.
static int64_t beyond_host(const lt_overhead *o) {
  return least(atomic_load(&o->time.last_beyond_ns), atomic_load(&o->time.mean_beyond_ns));
}

// advance moves until to to_ns and returns what of the time from from_ns on lies behind
// it.
static int64_t advance(_Atomic int64_t *until, int64_t from_ns, int64_t to_ns) {
  int64_t old = atomic_load(until);
  do
    if (to_ns <= old)
      return 0;
  while (!atomic_compare_exchange_weak(until, &old, to_ns));
  return to_ns - least(to_ns, most(from_ns, old));
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

// take holds the GPU's part of a step against its host's, and corrects what was paid.
static int64_t take(lt_overhead *o, lt_step_cost *c, bool armed) {
  if (!atomic_exchange(&c->landed, false))
    return 0;
  const int64_t gpu = atomic_exchange(&c->gpu_ns, 0), booked = atomic_exchange(&c->booked_ns, 0);
  const int64_t used = least(atomic_load(&c->host_ns) - 1, gpu), beyond = gpu - used;
  atomic_fetch_sub(&c->host_ns, used);
  if (!armed)
    observe_beyond(o, beyond);
  pay_both(o, beyond - booked);
  return beyond;
}

int64_t lt_overhead_ended(lt_overhead *o, lt_step_cost *c, const lt_ended_step *e) {
  const int64_t host = advance(&o->time.host_until_ns, e->begin_ns, e->end_ns);
  const int64_t booked = e->untimed || e->lanes > 0 ? beyond_host(o) : 0;
  if (!e->armed)
    observe(o, host + booked);
  const int64_t launches = (int64_t)e->launches * LT_LAUNCH_COST_NS, lanes = (int64_t)e->lanes * LT_LANE_COST_NS;
  if (e->armed && !e->asked) {
    // With a budget for lanes, its lanes were timed for its kernels.
    const int64_t cost = o->lanes.budget.share > 0 ? launches + lanes : launches;
    atomic_store(&o->arms.cost_ns, cost);
    spend(&o->arms.budget, cost);
  } else if (!e->armed && !e->untimed && lanes > 0) {
    atomic_store(&o->lanes.cost_ns, lanes);
    spend(&o->lanes.budget, lanes);
  }
  pay_both(o, host + booked);
  if (e->untimed || e->lanes == 0)
    return host + booked; // more will not be known
  atomic_store(&c->booked_ns, booked);
  atomic_store(&c->host_ns, host + 1);
  return host + (atomic_load(&c->landed) ? take(o, c, e->armed) : 0);
}

int64_t lt_overhead_on_gpu(lt_overhead *o, lt_step_cost *c, bool armed, int64_t from_ns, int64_t to_ns) {
  atomic_fetch_add(&c->gpu_ns, advance(&o->time.gpu_until_ns, from_ns, to_ns));
  atomic_store(&c->landed, true);
  // Before its end, that takes it.
  return atomic_load(&c->host_ns) == 0 ? 0 : take(o, c, armed);
}

void lt_step_cost_reset(lt_step_cost *c) {
  if (atomic_load(&c->host_ns) != 0)
    atomic_store(&c->host_ns, 0);
  if (atomic_load(&c->landed)) {
    atomic_store(&c->landed, false);
    atomic_store(&c->gpu_ns, 0);
  }
}

uint32_t lt_overhead_asked(const lt_overhead *o) {
  const int64_t n = atomic_load(&o->arms.asked);
  return n < 0 ? 0 : n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

uint32_t lt_overhead_kernel_stride(const lt_overhead *o) {
  return (uint32_t)most(o->arms.every, stride(&o->arms.budget, atomic_load(&o->arms.cost_ns), mean(o)));
}

uint32_t lt_overhead_lane_stride(const lt_overhead *o) {
  return stride(&o->lanes.budget, atomic_load(&o->lanes.cost_ns), mean(o));
}
