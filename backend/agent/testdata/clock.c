// SPDX-License-Identifier: Apache-2.0
//
// A clock against a truth that it is told of only by bounds: argv is a seed, seconds,
// the rate in ppb and how often the host's clock jumps. Prints how many positions were
// asked for, how many lay outside their uncertainty, how many times the map went back,
// the worst error, and the uncertainty at the end, in ns.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "clock.h"

static uint64_t state;
static uint64_t next(void) { // xorshift
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}
static int64_t below(int64_t n) { return (int64_t)(next() % (uint64_t)n); }
// latency is mostly short, and long now and then.
static int64_t latency(int64_t usual) { return usual / 2 + below(usual) + (below(50) == 0 ? below(40 * usual) : 0); }

int main(int argc, char **argv) {
  if (argc != 5)
    return 2;
  state = strtoull(argv[1], NULL, 10) * 2654435761u + 1;
  const int64_t end = strtoll(argv[2], NULL, 10) * 1000000000;
  double rate = strtod(argv[3], NULL);
  const int64_t jump_every = strtoll(argv[4], NULL, 10) * 1000000000;
  static lt_clock c;
  // The truth: the host's time of each GPU tick. mono walks; gpu follows it.
  double mono = 5e12, gpu = 0, jumped = 0;
  int64_t gpu_last_anchor = 0, timeline_last_anchor = 0;
  int64_t due = 0, asked = 0, outside = 0, back = 0, last_gpu = INT64_MIN, last_host = INT64_MIN;
  double worst = 0;
  uint64_t u = 0, fresh = 0;
  int64_t next_jump = jump_every, settled = 0;
  for (int64_t now = 0; now < end; now += 4000000 + below(8000000)) {
    static int64_t before;
    const double step = (double)(now - before);
    before = now;
    mono += step;
    gpu += step * (1 + rate / 1e9);
    rate += (double)(below(3) - 1) * step / 1e9 * 10; // wanders by 10 ppb a second at most
    if (jump_every != 0 && now > next_jump) {
      next_jump += jump_every;
      jumped += 3e6; // the host's clock is ahead by 3 ms from now on
      settled = now + 1000000000;
    }
    const int64_t m = (int64_t)(mono + jumped), g = (int64_t)gpu;
    if (now >= due) { // an anchor: a stamp between two readings
      const int64_t lo = m - latency(3000), hi = m + latency(3000);
      if (!c.known) {
        timeline_last_anchor = lt_clock_start(&c, lo, hi);
      } else {
        const int64_t at = timeline_last_anchor + (g - gpu_last_anchor);
        lt_clock_anchor(&c, at, lo - 32, hi, 64);
        timeline_last_anchor = at;
      }
      gpu_last_anchor = g;
      due = now + 500000000;
    }
    // A span that began now and took a while.
    const int64_t dur = 20000 + below(2000000);
    const int64_t at = timeline_last_anchor + (g - gpu_last_anchor);
    lt_bounds b = {.gpu_ns = at, .dur_ns = dur, .err_ns = 64, .enqueue_mono_ns = m - latency(8000),
                   .closed_mono_ns = m - latency(8000) / 4, .seen_mono_ns = m + dur + latency(3000000)};
    if (b.closed_mono_ns > m + dur)
      b.closed_mono_ns = m + dur;
    if (!lt_clock_span(&c, &b, c.segment))
      due = 0;
    const int64_t host = lt_clock_place(&c, at, c.segment, &u);
    if (at > last_gpu && host < last_host)
      back++;
    last_gpu = at;
    last_host = host;
    if (now >= settled) { // just after a jump what was learnt is wrong until it shows
      const double off = lt_abs((double)(host - m));
      asked++;
      outside += off > (double)u + 64;
      worst = lt_max(worst, off);
      fresh = u;
    }
    if (lt_clock_stale(&c)) {
      lt_clock_set_residual(&c, at);
      lt_clock_refit(&c);
    }
  }
  printf("%" PRId64 " %" PRId64 " %" PRId64 " %.0f %" PRIu64 " %" PRIu64 "\n", asked, outside, back, worst, fresh, c.resets);
  return 0;
}
