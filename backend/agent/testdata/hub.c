// SPDX-License-Identifier: Apache-2.0
//
// An engine that does what it is told, line by line, over the hub and the stand-in
// driver: hub_test.go is its other half. Steps, lanes and streams have numbers. Each
// line is answered by one.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "cuda_abi.h"
#include "events.h"

enum { MANY = 8192, STREAMS = 64 };

static lt_driver driver;
static CUcontext context;
static CUfunction function;
static CUgraphExec exec;
static lt_step step[MANY];
static lt_lane lane[MANY];
static void *stream[STREAMS];
static uint64_t calls_at_stop;

static const char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                          ".visible .entry work()\n{\n ret;\n}\n";

static void *find(void *user, const char *name) {
  (void)user;
  return dlsym(RTLD_DEFAULT, name);
}

#define MUST(call)                                                 \
  do {                                                             \
    int r_ = (call);                                               \
    if (r_ != 0) {                                                 \
      printf("! %s: %d\n", #call, r_);                             \
      exit(3);                                                     \
    }                                                              \
  } while (0)

static int launch_raw(void *s) { return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL); }

// cpu_ns is the processor time of the calling thread.
static int64_t cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000 * LT_MS + t.tv_nsec;
}

// launch is what a hook does.
static int launch(void *s, int kind, lt_step own, uint32_t name) {
  lt_launch l;
  int timed = lt_timing() && lt_launch_begin(&l, kind, s, name, own);
  int r = kind == LT_LAUNCH_GRAPH ? cuGraphLaunch(exec, s) : launch_raw(s);
  if (timed)
    lt_launch_end(&l, r);
  return timed;
}

static int drain(void) {
  for (int64_t end = lt_mono_ns() + 10000 * LT_MS; lt_mono_ns() < end;) {
    lt_hub_harvest();
    if (lt_hub_in_flight() == 0)
      return 0;
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  }
  return 1;
}

// What happens in the middle of a storm.
enum { TO_ITS_END = 0, CONTEXT_ENDS = 1, HUB_STOPS = 2 };
static _Atomic int raging;

// A storm: threads begin and end steps and lanes and launch, on shared streams and on
// their own, while the level changes.
typedef struct storm {
  pthread_t thread;
  int number, rounds;
  uint16_t lanes[2];
} storm;

static void *rage(void *arg) {
  storm *me = arg;
  MUST(cuCtxSetCurrent(context));
  CUstream mine;
  MUST(cuStreamCreate(&mine, 1));
  for (int i = 0; i < me->rounds; i++) {
    void *s = i % 3 == 0 ? mine : i % 3 == 1 ? stream[0] : LT_STREAM_PER_THREAD;
    lt_step st = lt_step_begin();
    lt_lane a = lt_lane_begin(st, me->lanes[0], s);
    launch(s, LT_LAUNCH_KERNEL, st, 0);
    lt_lane b = lt_lane_begin(st, me->lanes[1], s);
    launch(s, LT_LAUNCH_KERNEL, st, 0);
    if (i % 5 == 0) {
      b = lt_lane_next(b, me->lanes[0]); // misuse half of the time: a may be open there
      lt_lane_end(b);
    } else if (i % 7 != 0) {
      lt_lane_end(b); // else it ends with the context
    }
    lt_lane_end(a);
    if (i % 11 == 0)
      lt_lane_end(a); // stale
    if (i % 4 == 1) {
      lt_stream_destroyed(mine);
      MUST(cuStreamDestroy_v2(mine));
      MUST(cuStreamCreate(&mine, 1));
    }
    if (me->number == 0)
      lt_hub_set_level(i % 4);
    lt_step_end(st);
  }
  lt_stream_destroyed(mine);
  MUST(cuStreamDestroy_v2(mine));
  atomic_fetch_sub(&raging, 1);
  return NULL;
}

static void run_storm(int threads, int rounds, int what) {
  storm s[64];
  if (threads > 64)
    threads = 64;
  uint16_t a = lt_lane_id("a", 1), b = lt_lane_id("b", 1);
  for (int i = 0; i < threads; i++) {
    s[i] = (storm){.number = i, .rounds = rounds, .lanes = {a, b}};
    atomic_fetch_add(&raging, 1);
    MUST(pthread_create(&s[i].thread, NULL, rage, &s[i]));
  }
  while (what == CONTEXT_ENDS && atomic_load(&raging) > 0) {
    lt_context_end(context); // and lives on, as a primary context may
    lt_context_open(context);
  }
  if (what == HUB_STOPS) {
    while (lt_ring_counter(lt_hub_ring(), LT_CTR_STEPS_ENDED) < (uint64_t)rounds)
      nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    lt_hub_stop();
  }
  for (int i = 0; i < threads; i++)
    MUST(pthread_join(s[i].thread, NULL));
}

static void *end_elsewhere(void *arg) {
  lt_lane_end(*(lt_lane *)arg);
  return NULL;
}

// begin_late is a thread whose lane begins while the hub stops.
static void *begin_late(void *l) {
  MUST(cuCtxSetCurrent(context));
  *(lt_lane *)l = lt_lane_begin(step[0], 1, stream[0]);
  return NULL;
}

// once is a thread that times one lane on its own default stream and ends.
static void *once(void *unused) {
  (void)unused;
  MUST(cuCtxSetCurrent(context));
  lt_step t = lt_step_begin();
  lt_lane l = lt_lane_begin(t, 1, LT_STREAM_PER_THREAD);
  launch_raw(LT_STREAM_PER_THREAD);
  lt_lane_end(l);
  lt_step_end(t);
  MUST(cuStreamSynchronize((CUstream)LT_STREAM_PER_THREAD));
  return NULL;
}

static lt_pool *pool_of(void) {
  lt_hub *h = lt_the_hub();
  return atomic_load(&h->context[0]->pool);
}

// remembered is how many streams the context's table has memory for.
static int remembered(void) {
  lt_context *k = lt_the_hub()->context[0];
  int known = 0;
  pthread_mutex_lock(&k->streams.mu);
  for (lt_stream *s = atomic_load(&k->streams.first); s != NULL; s = atomic_load(&s->next))
    known++;
  for (lt_stream *s = k->streams.spare; s != NULL; s = atomic_load(&s->next))
    known++;
  pthread_mutex_unlock(&k->streams.mu);
  return known;
}

// time_passes has what is over forgotten.
static void time_passes(void) {
  lt_context *k = lt_the_hub()->context[0];
  drain();
  pthread_mutex_lock(&k->mu);
  k->next_sweep = 0;
  pthread_mutex_unlock(&k->mu);
  lt_hub_harvest();
}

static void setup(void) {
  CUmodule m;
  CUdevice dev;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&dev, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, dev));
  MUST(cuCtxSetCurrent(context));
  MUST(cuModuleLoadData(&m, ptx));
  MUST(cuModuleGetFunction(&function, m, "work"));
  const char *missing = lt_driver_resolve(&driver, find, NULL);
  if (missing != NULL) {
    printf("! no %s\n", missing);
    exit(3);
  }
}

// A driver that lies about one pair.
static struct {
  int how; // 1 end before start, 2 not a number, 3 zero, 4 too long, 5 elsewhere
  void *start, *end;
} lie;

static lt_result lying(float *ms, void *a, void *b) {
  lt_result r = driver.elapsed(ms, a, b);
  if (r != 0 || lie.how == 0)
    return r;
  if (a == lie.start && b == lie.end) {
    const float pair[] = {*ms, -*ms, __builtin_nanf(""), 0, *ms + 1e5f, *ms};
    *ms = pair[lie.how];
  } else if (lie.how == 5 && b == lie.start && a != b) {
    *ms += 5000; // from an anchor
  }
  return r;
}

static void *level_seen_user = &driver;
static int level_seen = -1;
static void see_level(int level, void *user) {
  if (user == level_seen_user)
    level_seen = level;
}

static int is(const char *a, const char *b) { return strcmp(a, b) == 0; }

// act answers one line.
static void act(char *text) {
  char op[32] = "", word[256] = "";
  long a = 0, b = 0, c = 0, d = 0;
  int n = sscanf(text, "%31s %ld %ld %ld %ld", op, &a, &b, &c, &d);
  if (n < 2)
    n = sscanf(text, "%31s %255s %ld %ld %ld", op, word, &a, &b, &c);
  if (is(op, "start")) {
    setup();
    printf("%d\n", lt_hub_start(&driver));
  } else if (is(op, "open")) {
    printf("%d\n", lt_context_open(context));
  } else if (is(op, "reopen")) { // the context ends and another comes
    lt_context_end(context);
    MUST(cuDevicePrimaryCtxReset_v2(0));
    setup();
    printf("%d\n", lt_context_open(context));
  } else if (is(op, "close")) {
    lt_context_end(context);
    puts("0");
  } else if (is(op, "device")) { // its context becomes current and known
    CUcontext c;
    MUST(cuDevicePrimaryCtxRetain(&c, (CUdevice)a));
    MUST(cuCtxSetCurrent(c));
    printf("%d\n", lt_context_open(c));
  } else if (is(op, "nocontext")) {
    MUST(cuCtxSetCurrent(NULL));
    printf("%d\n", lt_context_index(NULL));
  } else if (is(op, "current")) { // the device of the current context, -1
    CUdevice d = -1;
    printf("%d\n", cuCtxGetDevice(&d) == 0 ? d : -1);
  } else if (is(op, "path")) {
    puts(lt_ring_path(lt_hub_ring()));
  } else if (is(op, "stream")) { // number, 0 new, 1 legacy, 2 per thread
    if (b == 0) {
      CUstream s;
      MUST(cuStreamCreate(&s, 1));
      stream[a] = s;
    } else {
      stream[a] = (void *)b;
    }
    puts("0");
  } else if (is(op, "destroy")) {
    lt_stream_destroyed(stream[a]);
    printf("%d\n", cuStreamDestroy_v2(stream[a]));
  } else if (is(op, "lane")) {
    printf("%d\n", lt_lane_id(word, (uint32_t)strlen(word)));
  } else if (is(op, "step")) {
    step[a] = lt_step_begin();
    printf("%lu %d\n", (unsigned long)lt_step_id(step[a]), lt_step_armed(step[a]));
  } else if (is(op, "endstep")) {
    lt_step_end(step[a]);
    puts("0");
  } else if (is(op, "attrs")) {
    lt_step_attrs(step[a], &(lt_attrs){(uint32_t)b, (uint32_t)c, (uint32_t)d, LT_GRAPH_REPLAY});
    puts("0");
  } else if (is(op, "link")) { // step, first byte of the ids, flags, how often
    lt_trace_context t = {.flags = (uint8_t)c};
    t.trace_id[0] = t.span_id[0] = (uint8_t)b;
    for (long i = 0; i < d; i++)
      lt_step_link(step[a], &t);
    puts("0");
  } else if (is(op, "request")) {
    lt_request r = {.context = {.flags = 1}, .begin_mono_ns = b, .end_mono_ns = c, .prompt_tokens = 3, .output_tokens = 4};
    r.context.trace_id[0] = r.context.span_id[0] = (uint8_t)a;
    lt_request_end(&r);
    puts("0");
  } else if (is(op, "begin")) { // lane, step, id, stream
    lane[a] = lt_lane_begin(step[b], (uint16_t)c, stream[d]);
    printf("%d\n", lt_lane_is_open(lane[a]));
  } else if (is(op, "end")) {
    lt_lane_end(lane[a]);
    puts("0");
  } else if (is(op, "endelsewhere")) {
    pthread_t t;
    MUST(pthread_create(&t, NULL, end_elsewhere, &lane[a]));
    MUST(pthread_join(t, NULL));
    puts("0");
  } else if (is(op, "next")) { // new lane, old lane, id
    lane[a] = lt_lane_next(lane[b], (uint16_t)c);
    printf("%d\n", lt_lane_is_open(lane[a]));
  } else if (is(op, "bind")) {
    lt_bind(a < 0 ? 0 : step[a], stream[b]);
    puts("0");
  } else if (is(op, "launch")) { // stream, own step or -1
    printf("%d\n", launch(stream[a], LT_LAUNCH_KERNEL, b < 0 ? 0 : step[b], lt_ring_name_z(lt_hub_ring(), LT_NAME_KERNEL, "work")));
  } else if (is(op, "untimed")) { // stream
    lt_launch_untimed(stream[a]);
    puts("0");
  } else if (is(op, "halflaunch")) { // the context ends, and with 1 comes again, during a launch
    lt_launch l;
    int timed = lt_launch_begin(&l, LT_LAUNCH_KERNEL, stream[a], 0, step[b]);
    lt_context_end(context);
    if (c == 1)
      lt_context_open(context);
    if (timed)
      lt_launch_end(&l, launch_raw(stream[a]));
    if (c == 0)
      lt_context_open(context);
    printf("%d\n", timed);
  } else if (is(op, "graph")) {
    printf("%d\n", launch(stream[a], LT_LAUNCH_GRAPH, b < 0 ? 0 : step[b], lt_ring_graph_name(lt_hub_ring(), 7, 3, "g", 1)));
  } else if (is(op, "capture")) {
    lt_capture_begun();
    printf("%d\n", cuStreamBeginCapture_v2(stream[a], (int)b));
  } else if (is(op, "endcapture")) {
    CUgraph g = NULL;
    int r = cuStreamEndCapture(stream[a], &g);
    lt_capture_ended();
    if (r == 0 && exec == NULL)
      r = cuGraphInstantiateWithFlags(&exec, g, 0);
    printf("%d\n", r);
  } else if (is(op, "fail")) {
    printf("%d\n", lt_testdriver_fail(word, (int)a, (int)b, (int)c));
  } else if (is(op, "lie")) { // lane, how
    lie.start = pool_of()->cell[lane[a].slot].start;
    lie.end = pool_of()->cell[lane[a].slot].end;
    lie.how = (int)b;
    lt_the_hub()->drv.elapsed = lying;
    puts("0");
  } else if (is(op, "anchored")) { // how many anchors there are, and ns from the newest to the next
    lt_context *k = lt_the_hub()->context[0];
    pthread_mutex_lock(&k->mu);
    printf("%ld %ld\n", (long)k->anchors.n, (long)(k->anchors.due_mono_ns - lt_anchors_latest(k)->hi));
    pthread_mutex_unlock(&k->mu);
  } else if (is(op, "stallown")) { // the stream of the anchors
    printf("%d\n", lt_testdriver_stall_stream(pool_of()->own, (int)a));
  } else if (is(op, "foreigncapture")) { // of which the hub hears nothing
    printf("%d\n", cuStreamBeginCapture_v2(stream[a], (int)b));
  } else if (is(op, "foreignend")) {
    CUgraph g = NULL;
    printf("%d\n", cuStreamEndCapture(stream[a], &g));
  } else if (is(op, "heal")) {
    lt_testdriver_clear_faults();
    puts("0");
  } else if (is(op, "stall")) {
    printf("%d\n", lt_testdriver_stall_stream(stream[a], (int)b));
  } else if (is(op, "callns")) { // how long a call takes the host
    printf("%d\n", lt_testdriver_set_call_ns(word, a));
  } else if (is(op, "began")) { // the lane's start is complete
    float ms;
    printf("%d\n", driver.elapsed(&ms, pool_of()->cell[lane[a].slot].start, pool_of()->cell[lane[a].slot].start) == 0);
  } else if (is(op, "calls")) {
    printf("%lu\n", (unsigned long)lt_testdriver_calls(word));
  } else if (is(op, "allcalls")) {
    printf("%lu\n", (unsigned long)lt_testdriver_calls_total());
  } else if (is(op, "live")) {
    printf("%lu\n", (unsigned long)lt_testdriver_live(word));
  } else if (is(op, "clock")) {
    lt_testdriver_set_clock(a, b);
    puts("0");
  } else if (is(op, "kernelns")) {
    lt_testdriver_set_kernel_ns(NULL, a);
    puts("0");
  } else if (is(op, "afterrecord")) {
    lt_testdriver_set_after_record_ns(a);
    puts("0");
  } else if (is(op, "level")) {
    lt_hub_set_level((int)a);
    printf("%d\n", lt_hub_level());
  } else if (is(op, "getlevel")) {
    printf("%d\n", lt_hub_level());
  } else if (is(op, "onlevel")) {
    printf("%d\n", lt_hub_on_level(see_level, level_seen_user));
  } else if (is(op, "seen")) {
    printf("%d\n", level_seen);
  } else if (is(op, "arm")) {
    lt_hub_arm((uint32_t)a);
    puts("0");
  } else if (is(op, "timing")) {
    printf("%d\n", lt_timing());
  } else if (is(op, "hold")) { // the thread lands nothing and asks the driver nothing
    if (a)
      MUST(pthread_mutex_lock(&lt_the_hub()->context[0]->mu));
    else
      MUST(pthread_mutex_unlock(&lt_the_hub()->context[0]->mu));
    puts("0");
  } else if (is(op, "harvest")) {
    lt_hub_harvest();
    puts("0");
  } else if (is(op, "drain")) {
    printf("%d\n", drain());
  } else if (is(op, "inflight")) {
    printf("%ld\n", (long)lt_hub_in_flight());
  } else if (is(op, "threads")) { // that come and go
    for (long i = 0; i < a; i++) {
      pthread_t t;
      MUST(pthread_create(&t, NULL, once, NULL));
      MUST(pthread_join(t, NULL));
      if (i % 50 == 49)
        time_passes();
    }
    printf("%d\n", remembered());
  } else if (is(op, "churn")) { // streams that come and go; answers how many are remembered
    for (long i = 0; i < a; i++) {
      CUstream s;
      MUST(cuStreamCreate(&s, 1));
      lt_step t = lt_step_begin();
      lt_lane_end(lt_lane_begin(t, 1, s));
      if (i % 3 == 0)
        lt_bind(t, s);
      lt_step_end(t);
      lt_stream_destroyed(s);
      MUST(cuStreamDestroy_v2(s));
      if (i % 50 == 49)
        time_passes();
    }
    printf("%d\n", remembered());
  } else if (is(op, "sync")) {
    printf("%d\n", cuCtxSynchronize());
  } else if (is(op, "sleepms")) {
    nanosleep(&(struct timespec){.tv_sec = a / 1000, .tv_nsec = a % 1000 * 1000000}, NULL);
    puts("0");
  } else if (is(op, "abandon")) { // as if the step had ended long ago
    lt_hub *h = lt_the_hub();
    h->step[lt_step_id(step[a]) % LT_OPEN_STEPS].end_ns = 1;
    h->context[0]->next_sweep = 0;
    puts("0");
  } else if (is(op, "truth")) { // when a lane's events were really stamped
    lt_pool *p = pool_of();
    int64_t from = 0, to = 0, gpu0 = 0, gpu1 = 0;
    int r = lt_testdriver_event_time(lt_pool_start_event(p, lane[a].slot), &from, &gpu0);
    int q = lt_testdriver_event_time(p->cell[lane[a].slot].end, &to, &gpu1);
    printf("%d %d %ld %ld\n", r, q, (long)from, (long)(gpu1 - gpu0));
  } else if (is(op, "storm")) {
    run_storm((int)a, (int)b, (int)c);
    puts("0");
  } else if (is(op, "bench")) { // ns of processor time: a step, a lane, and the four driver calls in a lane
    int64_t t0 = cpu_ns();
    for (long i = 0; i < a; i++)
      lt_step_end(lt_step_begin());
    int64_t t1 = cpu_ns();
    lt_step s = lt_step_begin();
    for (long i = 0; i < a; i++)
      lt_lane_end(lt_lane_begin(s, 1, stream[0]));
    int64_t t2 = cpu_ns();
    lt_step_end(s);
    for (long i = 0; i < a; i++) {
      int status;
      lt_pool *p = pool_of();
      cuStreamIsCapturing(stream[0], &status);
      cuEventRecord((CUevent)p->spare_events[0], stream[0]);
      cuStreamIsCapturing(stream[0], &status);
      cuEventRecord((CUevent)p->spare_events[1], stream[0]);
    }
    int64_t t3 = cpu_ns();
    printf("%ld %ld %ld\n", (long)((t1 - t0) / a), (long)((t2 - t1) / a), (long)((t3 - t2) / a));
  } else if (is(op, "fork")) { // what a child sees
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
      int bad = lt_hub_level() != 0 || lt_timing() || lt_hub_ring() != NULL || lt_step_begin() != 0;
      lt_lane_end(lane[0]);
      lt_step_end(step[0]);
      lt_hub_stop();
      // A child that gets so far has a hub of its own.
      bad = bad || lt_hub_start(&driver) != 0 || lt_hub_level() == 0;
      lt_step s = lt_step_begin();
      bad = bad || lt_step_id(s) != 1;
      lt_step_end(step[0]); // another hub's: misuse here
      lt_step_end(s);
      bad = bad || lt_ring_counter(lt_hub_ring(), LT_CTR_STEPS_ENDED) != 1 || lt_ring_counter(lt_hub_ring(), LT_CTR_MISUSE) != 1;
      exit(bad);
    }
    int status = -1;
    waitpid(child, &status, 0);
    printf("%d\n", status);
  } else if (is(op, "stop")) {
    // The hub's thread may be in the driver when the stop begins, and is waited for.
    uint64_t before = lt_testdriver_calls_here();
    lt_hub_stop();
    printf("%lu\n", (unsigned long)(lt_testdriver_calls_here() - before));
    calls_at_stop = lt_testdriver_calls_total();
  } else if (is(op, "beginstop")) { // the record of a lane's start outlasts the stop
    pthread_t t;
    uint64_t records = lt_testdriver_calls("cuEventRecord");
    MUST(lt_testdriver_set_call_ns("cuEventRecord", 500 * LT_MS));
    MUST(pthread_create(&t, NULL, begin_late, &lane[a]));
    while (lt_testdriver_calls("cuEventRecord") == records)
      nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    lt_hub_stop();
    MUST(pthread_join(t, NULL));
    puts("0");
  } else if (is(op, "sincestop")) {
    printf("%lu\n", (unsigned long)(lt_testdriver_calls_total() - calls_at_stop));
  } else if (is(op, "exit")) {
    exit(0);
  } else {
    printf("! %s\n", op);
  }
}

int main(void) {
  char text[512];
  while (fgets(text, sizeof text, stdin) != NULL) {
    act(text);
    fflush(stdout);
  }
  return 0;
}
