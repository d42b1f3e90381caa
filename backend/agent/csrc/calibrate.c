// SPDX-License-Identifier: Apache-2.0
//
// The machine's constant: what a queued pair measures beyond its kernel. Pairs around
// spin kernels of several lengths run behind a plug on our own stream; the straight
// line through their medians meets zero cycles at the constant and a kernel's fixed
// part, which is known by compute capability.

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "events.h"
#include "say.h"

// Measured on an H200 (driver 580.159, CUDA 13.0) against CUPTI's times of the same
// launches.
enum {
  UNKNOWN_EXCESS_NS = 4000, // stands for the constant where none is known
  ASSUMED_SPREAD_NS = 300,  // about p90 - p10, and no less than processes differ
  FIXED_NS = 523,           // a kernel's time at zero cycles by CUPTI
  CONSTANT_NS_90 = 3040,
  SHALLOW_NS_90 = 720,
  KNOWN_CAPABILITY = 90,
};

// A GPU that has done nothing for so long takes up to so much longer to begin.
enum { ASLEEP_AFTER_NS = 20000000, WAKE_NS = 100000 };

enum {
  LENGTHS = 4,
  ROUNDS = 32, // of every length; the first and last of them are discarded:
  WARM_ROUNDS = 4,
  LAST_ROUNDS = 6,
  // A pair measures the whole constant if so many kernels wait behind it on its stream,
  // and single ones lie within twice the spread of it; cudaevents/correct.go has what
  // was measured. The last rounds are shallow.
  DEEP_BEHIND = 9,
  SPREADS = 2,
  LOOK_BEHIND = 64, // spans of a stream that are looked through for kernels
  SHALLOW_ROUNDS = DEEP_BEHIND / LENGTHS,
  PAIRS = ROUNDS * LENGTHS,
  TRIES = 4,
  PLUG_CYCLES = 4000000, // about 2 ms: longer than it takes to enqueue all pairs
  MAX_SPREAD_NS = 500,   // 220 to 300 ns on an idle H200
  MAX_LINE_ERROR_NS = 100,
  MAX_CONSTANT_NS = 65535, // what a span can carry
};
static const uint64_t cycles[LENGTHS] = {1000, 2000, 5000, 10000};

// A kernel that keeps one thread busy for so many cycles of its multiprocessor's clock;
// any driver since CUDA 9 compiles it for any device.
static const char spin_ptx[] = ".version 6.0\n"
                               ".target sm_50\n"
                               ".address_size 64\n"
                               ".visible .entry lt_spin(.param .u64 cycles)\n"
                               "{\n"
                               "  .reg .pred %done;\n"
                               "  .reg .u64 %want, %begin, %now;\n"
                               "  ld.param.u64 %want, [cycles];\n"
                               "  mov.u64 %begin, %clock64;\n"
                               "again:\n"
                               "  mov.u64 %now, %clock64;\n"
                               "  sub.u64 %now, %now, %begin;\n"
                               "  setp.ge.u64 %done, %now, %want;\n"
                               "  @!%done bra again;\n"
                               "  ret;\n"
                               "}\n";

typedef struct line {
  double intercept, slope; // ns, and ns a cycle
  double worst;            // of the medians, off the line
  double spread;           // p90 - p10 of what single pairs are off the line
  double shallow;          // how much the last pairs lie under it, their median
} line;

static lt_result spin(lt_context *c, void *stream, uint64_t n, void *start, void *end) {
  const lt_driver *d = lt_drv(c);
  void *args[] = {&n};
  lt_result r = lt_exiting() ? LT_NOT_ASKED : 0;
  if (r == 0 && start != NULL)
    r = d->cuEventRecord(start, stream);
  if (r == 0)
    r = d->cuLaunchKernel(c->spin, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
  if (r == 0 && start != NULL)
    r = d->cuEventRecord(end, stream);
  return r;
}

static void sort(double *v, int n) {
  for (int i = 1; i < n; i++) {
    double x = v[i];
    int j = i;
    for (; j > 0 && v[j - 1] > x; j--)
      v[j] = v[j - 1];
    v[j] = x;
  }
}

static double quantile(const double *sorted, int n, double q) {
  double at = q * (n - 1);
  int i = (int)at;
  return i + 1 >= n ? sorted[n - 1] : sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]);
}

// fit puts the least-squares line through the medians of the lengths.
static line fit(const float *ms) {
  enum { KEPT = ROUNDS - WARM_ROUNDS - LAST_ROUNDS };
  const float *from = ms + WARM_ROUNDS * LENGTHS;
  double x[LENGTHS], y[LENGTHS], buf[KEPT * LENGTHS], mx = 0, my = 0, sxx = 0, sxy = 0;
  line l = {0};
  for (int j = 0; j < LENGTHS; j++) {
    for (int i = 0; i < KEPT; i++)
      buf[i] = (double)from[i * LENGTHS + j] * 1e6;
    sort(buf, KEPT);
    x[j] = (double)cycles[j];
    y[j] = quantile(buf, KEPT, 0.5);
    mx += x[j] / LENGTHS;
    my += y[j] / LENGTHS;
  }
  for (int j = 0; j < LENGTHS; j++) {
    sxx += (x[j] - mx) * (x[j] - mx);
    sxy += (x[j] - mx) * (y[j] - my);
  }
  l.slope = sxy / sxx;
  l.intercept = my - l.slope * mx;
  for (int j = 0; j < LENGTHS; j++)
    l.worst = lt_max(l.worst, lt_abs(y[j] - l.intercept - l.slope * x[j]));
  for (int i = 0; i < KEPT * LENGTHS; i++)
    buf[i] = (double)from[i] * 1e6 - l.intercept - l.slope * x[i % LENGTHS];
  sort(buf, KEPT * LENGTHS);
  l.spread = quantile(buf, KEPT * LENGTHS, 0.9) - quantile(buf, KEPT * LENGTHS, 0.1);
  const float *last = ms + PAIRS - SHALLOW_ROUNDS * LENGTHS;
  for (int i = 0; i < SHALLOW_ROUNDS * LENGTHS; i++)
    buf[i] = l.intercept + l.slope * x[i % LENGTHS] - (double)last[i] * 1e6;
  sort(buf, SHALLOW_ROUNDS * LENGTHS);
  l.shallow = quantile(buf, SHALLOW_ROUNDS * LENGTHS, 0.5);
  return l;
}

static lt_result await(lt_context *c, void *event, uint64_t *calls) {
  for (int64_t end = lt_mono_ns() + 200 * LT_MS;;) {
    ++*calls;
    lt_result r = lt_pending(c, event);
    if (r != LT_NOT_READY || lt_mono_ns() >= end)
      return r;
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  }
}

// measure runs the pairs, with the context bound. It returns what went wrong, NULL if
// nothing did.
static const char *measure(lt_context *c, void *own, uint64_t plug, line *l) {
  const lt_driver *d = lt_drv(c);
  if (lt_capturing())
    return "something is being captured";
  void *event[2 * PAIRS];
  float ms[PAIRS];
  int made = 0;
  uint64_t calls = 0;
  const char *why = NULL;
  for (; made < 2 * PAIRS; made++)
    if (d->cuEventCreate(&event[made], 0) != 0) {
      why = "its events could not be made";
      break;
    }
  calls += (uint64_t)made;
  if (why == NULL && spin(c, own, plug, NULL, NULL) != 0)
    why = "the plug was refused";
  calls++;
  for (int i = 0; i < PAIRS && why == NULL; i++, calls += 3)
    if (spin(c, own, cycles[i % LENGTHS], event[2 * i], event[2 * i + 1]) != 0)
      why = "a spin was refused";
  if (why == NULL) {
    calls++;
    const bool plugged = lt_pending(c, event[0]) == LT_NOT_READY;
    if (await(c, event[2 * PAIRS - 1], &calls) != 0)
      why = "the spins did not end within 200 ms";
    else if (!plugged)
      why = "the plug ended before all spins were enqueued";
  }
  for (int i = 0; i < PAIRS && why == NULL; i++, calls++)
    if (lt_since(c, event[2 * i], event[2 * i + 1], &ms[i]) != 0)
      why = "a pair could not be read";
  for (int i = 0; i < made && !lt_exiting(); i++, calls++)
    d->cuEventDestroy_v2(event[i]);
  lt_count(c, LT_CTR_DRIVER_CALLS, calls);
  if (why != NULL)
    return why;
  *l = fit(ms);
  if (!(l->spread <= MAX_SPREAD_NS && l->worst <= MAX_LINE_ERROR_NS))
    return "too noisy";
  if (!(l->slope > 0) || l->intercept < FIXED_NS || l->intercept - FIXED_NS > MAX_CONSTANT_NS)
    return "an impossible line";
  return NULL;
}

void lt_calibrate(lt_context *c, void *own) {
  const bool known = c->state.capability == KNOWN_CAPABILITY;
  c->state.calibration = known ? LT_CALIBRATION_ASSUMED : LT_CALIBRATION_NONE;
  c->state.constant_ns = known ? CONSTANT_NS_90 : 0;
  c->state.spread_ns = known ? ASSUMED_SPREAD_NS : 0;
  c->shallow_ns = known ? SHALLOW_NS_90 : 0;
  lt_bound b;
  if (lt_bind_context(c, true, &b) != 0)
    return;
  const lt_driver *d = lt_drv(c);
  const char *why = NULL;
  if (c->spin == NULL) {
    lt_result r = d->cuModuleLoadDataEx(&c->spin_module, spin_ptx, 0, NULL, NULL);
    if (r == 0 && (r = d->cuModuleGetFunction(&c->spin, c->spin_module, "lt_spin")) != 0)
      d->cuModuleUnload(c->spin_module);
    lt_count(c, LT_CTR_DRIVER_CALLS, 2);
    if (r != 0) {
      c->spin = c->spin_module = NULL;
      why = "the driver refused the spin kernel";
    }
  }
  for (int i = 0; i < TRIES && c->spin != NULL; i++) {
    line l;
    why = measure(c, own, (uint64_t)PLUG_CYCLES << i, &l);
    if (why != NULL)
      continue;
    c->state.calibration = known ? LT_CALIBRATION_MEASURED : LT_CALIBRATION_ASSUMED;
    c->state.constant_ns = (uint32_t)lt_round(l.intercept) - FIXED_NS;
    c->state.spread_ns = (uint32_t)lt_ceil(l.spread);
    c->shallow_ns = l.shallow > 0 ? (uint32_t)lt_round(l.shallow) : 0;
    if (c->shallow_ns > c->state.constant_ns)
      c->shallow_ns = c->state.constant_ns;
    break;
  }
  lt_unbind_context(c, &b);
  if (why != NULL && !lt_exiting())
    lt_say_once(&c->hub->said_calibration, "kernel times on %s are not calibrated: %s; the constant is %s", c->name, why,
                known ? "assumed" : "not taken off");
}

typedef enum depth {
  UNSURE,  // launches arrived while the pair ran, or it is not known
  DEEP,    // DEEP_BEHIND kernels or more waited behind it when it began
  SHALLOW, // fewer, and none came until it ended
} depth;

// depth_of finds out what waited behind a placed span. The list holds all that was
// enqueued on its stream before it ended and was timed; once the span's step had ended
// on the host, or when a launch was not timed since, there may have been more.
static depth depth_of(lt_context *c, lt_pool *p, const lt_stream *st, const lt_slot *v, const lt_span *s) {
  const int64_t end = s->start_mono_ns + (int64_t)s->raw_ns, u = (int64_t)s->place_uncertainty_ns;
  const bool arriving = v->closed_mono_ns + u > s->start_mono_ns; // its own launch was
  const depth fewer = arriving || atomic_load(&st->untimed_ns) >= v->enqueue_mono_ns ? UNSURE : SHALLOW;
  uint32_t head = st->head;
  int kernels = 0;
  for (int i = 0; i < LOOK_BEHIND; i++) {
    if (head == 0) {
      int64_t ended;
      return lt_step_ended(c->hub, s->step, &ended) && ended - u < end ? UNSURE : fewer;
    }
    const lt_slot w = lt_slot_get(p->slots, head - 1);
    if (w.closed_mono_ns + u > s->start_mono_ns) { // the first that came later; of a lane its end
      const int64_t from = w.kind == LT_KIND_LANE ? w.closed_mono_ns : w.enqueue_mono_ns;
      return from - u < end ? UNSURE : fewer;
    }
    if (w.kind == LT_KIND_KERNEL && ++kernels == DEEP_BEHIND)
      return DEEP;
    head = p->cell[head - 1].next;
  }
  return UNSURE;
}

// Only kernels are corrected: a lane or a graph is what its pair measures. A starved
// pair also holds what the host took around its kernel, at most all of the time from
// before the launch until after it, and what a GPU that had idled took to wake.
void lt_correct(lt_context *c, lt_pool *p, lt_stream *st, const lt_slot *v, lt_span *s, float duration_ms) {
  double u = lt_quantum_ns(duration_ms) + LT_TICK_NS;
  if (s->kind == LT_KIND_KERNEL) {
    s->calibration = c->state.calibration;
    if (s->calibration == LT_CALIBRATION_NONE) {
      u += UNKNOWN_EXCESS_NS;
    } else {
      uint64_t take = c->state.constant_ns;
      switch (depth_of(c, p, st, v, s)) {
      case SHALLOW:
        take -= c->shallow_ns;
        break;
      case UNSURE:
        take -= c->shallow_ns / 2;
        u += (double)c->shallow_ns;
        break;
      case DEEP:
        break;
      }
      if (take > s->raw_ns)
        take = s->raw_ns;
      s->correction_ns = (uint16_t)(take > MAX_CONSTANT_NS ? MAX_CONSTANT_NS : take);
      u += SPREADS * (double)c->state.spread_ns;
    }
    if (s->gap != LT_GAP_QUEUED && v->closed_mono_ns > v->enqueue_mono_ns)
      u += (double)(v->closed_mono_ns - v->enqueue_mono_ns);
    const int64_t ended = st->last_end_ns > c->ended_ns ? st->last_end_ns : c->ended_ns;
    if (s->gap != LT_GAP_QUEUED && s->start_mono_ns - ended > ASLEEP_AFTER_NS)
      u += WAKE_NS;
  }
  const int64_t end = s->start_mono_ns + (int64_t)s->raw_ns;
  if (end > c->last_end_ns)
    c->last_end_ns = end;
  if (end > st->last_end_ns)
    st->last_end_ns = end;
  s->duration_uncertainty_ns = (uint64_t)lt_ceil(u);
}
