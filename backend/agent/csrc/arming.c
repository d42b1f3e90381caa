// SPDX-License-Identifier: Apache-2.0
//
// Which steps are armed. A pair around each launch costs the GPU KERNEL_COST_NS a
// launch, so the stride is raised until
//
//     launches * cost <= budget * stride * step time

#include <string.h>

#include "events.h"

#define KERNEL_COST_NS 3500.0 // measured on an H200
#define WEIGHT (1.0 / 32)     // of the newest step in the running means

static double load(const _Atomic uint64_t *mean) {
  uint64_t bits = atomic_load_explicit(mean, memory_order_relaxed);
  double v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

// A length counts for at most ten times the mean, so that one stall does not open the
// gate. Observations at the same moment may lose one of each other, which does no harm.
void lt_arming_observe(_Atomic uint64_t *mean, int64_t ns) {
  if (ns <= 0)
    return;
  double v = (double)ns, m = load(mean);
  if (m > 0)
    v = m + WEIGHT * (lt_min(v, 10 * m) - m);
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  atomic_store_explicit(mean, bits, memory_order_relaxed);
}

void lt_arming_init(lt_arming *a, uint32_t every, double budget) {
  memset(a, 0, sizeof *a);
  a->every = every > INT32_MAX ? INT32_MAX : every;
  a->budget = budget;
  atomic_store(&a->current, a->every);
  atomic_store(&a->until, (int64_t)a->every);
}

bool lt_arming_next(lt_arming *a, bool *asked) {
  bool due = false;
  if (atomic_fetch_sub(&a->until, 1) - 1 <= 0) {
    atomic_store(&a->until, (int64_t)atomic_load(&a->current));
    due = true;
  }
  int64_t n = atomic_load(&a->asked);
  *asked = false;
  while (n > 0 && !*asked)
    *asked = atomic_compare_exchange_weak(&a->asked, &n, n - 1);
  return due || *asked;
}

uint32_t lt_arming_asked(const lt_arming *a) {
  int64_t n = atomic_load(&a->asked);
  return n < 0 ? 0 : n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

void lt_arming_ended(lt_arming *a, int64_t host_ns, bool armed, uint32_t timed) {
  if (armed)
    atomic_store_explicit(&a->per_step, timed, memory_order_relaxed);
  else
    lt_arming_observe(&a->host_ns, host_ns);
  // The longer of the two: the host of an asynchronous engine is done long before the
  // GPU, and idling between steps is not step time.
  double mean = lt_max(load(&a->host_ns), load(&a->lane_ns));
  uint32_t n = atomic_load_explicit(&a->per_step, memory_order_relaxed);
  if (!(mean > 0) || n == 0)
    return;
  int64_t want = lt_ceil((double)n * KERNEL_COST_NS / (a->budget * mean));
  if (want > INT32_MAX)
    want = INT32_MAX;
  atomic_store(&a->current, want > (int64_t)a->every ? (uint32_t)want : a->every);
}
