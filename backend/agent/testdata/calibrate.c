// SPDX-License-Identifier: Apache-2.0
//
// The calibration over a driver whose times are made up. Each line of standard input is
// a seed, the constant, how much less of it a pair holds with fewer than nine kernels
// behind it, noise from -N to +N, how many pairs in a hundred are 50 us longer, how much
// longer spins of 5,000 cycles are than the line has them, the plug's cycles that
// suffice, the device's capability, and a function that fails ("-": none). Prints the
// calibration, its constant, spread, and how much less shallow pairs hold, in ns, and how
// many events are left.

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "events.h"

static uint64_t state;
static int64_t below(int64_t n) { // xorshift
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (int64_t)(state % (uint64_t)n);
}

enum { MOST = 4096, PLUG = 1000000, REFUSED = 218, TICK = 32 };

static int64_t constant, shallow, noise, outliers, bend, enough, capability;
static char failing[64];
static bool fails(const char *f) { return strcmp(f, failing) == 0; }

static struct event {
  int launches; // before it, since the plug
} events[MOST];
static int made, launches, live;
static int64_t spun[MOST], plugged;
static bool asked;

static lt_result get_current(void **c) { return *c = NULL, 0; }
static lt_result push(void *c) { return (void)c, 0; }
static lt_result pop(void **c) { return get_current(c); }
static lt_result exchange(int *mode) { return (void)mode, 0; }
static lt_result load(void **m, const void *ptx, unsigned n, int *o, void **v) {
  (void)ptx, (void)n, (void)o, (void)v;
  *m = &state;
  return fails("cuModuleLoadDataEx") ? REFUSED : 0;
}
static lt_result function(void **f, void *m, const char *name) {
  (void)m, (void)name;
  *f = &state;
  return 0;
}
static lt_result create(void **e, unsigned flags) {
  (void)flags;
  if (fails("cuEventCreate") && made % 100 == 99)
    return REFUSED;
  live++;
  *e = &events[made++ % MOST];
  return 0;
}
static lt_result destroy(void *e) { return (void)e, live--, 0; }
static lt_result record(void *e, void *stream) {
  (void)stream;
  ((struct event *)e)->launches = launches;
  return 0;
}

static lt_result launch(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        void *stream, void **params, void **extra) {
  (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
  const int64_t cycles = *(int64_t *)params[0];
  if (cycles >= PLUG) {
    plugged = cycles;
    launches = 0;
    asked = false;
    return 0;
  }
  if (fails("cuLaunchKernel") && launches == 7)
    return REFUSED;
  spun[launches++] = cycles;
  return 0;
}

static lt_result elapsed(float *ms, void *a, void *b) {
  const struct event *from = a, *to = b;
  if (a == b) {
    const bool first = !asked;
    asked = true;
    return first && plugged >= enough ? LT_NOT_READY : 0;
  }
  if (fails("cuEventElapsedTime") || to->launches != from->launches + 1)
    return REFUSED;
  const int i = from->launches;
  int64_t ns = 523 + (int64_t)((double)spun[i] / 1.98) + constant - (launches - 1 - i < 9 ? shallow : 0);
  ns += noise > 0 ? below(2 * noise + 1) - noise : 0;
  ns += below(100) < outliers ? 50000 : 0;
  ns += spun[i] == 5000 ? bend : 0;
  const int64_t at = below(TICK);
  *ms = (float)((at + ns) / TICK * TICK) / 1e6f;
  return 0;
}

static lt_hub hub = {
    .drv =
        {
            .cuCtxGetCurrent = get_current,
            .cuCtxPushCurrent_v2 = push,
            .cuCtxPopCurrent_v2 = pop,
            .cuThreadExchangeStreamCaptureMode = exchange,
            .cuModuleLoadDataEx = load,
            .cuModuleUnload = destroy,
            .cuModuleGetFunction = function,
            .cuEventCreate = create,
            .cuEventDestroy_v2 = destroy,
            .cuEventRecord = record,
            .cuLaunchKernel = launch,
            .elapsed = elapsed,
        },
};

int main(void) {
  static lt_context c;
  setvbuf(stdout, NULL, _IONBF, 0); // in order with what is said
  while (scanf("%" SCNu64 "%" SCNd64 "%" SCNd64 "%" SCNd64 "%" SCNd64 "%" SCNd64 "%" SCNd64 "%" SCNd64 "%63s", &state, &constant,
               &shallow, &noise, &outliers, &bend, &enough, &capability, failing) == 9) {
    state = state * 2654435761u + 1;
    made = launches = live = 0;
    atomic_store(&hub.said_calibration, 0);
    c = (lt_context){.hub = &hub, .name = "device", .bound = &hub, .state.capability = (uint16_t)capability};
    lt_calibrate(&c, NULL);
    printf("%d %" PRIu32 " %" PRIu32 " %" PRIu32 " %d\n", (int)c.state.calibration, c.state.constant_ns, c.state.spread_ns,
           c.shallow_ns, live);
  }
  return 0;
}
