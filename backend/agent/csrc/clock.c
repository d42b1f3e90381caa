// SPDX-License-Identifier: Apache-2.0

#include "clock.h"

#include <string.h>

// How the two clocks may wander against each other. The rate changes by at most
// RATE_WANDER ppb a second (1.2 ppm a minute, more than a crystal does while a
// machine warms up) and MAX_WANDER in the long run; OFFSET_WANDER, in ns a second,
// covers what is faster.
#define RATE_WANDER 20.0
#define MAX_WANDER 5000.0
#define OFFSET_WANDER 30.0

// The map takes SLEW_NS to move on to a new line; further behind than JUMP_NS it
// jumps.
#define SLEW_NS 500e6
#define JUMP_NS 100e3

#define INFINITE __builtin_inf()

int64_t lt_round(double v) {
  if (!(v < 9.2e18))
    return INT64_MAX;
  if (v < -9.2e18)
    return INT64_MIN;
  // A value with a fraction is under 2^52: what is added is exact.
  double whole = (double)(int64_t)v;
  double part = v - whole;
  return (int64_t)whole + (part >= 0.5 ? 1 : part <= -0.5 ? -1 : 0);
}

int64_t lt_ceil(double v) {
  if (!(v < 9.2e18))
    return INT64_MAX;
  if (v < -9.2e18)
    return INT64_MIN;
  int64_t n = (int64_t)v;
  return (double)n < v ? n + 1 : n;
}

double lt_quantum_ns(float ms) {
  if (__builtin_isnan(ms) || __builtin_isinf(ms))
    return __builtin_nan("");
  uint32_t bits;
  memcpy(&bits, &ms, sizeof bits);
  bits &= 0x7fffffff;
  uint32_t other = bits == 0x7f7fffff ? bits - 1 : bits + 1;
  float at, next;
  memcpy(&at, &bits, sizeof at);
  memcpy(&next, &other, sizeof next);
  return lt_abs((double)next - (double)at) * 1e6;
}

// The polygon ---------------------------------------------------------------------------

static double at(lt_candidate c, double x) { return c.off + c.rate * x; }

static void set_rectangle(lt_feasible *f, double off_lo, double off_hi, double rate_lo, double rate_hi) {
  f->n = 4;
  f->corner[0] = (lt_candidate){off_lo, rate_lo};
  f->corner[1] = (lt_candidate){off_hi, rate_lo};
  f->corner[2] = (lt_candidate){off_hi, rate_hi};
  f->corner[3] = (lt_candidate){off_lo, rate_hi};
}

static void set_offsets(const lt_feasible *f, double x, double *lo, double *hi) {
  *lo = INFINITE;
  *hi = -INFINITE;
  for (int i = 0; i < f->n; i++) {
    double v = at(f->corner[i], x);
    *lo = lt_min(*lo, v);
    *hi = lt_max(*hi, v);
  }
}

void lt_feasible_rates(const lt_feasible *f, double *lo, double *hi) {
  *lo = INFINITE;
  *hi = -INFINITE;
  for (int i = 0; i < f->n; i++) {
    *lo = lt_min(*lo, f->corner[i].rate);
    *hi = lt_max(*hi, f->corner[i].rate);
  }
}

static void set_simplify(lt_feasible *f);

// set_clip keeps the candidates with o*off + r*rate <= bound. Were none left, the set
// stays as it was and 0 is returned.
static int set_clip(lt_feasible *f, double o, double r, double bound) {
  double in[LT_CORNER_ROOM]; // >= 0 inside
  int cuts = 0;
  for (int i = 0; i < f->n; i++) {
    in[i] = bound - o * f->corner[i].off - r * f->corner[i].rate;
    cuts |= in[i] < 0;
  }
  if (!cuts)
    return 1;
  lt_feasible out;
  out.n = 0;
  for (int i = 0, j = f->n - 1; i < f->n; j = i++) {
    lt_candidate a = f->corner[j], b = f->corner[i];
    if ((in[j] < 0) != (in[i] < 0)) {
      double t = in[j] / (in[j] - in[i]);
      out.corner[out.n++] = (lt_candidate){a.off + t * (b.off - a.off), a.rate + t * (b.rate - a.rate)};
    }
    if (in[i] >= 0)
      out.corner[out.n++] = b;
  }
  if (out.n == 0)
    return 0;
  f->n = out.n;
  memcpy(f->corner, out.corner, (size_t)out.n * sizeof out.corner[0]);
  if (f->n > LT_MAX_CORNERS)
    set_simplify(f);
  return 1;
}

// The offset x seconds from the reference is at least, or at most, bound.
static int set_above(lt_feasible *f, double x, double bound) { return set_clip(f, -1, -x, -bound); }
static int set_below(lt_feasible *f, double x, double bound) { return set_clip(f, 1, x, bound); }

// set_simplify replaces the set by the smallest one around it whose edges lie in the
// directions that are asked about. Nothing that was feasible is lost.
static void set_simplify(lt_feasible *f) {
  static const double x[] = {-60, -10, -1, 1, 10, 60};
  enum { N = sizeof x / sizeof x[0] };
  double lo[N], hi[N], off_lo, off_hi, rate_lo, rate_hi;
  for (int i = 0; i < N; i++)
    set_offsets(f, x[i], &lo[i], &hi[i]);
  set_offsets(f, 0, &off_lo, &off_hi);
  lt_feasible_rates(f, &rate_lo, &rate_hi);
  set_rectangle(f, off_lo, off_hi, rate_lo, rate_hi);
  for (int i = 0; i < N; i++) {
    set_above(f, x[i], lo[i]);
    set_below(f, x[i], hi[i]);
  }
}

static int before(lt_candidate a, lt_candidate b) { return a.off != b.off ? a.off < b.off : a.rate < b.rate; }

static double turn(lt_candidate a, lt_candidate b, lt_candidate c) {
  return (b.off - a.off) * (c.rate - a.rate) - (b.rate - a.rate) * (c.off - a.off);
}

// hull writes the convex hull of n points, which it sorts, counter-clockwise.
static void hull(lt_candidate *p, int n, lt_feasible *f) {
  for (int i = 1; i < n; i++) {
    lt_candidate v = p[i];
    int j = i;
    for (; j > 0 && before(v, p[j - 1]); j--)
      p[j] = p[j - 1];
    p[j] = v;
  }
  int m = 0;
  for (int i = 0; i < n; i++)
    if (m == 0 || p[i].off != p[m - 1].off || p[i].rate != p[m - 1].rate)
      p[m++] = p[i];
  lt_candidate *out = f->corner;
  int k = 0;
  if (m < 3) {
    for (; k < m; k++)
      out[k] = p[k];
    f->n = m;
    return;
  }
  for (int i = 0; i < m; i++) { // lower chain
    while (k >= 2 && turn(out[k - 2], out[k - 1], p[i]) <= 0)
      k--;
    out[k++] = p[i];
  }
  int low = k + 1;
  for (int i = m - 2; i >= 0; i--) { // upper chain
    while (k >= low && turn(out[k - 2], out[k - 1], p[i]) <= 0)
      k--;
    out[k++] = p[i];
  }
  f->n = k - 1;
}

// set_move puts the reference dx seconds later and widens the set by what may have
// changed meanwhile.
static void set_move(lt_feasible *f, double dx, double d_off, double d_rate) {
  lt_candidate p[4 * LT_CORNER_ROOM];
  int n = 0;
  for (int i = 0; i < f->n; i++) {
    double o = at(f->corner[i], dx), r = f->corner[i].rate;
    p[n++] = (lt_candidate){o - d_off, r - d_rate};
    p[n++] = (lt_candidate){o + d_off, r - d_rate};
    p[n++] = (lt_candidate){o + d_off, r + d_rate};
    p[n++] = (lt_candidate){o - d_off, r + d_rate};
  }
  hull(p, n, f);
  if (f->n > LT_MAX_CORNERS)
    set_simplify(f);
}

// Epochs ------------------------------------------------------------------------------------

static double seconds(const lt_epoch *e, int64_t gpu_ns) { return (double)(gpu_ns - e->ref_gpu) / 1e9; }

static double slack(double x) {
  x = lt_abs(x);
  return (OFFSET_WANDER + lt_min(RATE_WANDER * x / 2, MAX_WANDER)) * x;
}

static double wander(double x) { return lt_min(RATE_WANDER * x, MAX_WANDER); }

void lt_epoch_offsets(const lt_epoch *e, int64_t gpu_ns, double *lo, double *hi) {
  double x = seconds(e, gpu_ns), s = slack(x);
  set_offsets(&e->set, x, lo, hi);
  *lo -= s;
  *hi += s;
}

static void epoch_begin(lt_epoch *e, int64_t gpu_ns, int64_t lo, int64_t hi, double rate_lo, double rate_hi) {
  e->ref_gpu = gpu_ns;
  e->base = lo + (hi - lo) / 2 - gpu_ns;
  e->lo = (double)(lo - gpu_ns - e->base);
  e->hi = (double)(hi - gpu_ns - e->base);
  set_rectangle(&e->set, e->lo, e->hi, lt_max(rate_lo, -LT_MAX_RATE_PPB), lt_min(rate_hi, LT_MAX_RATE_PPB));
}

static int epoch_clip(lt_epoch *e, const lt_bounds *b) {
  int64_t end = b->gpu_ns + b->dur_ns;
  double xs = seconds(e, b->gpu_ns), xe = seconds(e, end);
  return set_above(&e->set, xs, (double)(b->enqueue_mono_ns - b->gpu_ns - e->base) - b->err_ns - slack(xs)) &&
         set_above(&e->set, xe, (double)(b->closed_mono_ns - end - e->base) - b->err_ns - slack(xe)) &&
         set_below(&e->set, xe, (double)(b->seen_mono_ns - end - e->base) + b->err_ns + slack(xe));
}

// The map -------------------------------------------------------------------------------------

static double piece_line(const lt_piece *p, int64_t gpu_ns) {
  return p->off + p->rate_ppb * (double)(gpu_ns - p->ref) / 1e9;
}

static int64_t piece_host(const lt_piece *p, int64_t gpu_ns) {
  double left = lt_min(1, lt_max(0, 1 - (double)(gpu_ns - p->gpu0) / p->slew));
  return gpu_ns + p->base + lt_round(piece_line(p, gpu_ns) + p->err * left);
}

static const lt_piece *newest(const lt_clock *c) { return &c->piece[(c->pieces - 1) % LT_PIECES]; }

int64_t lt_clock_host(const lt_clock *c, int64_t gpu_ns) {
  int64_t n = c->pieces < LT_PIECES ? c->pieces : LT_PIECES;
  for (int64_t k = 1;; k++) {
    const lt_piece *p = &c->piece[(c->pieces - k) % LT_PIECES];
    if (gpu_ns >= p->gpu0 || k >= n) // the oldest kept serves everything before it
      return piece_host(p, gpu_ns);
  }
}

static int64_t clock_gpu(const lt_clock *c, int64_t host_ns) {
  const lt_piece *p = newest(c);
  int64_t g = host_ns - p->base;
  for (int i = 0; i < 4; i++)
    g += host_ns - piece_host(p, g);
  return g;
}

void lt_clock_refit(lt_clock *c) {
  const lt_epoch *e = &c->cur;
  lt_piece p = {.gpu0 = c->mapped + 1, .base = e->base, .slew = SLEW_NS};
  p.ref = e->ref_gpu > c->mapped ? e->ref_gpu : c->mapped;
  double lo, hi, lo1, hi1;
  lt_epoch_offsets(e, p.ref, &lo, &hi);
  lt_epoch_offsets(e, p.ref + 1000000000, &lo1, &hi1);
  p.off = (lo + hi) / 2;
  p.rate_ppb = (lo1 + hi1) / 2 - p.off;
  if (c->pieces > 0) {
    // The new piece meets the map so far at gpu0, or lies ahead of it. Slewing takes a
    // quarter of the map's speed at the most.
    p.err = (double)(lt_clock_host(c, p.gpu0) - p.gpu0 - p.base) - piece_line(&p, p.gpu0);
    if (p.err < -JUMP_NS)
      p.err = 0;
    p.slew = lt_max(SLEW_NS, 4 * lt_abs(p.err));
    // One that never served is replaced; the first also serves what lies before it.
    if (newest(c)->gpu0 == p.gpu0 && c->pieces > 1)
      c->pieces--;
  }
  c->piece[c->pieces % LT_PIECES] = p;
  c->pieces++;
  c->refits++;
}

int lt_clock_stale(const lt_clock *c) {
  const lt_epoch *e = &c->cur;
  int64_t g = e->ref_gpu > c->mapped ? e->ref_gpu : c->mapped;
  double lo, hi;
  lt_epoch_offsets(e, g, &lo, &hi);
  const lt_piece *p = newest(c);
  double m = piece_line(p, g) + (double)(p->base - e->base);
  return lt_abs(m - (lo + hi) / 2) > 1000 + (hi - lo) / 4;
}

void lt_clock_set_residual(lt_clock *c, int64_t gpu_ns) {
  double lo, hi;
  lt_epoch_offsets(&c->cur, gpu_ns, &lo, &hi);
  c->residual_ns = lt_clock_host(c, gpu_ns) - (gpu_ns + c->cur.base + lt_round((lo + hi) / 2));
}

// Observations ---------------------------------------------------------------------------------

int64_t lt_clock_start(lt_clock *c, int64_t lo, int64_t hi) {
  // The timeline's zero is ours to choose: at first it reads like the host's clock.
  int64_t g = lo + (hi - lo) / 2;
  c->known = 1;
  c->segment++;
  c->mapped = g;
  epoch_begin(&c->cur, g, lo, hi, -LT_MAX_RATE_PPB, LT_MAX_RATE_PPB);
  lt_clock_refit(c);
  return g;
}

int64_t lt_clock_resume(lt_clock *c, int64_t lo, int64_t hi) {
  int64_t g = clock_gpu(c, lo + (hi - lo) / 2);
  if (g <= c->mapped)
    g = c->mapped + 1;
  if (g <= c->cur.ref_gpu)
    g = c->cur.ref_gpu + 1;
  double d = wander(seconds(&c->cur, g)), rate_lo, rate_hi;
  lt_feasible_rates(&c->cur.set, &rate_lo, &rate_hi);
  c->prev = c->cur;
  epoch_begin(&c->cur, g, lo, hi, rate_lo - d, rate_hi + d);
  c->segment++;
  lt_clock_set_residual(c, g);
  lt_clock_refit(c);
  return g;
}

// The reference anchor counts alone, at any rate.
static void contradicted(lt_clock *c) {
  c->resets++;
  set_rectangle(&c->cur.set, c->cur.lo, c->cur.hi, -LT_MAX_RATE_PPB, LT_MAX_RATE_PPB);
}

int lt_clock_anchor(lt_clock *c, int64_t gpu_ns, int64_t lo, int64_t hi, double err_ns) {
  lt_epoch *e = &c->cur;
  double dx = seconds(e, gpu_ns);
  set_move(&e->set, dx, slack(dx) + err_ns, wander(dx));
  set_clip(&e->set, 0, 1, LT_MAX_RATE_PPB);
  set_clip(&e->set, 0, -1, LT_MAX_RATE_PPB);
  e->ref_gpu = gpu_ns;
  e->lo = (double)(lo - gpu_ns - e->base);
  e->hi = (double)(hi - gpu_ns - e->base);
  int ok = set_above(&e->set, 0, e->lo) && set_below(&e->set, 0, e->hi);
  if (!ok) {
    c->era++;
    contradicted(c);
  }
  lt_clock_set_residual(c, gpu_ns);
  lt_clock_refit(c);
  return ok;
}

int lt_clock_span(lt_clock *c, const lt_bounds *b, uint64_t segment) {
  if (segment != c->segment || epoch_clip(&c->cur, b))
    return 1;
  contradicted(c);
  epoch_clip(&c->cur, b);
  return 0;
}

int64_t lt_clock_place(lt_clock *c, int64_t gpu_ns, uint64_t segment, uint64_t *uncertainty_ns) {
  const lt_epoch *e = segment == c->segment ? &c->cur : &c->prev;
  int64_t host = lt_clock_host(c, gpu_ns);
  if (gpu_ns > c->mapped)
    c->mapped = gpu_ns;
  double lo, hi, m = (double)(host - gpu_ns - e->base);
  lt_epoch_offsets(e, gpu_ns, &lo, &hi);
  *uncertainty_ns = (uint64_t)lt_ceil(lt_max(0, lt_max(hi - m, m - lo)));
  return host;
}
