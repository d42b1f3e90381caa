// Plays the loads of testdata/budgets.txt, which stands on its standard input, against
// the agent's budgets, as overhead_test.go does in Go, and prints a result for each.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "overhead.h"

enum { MOST = 400000 };

static lt_overhead over;
static lt_step_cost cost[MOST];
static struct step {
  bool armed;
  uint32_t lanes; // timed
  int64_t begin, end, from, to;
} all[MOST];
static int steps, first, landed, armed, untimed; // landed: its lanes are taken in when the next ones land
static int64_t now, gpu_free;
static uint64_t seed, decided, owed;

static void hash(uint64_t *h, int64_t v) {
  for (int i = 0; i < 8; i++)
    *h = (*h ^ ((uint64_t)v >> (8 * i) & 0xff)) * UINT64_C(1099511628211);
}

static int64_t vary(int64_t ns, int64_t jitter) {
  seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return ns + ns / 100 * ((int64_t)(seed >> 33) % (2 * jitter + 1) - jitter);
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t land(void) {
  const struct step *s = &all[first];
  if (s->lanes > 0) {
    if (landed >= 0) {
      const struct step *l = &all[landed];
      const lt_landed_step v = {l->armed, l->from, l->to, l->end, all[landed + 1].begin};
      lt_overhead_on_gpu(&over, &cost[landed], &v);
    }
    landed = first;
  }
  first++;
  return s->to;
}

static void step(int64_t host, int64_t gpu, uint32_t lanes, uint32_t launches, int behind, int64_t idle, int64_t jitter, int64_t times) {
  bool asked, out;
  const bool on = lt_overhead_begin(&over, true, &asked, &out);
  if (out)
    lanes = 0;
  if (!on)
    launches = 0;
  int64_t host_ns = vary(host, jitter) * times, gpu_ns = vary(gpu, jitter) * times;
  const int64_t more = (int64_t)lanes * LT_LANE_COST_NS + (int64_t)launches * LT_LAUNCH_COST_NS;
  if (gpu > 0)
    gpu_ns += more;
  else
    host_ns += more;
  const int64_t begin = now, end = now + host_ns;
  int64_t from = begin + host_ns / 4, to = end;
  if (gpu > 0) {
    from = later(begin + 5000, gpu_free);
    to = from + gpu_ns;
  }
  gpu_free = to;
  const lt_ended_step e = {begin, end, on, asked, out, lanes, launches};
  lt_overhead_ended(&over, &cost[steps], &e);
  all[steps++] = (struct step){on, lanes, begin, end, from, to};
  armed += on;
  untimed += out;
  now = end;
  while (steps - first > behind)
    now = later(now, land());
  now += idle;
  hash(&decided, on | asked << 1 | out << 2);
  hash(&owed, atomic_load(&over.arms.budget.owed_ns));
  hash(&owed, atomic_load(&over.lanes.budget.owed_ns));
}

static void result(void) {
  uint64_t bits = atomic_load(&over.time.mean_ns);
  double mean;
  memcpy(&mean, &bits, sizeof mean);
  printf("armed %d untimed %d strides %u %u mean %" PRId64 " decided %016" PRIx64 " owed %016" PRIx64 "\n", armed, untimed,
         lt_overhead_kernel_stride(&over), lt_overhead_lane_stride(&over), (int64_t)mean, decided, owed);
}

int main(void) {
  char line[512];
  while (fgets(line, sizeof line, stdin) != NULL) {
    uint32_t every, lanes, launches, ask;
    double kernels, lane_share;
    int n, behind, each;
    int64_t host, gpu, idle, jitter, times;
    if (sscanf(line, "settings every %u kernels %lf lanes %lf", &every, &kernels, &lane_share) == 3) {
      lt_overhead_init(&over, every, kernels, lane_share);
      memset(cost, 0, sizeof cost);
      steps = first = armed = untimed = 0;
      landed = -1;
      now = 1000000000;
      gpu_free = 0;
      seed = 1;
      decided = owed = UINT64_C(14695981039346656037);
    } else if (sscanf(line, "phase steps %d host %" SCNd64 " gpu %" SCNd64 " lanes %u launches %u behind %d idle %" SCNd64 " jitter %" SCNd64 " each %d times %" SCNd64 " ask %u",
                      &n, &host, &gpu, &lanes, &launches, &behind, &idle, &jitter, &each, &times, &ask) == 11) {
      if (steps + n > MOST || each < 1)
        return 1;
      atomic_fetch_add(&over.arms.asked, (int64_t)ask);
      for (int i = 0; i < n; i++)
        step(host, gpu, lanes, launches, behind, idle, jitter, i % each == each - 1 ? times : 1);
    } else if (strncmp(line, "result ", 7) == 0) {
      result();
    }
  }
  return 0;
}
