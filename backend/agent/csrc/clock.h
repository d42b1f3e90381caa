// SPDX-License-Identifier: Apache-2.0
//
// The GPU's clock on the host's.
//
// Nothing is known of how a context's GPU timeline lies on CLOCK_MONOTONIC but
// bounds: an anchor's stamp lies between two readings of the host's clock, a span's
// start after its enqueue, its end before it was seen complete. So a clock keeps the
// set of all (offset, rate) that no observation contradicts, a convex polygon, aims
// at its middle and publishes its half-width. An observation that leaves nothing of
// the set starts it afresh.
//
// The map itself never decreases: it is made of pieces, each added beyond everything
// mapped so far, and slews from one line to the next or jumps forward.
//
// A clock belongs to whoever harvests; nothing here locks, allocates or calls the
// driver.
#ifndef LANETRACE_AGENT_CLOCK_H
#define LANETRACE_AGENT_CLOCK_H

#include <stdint.h>

// 200 ppm bound the rate whatever was learnt: crystals are specified to 100 ppm at
// most, and 11.8 were measured on an H200.
#define LT_MAX_RATE_PPB 200000.0

enum { LT_MAX_CORNERS = 24, LT_CORNER_ROOM = 5 * LT_MAX_CORNERS, LT_PIECES = 64 };

// One way in which the timeline may lie on the host's clock: at the reference the
// host is off ns ahead of it, and gains rate ns a second.
typedef struct lt_candidate {
  double off, rate;
} lt_candidate;

// A convex polygon, its corners in counter-clockwise order.
typedef struct lt_feasible {
  int n;
  lt_candidate corner[LT_CORNER_ROOM];
} lt_feasible;

// What is known around one reference.
typedef struct lt_epoch {
  lt_feasible set; // offsets relative to base
  int64_t ref_gpu, base;
  double lo, hi; // the reference anchor's own bounds on the offset, relative to base
} lt_epoch;

// The map from gpu0 to the next piece's gpu0.
typedef struct lt_piece {
  int64_t gpu0, base;
  int64_t ref;     // where the line was fitted
  double off;      // offset there, relative to base
  double rate_ppb; // of the offset
  double err;      // what the map was ahead of the line at gpu0
  double slew;     // ns until err is gone
} lt_piece;

typedef struct lt_clock {
  int known;
  lt_epoch cur, prev; // prev: of the segment before, for spans placed by its anchors
  lt_piece piece[LT_PIECES];
  int64_t pieces; // ever made; the newest is at (pieces - 1) % LT_PIECES
  int64_t mapped; // greatest GPU time mapped
  int64_t residual_ns;
  uint64_t refits, resets, segment, era;
} lt_clock;

// What a span says about the clock. GPU times are known to ±err_ns.
typedef struct lt_bounds {
  int64_t gpu_ns, dur_ns;
  double err_ns;
  int64_t enqueue_mono_ns, closed_mono_ns, seen_mono_ns;
} lt_bounds;

// lt_clock_start begins the first segment with an anchor stamped between the host
// times lo and hi and returns its GPU time.
int64_t lt_clock_start(lt_clock *c, int64_t lo, int64_t hi);

// lt_clock_resume begins a segment after a gap that only the host's clock bridges.
int64_t lt_clock_resume(lt_clock *c, int64_t lo, int64_t hi);

// lt_clock_anchor takes in an anchor at a GPU time known to ±err_ns against the one
// before. 0: it contradicts what was learnt, and counts alone from now on.
int lt_clock_anchor(lt_clock *c, int64_t gpu_ns, int64_t lo, int64_t hi, double err_ns);

// lt_clock_span clips what is feasible with a span's bounds. 0: they contradict what
// was learnt, of which less is held true from now on. A span of another segment says
// nothing.
int lt_clock_span(lt_clock *c, const lt_bounds *b, uint64_t segment);

// lt_clock_place maps a GPU time found in a segment and says how far off that can be.
int64_t lt_clock_place(lt_clock *c, int64_t gpu_ns, uint64_t segment, uint64_t *uncertainty_ns);

// lt_clock_host is the map.
int64_t lt_clock_host(const lt_clock *c, int64_t gpu_ns);

// lt_clock_refit moves the map on to the middle of what is feasible now;
// lt_clock_stale says whether it lies well off it.
void lt_clock_refit(lt_clock *c);
int lt_clock_stale(const lt_clock *c);
void lt_clock_set_residual(lt_clock *c, int64_t gpu_ns);

// lt_epoch_offsets is the range of the offset at a GPU time, relative to base.
void lt_epoch_offsets(const lt_epoch *e, int64_t gpu_ns, double *lo, double *hi);
void lt_feasible_rates(const lt_feasible *f, double *lo, double *hi);

// Numbers, so that nothing of libm is needed ------------------------------------------------

static inline double lt_abs(double v) { return v < 0 ? -v : v; }
static inline double lt_min(double a, double b) { return a < b ? a : b; }
static inline double lt_max(double a, double b) { return a > b ? a : b; }

// lt_round rounds half away from zero, lt_ceil up; beyond int64 they give its ends.
int64_t lt_round(double v);
int64_t lt_ceil(double v);

// lt_quantum_ns is the distance of the 32-bit floats around ms, in ns: how uncertain
// a value is that the driver gives as ms. NaN when ms is not finite.
double lt_quantum_ns(float ms);

#endif
