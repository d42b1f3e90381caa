// SPDX-License-Identifier: Apache-2.0
//
// What include/lanetrace.h promises. That header finds these functions by name, so
// their prototypes are its, and a test compiles the two against each other.
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "agent.h"
#include "ring.h"
#include "say.h"
#include "steps.h"

#define PUBLIC __attribute__((visibility("default")))

PUBLIC int lanetrace_level(void);
PUBLIC uint64_t lanetrace_step_begin(void);
PUBLIC int lanetrace_step_end(uint64_t step);
PUBLIC int lanetrace_step_attributes(uint64_t step, uint32_t batch, uint32_t decode, uint32_t prefill, int graph_mode);
PUBLIC int lanetrace_step_link(uint64_t step, const char *traceparent);
PUBLIC uint64_t lanetrace_lane_begin(uint64_t step, const char *name, void *stream);
PUBLIC int lanetrace_lane_end(uint64_t lane);
PUBLIC int lanetrace_request_end(const char *traceparent, int64_t begin_ns, int64_t end_ns, uint32_t prompt, uint32_t output);
PUBLIC int64_t lanetrace_now(void);

int lanetrace_level(void) { return lt_hub_level(); }
int64_t lanetrace_now(void) { return lt_mono_ns(); }

uint64_t lanetrace_step_begin(void) { return lt_hub_level() == LT_LEVEL_OFF ? 0 : lt_steps_own_begin(); }

int lanetrace_step_end(uint64_t step) {
  if (step != 0)
    lt_steps_own_end(step);
  return 0;
}

int lanetrace_step_attributes(uint64_t step, uint32_t batch, uint32_t decode, uint32_t prefill, int graph_mode) {
  if (step == 0)
    return 0;
  lt_attrs a = {batch, decode, prefill, graph_mode < 0 ? 0 : (uint32_t)graph_mode};
  lt_step_attrs(step, &a);
  return 0;
}

// hex reads n bytes of lower-case hexadecimal digits and says whether any is not zero.
static int hex(const char *t, uint8_t *out, int n, int *any) {
  *any = 0;
  for (int i = 0; i < 2 * n; i++) {
    int c = t[i], v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (v < 0)
      return -1;
    out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | v : v << 4);
    *any |= v;
  }
  return 0;
}

// parse reads a W3C traceparent: version, trace id, span id, flags. Of a version
// beyond 00 what may follow is left unread, as the recommendation has it.
static int parse(const char *t, lt_trace_context *c) {
  uint8_t version, flags;
  int any, v;
  if (t == NULL || strnlen(t, 55) < 55 || t[2] != '-' || t[35] != '-' || t[52] != '-')
    return -1;
  if (hex(t, &version, 1, &v) != 0 || version == 0xff || (version == 0 ? t[55] != '\0' : t[55] != '\0' && t[55] != '-'))
    return -1;
  if (hex(t + 3, c->trace_id, 16, &any) != 0 || !any || hex(t + 36, c->span_id, 8, &any) != 0 || !any ||
      hex(t + 53, &flags, 1, &v) != 0)
    return -1;
  c->flags = flags;
  return 0;
}

int lanetrace_step_link(uint64_t step, const char *traceparent) {
  lt_trace_context c;
  if (step == 0)
    return 0;
  if (parse(traceparent, &c) != 0)
    return -1;
  lt_step_link(step, &c);
  return 0;
}

int lanetrace_request_end(const char *traceparent, int64_t begin_ns, int64_t end_ns, uint32_t prompt, uint32_t output) {
  lt_request r = {.begin_mono_ns = begin_ns, .end_mono_ns = end_ns, .prompt_tokens = prompt, .output_tokens = output};
  if (lt_hub_level() == LT_LEVEL_OFF)
    return 0;
  if (parse(traceparent, &r.context) != 0)
    return -1;
  lt_request_end(&r);
  return 0;
}

// Lanes are more than one word; a caller holds a place and its generation. Both and the
// place's state are one word, so that an end that comes late changes nothing.
enum { LANES = 1024, FREE = 0, OPEN = 1, BUSY = 2, STATES = 4 };
static struct {
  _Atomic uint64_t word; // generation * STATES + state
  lt_lane lane;          // while OPEN; whoever made it BUSY has it
} open_lanes[LANES];

// take finds a free place, makes it BUSY and returns its handle, 0: there is none.
static uint64_t take(void) {
  static _Atomic uint32_t next;
  for (int i = 0; i < LANES; i++) {
    uint32_t at = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed) % LANES;
    uint64_t word = atomic_load_explicit(&open_lanes[at].word, memory_order_relaxed);
    if (word % STATES == FREE &&
        atomic_compare_exchange_strong(&open_lanes[at].word, &word, (word / STATES + 1) * STATES + BUSY))
      return (word / STATES + 1) * LANES + at;
  }
  return 0;
}

static void set(uint64_t handle, unsigned to) {
  atomic_store_explicit(&open_lanes[handle % LANES].word, handle / LANES * STATES + to, memory_order_release);
}

uint64_t lanetrace_lane_begin(uint64_t step, const char *name, void *stream) {
  if (step == 0 || name == NULL || lt_hub_level() < LT_LEVEL_LANE)
    return 0;
  uint64_t handle = take();
  if (handle == 0) { // more open at once than anybody needs: they are not being ended
    static _Atomic int said;
    lt_ring_add(lt_hub_ring(), LT_CTR_MISUSE, 1);
    lt_say_once(&said, "more than %d lanes are begun and not ended: those beyond are counted (misuse) and not timed", LANES);
    return 0;
  }
  lt_lane lane = lt_lane_begin(step, lt_lane_id(name, (uint32_t)strnlen(name, 4096)), stream);
  open_lanes[handle % LANES].lane = lane;
  bool is_open = lt_lane_is_open(lane);
  set(handle, is_open ? OPEN : FREE);
  return is_open ? handle : 0;
}

int lanetrace_lane_end(uint64_t lane) {
  if (lane == 0)
    return 0;
  uint64_t open = lane / LANES * STATES + OPEN;
  if (!atomic_compare_exchange_strong(&open_lanes[lane % LANES].word, &open, lane / LANES * STATES + BUSY)) {
    lt_ring_add(lt_hub_ring(), LT_CTR_STALE_ENDS, 1);
    return 0;
  }
  lt_lane l = open_lanes[lane % LANES].lane;
  set(lane, FREE);
  lt_lane_end(l);
  return 0;
}
