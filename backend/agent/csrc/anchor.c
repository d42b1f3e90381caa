// SPDX-License-Identifier: Apache-2.0
//
// Anchors: events of our own, on a stream of our own, between two readings of the
// host's clock. They are taken only while spans are in flight.

#include <string.h>

#include "events.h"
#include "say.h"

#define FIRST_TRIES 8
// So many anchors follow each other closer, each twice as far as the one before.
#define YOUNG_ANCHORS 6
#define LATER_TRIES 3
// About as narrow as a try gets on an idle H200, where one takes 6 to 7 us.
#define GOOD_NS 8000
// Two anchors are linked by the events' own distance when that is known to LINK_NS (up
// to 4 s), or as well as the later anchor itself is.
#define LINK_NS 250.0
// How long landing waits for the very first anchor.
#define PATIENCE_NS INT64_C(1000000000)

void lt_anchors_init(lt_context *c, void **events) {
  lt_anchors *a = &c->anchors;
  memset(a, 0, sizeof *a);
  memcpy(a->spare, events, sizeof a->spare);
  a->spares = LT_ANCHOR_EVENTS;
  a->narrowest = INT64_MAX;
}

static const lt_anchor none;

const lt_anchor *lt_anchors_latest(const lt_context *c) {
  const lt_anchors *a = &c->anchors;
  return a->n == 0 ? &none : &a->ring[(a->n - 1) % LT_ANCHOR_KEEP];
}

static int64_t kept(const lt_anchors *a) { return a->n < LT_ANCHOR_KEEP ? a->n : LT_ANCHOR_KEEP; }
static int64_t distance(int64_t a, int64_t b) { return a < b ? b - a : a - b; }

const lt_anchor *lt_anchors_nearest(const lt_context *c, int64_t gpu_ns) {
  const lt_anchor *best = lt_anchors_latest(c);
  for (int64_t k = 0; k < kept(&c->anchors); k++) {
    const lt_anchor *x = &c->anchors.ring[k];
    if (distance(x->gpu_ns, gpu_ns) < distance(best->gpu_ns, gpu_ns))
      best = x;
  }
  return best;
}

// The anchor by itself, unless it is of an era gone by; then the nearest of this one.
const lt_anchor *lt_anchors_judge(const lt_context *c, const lt_anchor *by, int64_t gpu_ns) {
  const lt_anchor *best = lt_anchors_latest(c);
  if (by->era == best->era || by->segment != best->segment)
    return by;
  for (int64_t k = 0; k < kept(&c->anchors); k++) {
    const lt_anchor *x = &c->anchors.ring[k];
    if (x->era == best->era && distance(x->gpu_ns, gpu_ns) < distance(best->gpu_ns, gpu_ns))
      best = x;
  }
  return best;
}

bool lt_anchor_allows(const lt_anchor *a, const lt_bounds *b) {
  const int64_t end = b->gpu_ns + b->dur_ns;
  const double ss = b->err_ns + LT_MAX_RATE_PPB * (double)distance(b->gpu_ns, a->gpu_ns) / 1e9;
  const double se = b->err_ns + LT_MAX_RATE_PPB * (double)distance(end, a->gpu_ns) / 1e9;
  const double lo = (double)(a->lo - a->gpu_ns), hi = (double)(a->hi - a->gpu_ns);
  return (double)(b->enqueue_mono_ns - b->gpu_ns) <= hi + ss && (double)(b->closed_mono_ns - end) <= hi + se &&
         (double)(b->seen_mono_ns - end) >= lo - se;
}

// lt_clock_publish shows the fit of the clock at a GPU time in the ring's context
// record and as an entry.
void lt_clock_publish(lt_context *c, int64_t gpu_ns) {
  const lt_clock *k = &c->clock;
  double lo, hi;
  lt_epoch_offsets(&k->cur, gpu_ns, &lo, &hi);
  lt_context_state *s = &c->state;
  s->gpu_ref_ns = gpu_ns;
  s->host_ref_ns = gpu_ns + k->cur.base + lt_round((lo + hi) / 2);
  s->uncertainty_ns = (uint64_t)lt_ceil((hi - lo) / 2);
  s->rate_ppb = -lt_round(k->piece[(k->pieces - 1) % LT_PIECES].rate_ppb);
  s->updated_mono_ns = lt_mono_ns();
  lt_ring_set_context(c->hub->ring, s);
  lt_anchor_entry a = {
      .context = (uint8_t)c->index,
      .gpu_ns = gpu_ns,
      .mono_ns = s->host_ref_ns,
      .rate_ppb = s->rate_ppb,
      .residual_ns = k->residual_ns,
      .uncertainty_ns = s->uncertainty_ns,
  };
  lt_words e = lt_anchor_words(&a);
  lt_ring_append(c->hub->ring, &e);
}

static void failed(lt_context *c, lt_result r, int64_t now) {
  c->anchors.due_mono_ns = now + LT_ANCHOR_AGE_NS / LT_SOONER_BY;
  if (!c->anchors.said_failed && r != LT_NOT_ASKED) {
    c->anchors.said_failed = true;
    lt_say("the clock of %s cannot be anchored (driver result %d): positions are as good as the spans' own bounds",
           c->name, (int)r);
  }
}

// adopt takes in a complete event stamped between two host times as the newest anchor.
// false: another one is wanted soon.
static bool adopt(lt_context *c, void *event, int64_t lo, int64_t hi, lt_harvest_stats *h) {
  lt_anchors *a = &c->anchors;
  lt_clock *k = &c->clock;
  lo -= LT_TICK_NS; // a stamp is the tick that had begun
  lt_anchor x = {.event = event, .lo = lo, .hi = hi};
  bool ok = true;
  if (!k->known) {
    x.gpu_ns = lt_clock_start(k, lo, hi);
  } else {
    const lt_anchor *last = lt_anchors_latest(c);
    float ms = 0;
    lt_result r = lt_since(c, last->event, event, &ms);
    h->calls++;
    double q = lt_quantum_ns(ms);
    if (r == 0 && ms >= 0 && q <= lt_max(LINK_NS, (double)(hi - lo) / 2)) {
      x.gpu_ns = last->gpu_ns + lt_round((double)ms * 1e6);
      ok = lt_clock_anchor(k, x.gpu_ns, lo, hi, q + LT_TICK_NS);
    } else {
      x.gpu_ns = lt_clock_resume(k, lo, hi);
      ok = false;
    }
  }
  if (hi - lo < a->narrowest)
    a->narrowest = hi - lo;
  x.era = k->era;
  x.segment = k->segment;
  lt_anchor *place = &a->ring[a->n % LT_ANCHOR_KEEP];
  if (place->event != NULL)
    a->spare[a->spares++] = place->event;
  *place = x;
  a->n++;
  lt_count(c, LT_CTR_ANCHORS, 1);
  lt_clock_publish(c, x.gpu_ns);
  return ok;
}

// try_one records an event and spins until it is complete, LT_ANCHOR_BOUND_NS at most.
static lt_result try_one(lt_context *c, lt_pool *p, void *event, int64_t *before, int64_t *after, uint32_t *calls) {
  if (lt_exiting())
    return LT_NOT_ASKED;
  *before = lt_mono_ns();
  *after = *before;
  ++*calls;
  lt_result r = lt_drv(c)->cuEventRecord(event, p->own);
  while (r == 0) {
    lt_result seen = lt_pending(c, event);
    *after = lt_mono_ns();
    ++*calls;
    if (seen == 0)
      break;
    if (seen != LT_NOT_READY || *after - *before >= LT_ANCHOR_BOUND_NS)
      r = seen;
  }
  return r;
}

// try_anchor takes the narrowest of several tries and says whether spans can land.
static bool try_anchor(lt_context *c, lt_pool *p, int64_t now, lt_harvest_stats *h) {
  lt_anchors *a = &c->anchors;
  const int tries = a->n > 0 ? LATER_TRIES : FIRST_TRIES;
  const int64_t good = a->n > 0 ? a->narrowest + a->narrowest / 4 : GOOD_NS;
  lt_anchor best = {0};
  for (int i = 0; i < tries; i++) {
    void *event = a->spare[--a->spares];
    int64_t before = now, after = now;
    lt_result r = try_one(c, p, event, &before, &after, &h->calls);
    if (r == LT_NOT_READY) {
      lt_count(c, LT_CTR_ANCHORS_GIVEN_UP, 1);
      a->pending = (lt_anchor){.event = event, .lo = before};
      break;
    }
    if (r != 0) {
      a->spare[a->spares++] = event;
      failed(c, r, now);
      break;
    }
    if (best.event == NULL || after - before < best.hi - best.lo) {
      if (best.event != NULL)
        a->spare[a->spares++] = best.event;
      best = (lt_anchor){.event = event, .lo = before, .hi = after};
    } else {
      a->spare[a->spares++] = event;
    }
    if (best.hi - best.lo <= good || lt_mono_ns() - now > 2 * LT_ANCHOR_BOUND_NS)
      break;
  }
  if (best.event != NULL) {
    const bool good_one = adopt(c, best.event, best.lo, best.hi, h);
    // The first follow each other closer: until two lie apart, the rate is a guess.
    int64_t age = LT_ANCHOR_AGE_NS >> (a->n <= YOUNG_ANCHORS ? YOUNG_ANCHORS + 1 - a->n : 0);
    if (!good_one)
      age /= LT_SOONER_BY;
    a->due_mono_ns = best.hi + age;
  }
  return a->n > 0 || a->pending.event == NULL;
}

bool lt_anchors_keep(lt_context *c, lt_pool *p, lt_harvest_stats *h) {
  lt_anchors *a = &c->anchors;
  if (a->pending.event != NULL) {
    void *event = a->pending.event;
    h->calls++;
    lt_result r = lt_pending(c, event);
    int64_t now = lt_mono_ns();
    if (r == LT_NOT_READY)
      return a->n > 0 || now - a->pending.lo > PATIENCE_NS;
    int64_t lo = a->pending.lo;
    a->pending = (lt_anchor){0};
    if (r != 0) {
      a->spare[a->spares++] = event;
      failed(c, r, now);
      return true;
    }
    adopt(c, event, lo, now, h);
    a->due_mono_ns = now + LT_ANCHOR_AGE_NS / LT_SOONER_BY;
    return true;
  }
  int64_t now = lt_mono_ns();
  if (atomic_load(&c->in_flight) == 0 || now < a->due_mono_ns)
    return true;
  if (!lt_capturing())
    return try_anchor(c, p, now, h);
  // A record on our own stream harms no capture; whether it is complete is asked later.
  if (lt_exiting())
    return false;
  void *event = a->spare[a->spares - 1];
  h->calls++;
  lt_result r = lt_drv(c)->cuEventRecord(event, p->own);
  if (r != 0) {
    failed(c, r, now);
    return true;
  }
  a->spares--;
  a->pending = (lt_anchor){.event = event, .lo = now};
  return a->n > 0;
}

// For a span that contradicts the last anchor: either its values are wrong, or one of
// the clocks has jumped since, as they can when a virtual machine was paused.
bool lt_anchors_look_again(lt_context *c, lt_pool *p, lt_harvest_stats *h) {
  lt_anchors *a = &c->anchors;
  int64_t now = lt_mono_ns(), n = a->n;
  if (now < a->again_mono_ns || a->pending.event != NULL || lt_capturing())
    return false;
  a->again_mono_ns = now + LT_ANCHOR_AGE_NS / LT_SOONER_BY;
  try_anchor(c, p, now, h);
  return a->n > n;
}
