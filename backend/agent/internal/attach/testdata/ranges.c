// SPDX-License-Identifier: Apache-2.0
//
// Ranges as programs mark them. marks_test.go says what must come of each scenario.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "cuda_abi.h"
#include "nvtxclient.h"

static void *driver;
static __typeof__(cuLaunchKernel) *launch;
static __typeof__(cuGraphLaunch) *graph_launch;
static __typeof__(cuCtxSynchronize) *synchronize;
static CUfunction nothing;
static CUgraphExec exec;
static CUstream stream;
static __typeof__(cuStreamCreate) *stream_create;
static __typeof__(cuStreamBeginCapture_v2) *capture_begin;
static __typeof__(cuStreamEndCapture) *capture_end;

static void go(void) {
  if (launch(nothing, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL) != 0)
    exit(20);
}

static void replay(void) {
  if (graph_launch(exec, stream) != 0)
    exit(21);
}

#define FIND(name) \
  __typeof__(name) *p_##name; \
  *(void **)&p_##name = dlsym(lib, #name); \
  if (p_##name == NULL) exit(22)
#define OK(call) if ((call) != 0) exit(23)

static void begin(int with_graph) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (lib == NULL)
    exit(24);
  driver = lib;
  FIND(cuInit); FIND(cuDevicePrimaryCtxRetain); FIND(cuCtxSetCurrent); FIND(cuModuleLoadData);
  FIND(cuModuleGetFunction); FIND(cuStreamCreate); FIND(cuStreamBeginCapture_v2); FIND(cuStreamEndCapture);
  FIND(cuGraphInstantiateWithFlags); FIND(cuLaunchKernel); FIND(cuGraphLaunch); FIND(cuCtxSynchronize);
  launch = p_cuLaunchKernel, graph_launch = p_cuGraphLaunch, synchronize = p_cuCtxSynchronize;
  CUcontext c;
  CUmodule m;
  CUgraph g;
  OK(p_cuInit(0));
  OK(p_cuDevicePrimaryCtxRetain(&c, 0));
  OK(p_cuCtxSetCurrent(c));
  OK(p_cuModuleLoadData(&m, ".version 8.4\n.target sm_80\n.address_size 64\n.visible .entry nothing()\n{ ret; }\n"));
  OK(p_cuModuleGetFunction(&nothing, m, "nothing"));
  stream_create = p_cuStreamCreate;
  capture_begin = p_cuStreamBeginCapture_v2;
  capture_end = p_cuStreamEndCapture;
  OK(stream_create(&stream, CU_STREAM_NON_BLOCKING));
  if (!with_graph) // a launch, too
    return;
  OK(p_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  go();
  OK(p_cuStreamEndCapture(stream, &g));
  OK(p_cuGraphInstantiateWithFlags(&exec, g, 0));
}

// NVTX's event attributes.
struct event {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t text_type;
  const void *text;
};
static struct event event(int type, const void *text) {
  return (struct event){.version = 3, .size = sizeof(struct event), .text_type = type, .text = text};
}

#define CORE(i, type) ((type)nvtx_core[i])
#define CORE2(i, type) ((type)nvtx_core2[i])
typedef int (*push_ex_fn)(const struct event *);
typedef int (*domain_push_fn)(void *, const struct event *);
typedef int (*domain_pop_fn)(void *);
typedef void *(*domain_fn)(const char *);
typedef void *(*string_fn)(void *, const char *);

static void in(const char *name) {
  range_push(name);
  go();
  range_pop();
}

static void expect(const char *what, int got, int want) {
  if (got != want) {
    fprintf(stderr, "%s returned %d, want %d\n", what, got, want);
    exit(25);
  }
}

static uint64_t range_start(const char *name) { return CORE(5, uint64_t (*)(const char *))(name); }
static void range_end(uint64_t id) { CORE(7, void (*)(uint64_t))(id); }

// More ranges started than a thread's launches are looked through for.
static void started_by_one(void) {
  uint64_t id[70];
  range_push("step");
  for (int i = 0; i < 70; i++) {
    char name[16];
    snprintf(name, sizeof name, "r %d", i);
    id[i] = range_start(name);
  }
  go();
  for (int i = 69; i >= 0; i--)
    range_end(id[i]);
  // Those have ended: there is room again.
  id[0] = range_start("r 70");
  go();
  range_end(id[0]);
  range_pop();
}

static void *end_it(void *id) {
  range_end(*(uint64_t *)id);
  return NULL;
}

// More ranges started than there are places; and none of a thread's is in the way that
// another thread has ended.
static void started_by_all(void) {
  static uint64_t id[1100];
  for (int i = 0; i < 1100; i++)
    id[i] = range_start("waits");
  expect("a place beyond the last", id[1099] != 0, 0);
  go();
  expect("a step without a place", range_start("step") != 0, 0);
  go();
  for (int i = 0; i < 1100; i++)
    range_end(id[i]);
  for (int i = 0; i < 70; i++) {
    uint64_t step = range_start("step");
    pthread_t other;
    if (i == 69)
      go();
    if (pthread_create(&other, NULL, end_it, &step) != 0 || pthread_join(other, NULL) != 0)
      exit(28);
  }
}

// A thread is kept in the driver by the event that begins its range's lane; meanwhile
// others start and end ranges, that one too.
static uint64_t kept;
static void *kept_in_driver(void *context) {
  __typeof__(cuCtxSetCurrent) *set;
  *(void **)&set = dlsym(driver, "cuCtxSetCurrent");
  OK(set(context));
  kept = range_start("kept");
  go();
  return NULL;
}

static void started_apart(void) {
  __typeof__(lt_testdriver_calls) *calls;
  __typeof__(lt_testdriver_set_call_ns) *set_call_ns;
  __typeof__(cuCtxGetCurrent) *current;
  *(void **)&calls = dlsym(driver, "lt_testdriver_calls");
  *(void **)&set_call_ns = dlsym(driver, "lt_testdriver_set_call_ns");
  *(void **)&current = dlsym(driver, "cuCtxGetCurrent");
  CUcontext context;
  pthread_t t;
  OK(current(&context));
  range_push("step");
  const uint64_t records = calls("cuEventRecord"), launches = calls("cuLaunchKernel");
  OK(set_call_ns("cuEventRecord", 3000000000));
  OK(pthread_create(&t, NULL, kept_in_driver, context));
  while (calls("cuEventRecord") == records)
    usleep(1000);
  OK(set_call_ns("cuEventRecord", 0));
  range_end(range_start("meanwhile"));
  range_end(kept);
  usleep(100000);
  expect("launches of who is kept in the driver", (int)(calls("cuLaunchKernel") - launches), 0);
  OK(pthread_join(t, NULL));
  range_pop();
}

// A capture begins and ends within ranges whose first launch on the stream is in it.
static void captures(void) {
  CUgraph g;
  range_push("step");
  range_push("work");
  OK(capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  go();
  go();
  range_push("inside");
  go();
  range_pop();
  OK(capture_end(stream, &g));
  go();
  go();
  range_pop();
  range_pop();
}

static void strings(void) {
  string_fn string = CORE2(10, string_fn);
  void *first = string(NULL, "s 0"), *last = NULL;
  for (int i = 0; i < 65536 + 10; i++) {
    char name[16];
    snprintf(name, sizeof name, "s %d", i);
    void *h = string(NULL, name);
    expect("the same text's handle", i == 0 && h != first, 0);
    expect("a shared handle", i > 65536 && h != last, 0);
    last = h;
  }
  expect("the first text's handle", string(NULL, "s 0") != first, 0);
  expect("a domain beyond all", CORE2(12, domain_fn)("late") != last, 0);
  struct event e = event(3, first);
  range_push("step");
  CORE(8, push_ex_fn)(&e);
  go();
  range_pop();
  e = event(3, last);
  CORE(8, push_ex_fn)(&e);
  go();
  range_pop();
  range_pop();
}

static void functions(void) {
  expect("push", range_push("step"), 0);
  go();
  expect("push", CORE(9, int (*)(const char *))("push a"), 1);
  go();
  expect("pop", range_pop(), 1);
  CORE(10, int (*)(const wchar_t *))(L"push w \u00e9\u20ac");
  go();
  range_pop();
  struct event e = event(1, "push ex");
  CORE(8, push_ex_fn)(&e);
  go();
  range_pop();
  e = event(2, L"push ex wide");
  CORE(8, push_ex_fn)(&e);
  go();
  range_pop();
  e = event(3, CORE2(10, string_fn)(NULL, "registered"));
  CORE2(4, domain_push_fn)(NULL, &e);
  go();
  CORE2(5, domain_pop_fn)(NULL);
  void *domain = CORE2(12, domain_fn)("NVTX");
  e = event(3, CORE2(10, string_fn)(domain, "domain of python"));
  CORE2(4, domain_push_fn)(domain, &e);
  go();
  CORE2(5, domain_pop_fn)(domain);
  uint64_t id = CORE(5, uint64_t (*)(const char *))("start a");
  go();
  CORE(7, void (*)(uint64_t))(id);
  id = CORE(6, uint64_t (*)(const wchar_t *))(L"start w");
  go();
  CORE2(3, void (*)(void *, uint64_t))(NULL, id);
  e = event(1, "start ex");
  id = CORE2(2, uint64_t (*)(void *, const struct event *))(NULL, &e);
  go();
  CORE(7, void (*)(uint64_t))(id);
  CORE(7, void (*)(uint64_t))(id); // twice
  // Host time only.
  range_push("host only");
  range_pop();
  // What is not text, or no event at all.
  e = event(77, "unknown");
  CORE(8, push_ex_fn)(&e);
  range_pop();
  CORE(8, push_ex_fn)(NULL);
  range_pop();
  range_pop();
  expect("pop of nothing", range_pop(), -2);
}

static void domains(void) {
  void *other = CORE2(12, domain_fn)("other");
  struct event e = event(1, "theirs");
  range_push("step");
  range_push("a");
  go();
  CORE2(4, domain_push_fn)(other, &e);
  go();
  range_push("b");
  CORE2(5, domain_pop_fn)(other); // not the innermost range, but the domain's
  go();
  range_pop();
  range_pop();
  range_pop();
}

// A domain's range that fills the stack is popped before another domain's beyond it.
static void deep_domains(void) {
  void *other = CORE2(12, domain_fn)("other");
  struct event mine = event(1, "mine"), again = event(1, "again");
  range_push("step");
  for (int i = 1; i < 63; i++)
    range_push("level");
  CORE2(4, domain_push_fn)(other, &mine);
  go();
  expect("push", range_push("beyond"), 64);
  expect("pop of another domain", CORE2(5, domain_pop_fn)(other), 64);
  go();
  expect("push", range_push("beyond, too"), 64);
  expect("pop", range_pop(), 64);
  expect("pop", range_pop(), 63);
  CORE2(4, domain_push_fn)(other, &again);
  go();
  expect("pop", CORE2(5, domain_pop_fn)(other), 63);
  for (int i = 63; i > 0; i--)
    expect("pop", range_pop(), i - 1);
}

// Ranges as Python's nvtx.annotate makes them: in a domain of its own, with texts that
// were registered.
static void *python_domain;
static void annotated_push(const char *name) {
  if (python_domain == NULL)
    python_domain = CORE2(12, domain_fn)("NVTX");
  struct event e = event(3, CORE2(10, string_fn)(python_domain, name));
  CORE2(4, domain_push_fn)(python_domain, &e);
}
static void annotated_pop(void) { CORE2(5, domain_pop_fn)(python_domain); }
static void annotated(const char *name, int launches) {
  annotated_push(name);
  for (int i = 0; i < launches; i++)
    go();
  annotated_pop();
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// Launches for so many tenths of a second; a busy machine's pauses hardly count.
static void loop(int tenths) {
  const int64_t most = 50000000;
  int64_t left = (int64_t)tenths * 100000000, last = now_ns();
  while (left > 0) {
    go();
    usleep(5000);
    int64_t now = now_ns(), took = now - last;
    left -= took < most ? took : most;
    last = now;
  }
  go();
}

// Has the control file beside the ring ask for a level, and waits until it is in force.
static void level(const char *name, int number) {
  static int request;
  char command[4096];
  snprintf(command, sizeof command,
           "for r in \"$LANETRACE_DIR\"/*.ring; do printf '{\"level\":\"%s\",\"id\":\"%d\"}' > \"$r.new\" && mv \"$r.new\" \"$r.control\"; done",
           name, ++request);
  if (system(command) != 0)
    exit(26);
  int (*now)(void);
  *(void **)&now = dlsym(RTLD_DEFAULT, "lanetrace_level");
  for (int i = 0; i < 2000 && now() != number; i++)
    usleep(5000);
  if (now() != number)
    exit(27);
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  setlocale(LC_ALL, "C.UTF-8");
  if (!nvtx_open())
    return 2;
  if (strcmp(what, "early") == 0) {
    // Torch makes its context at the first use, inside of whatever is open.
    range_push("over");
    range_pop();
    range_push("step");
    range_push("load");
  } else if (strcmp(what, "early levels") == 0) {
    range_push("step");
    range_push("outer");
  }
  uint64_t early[2] = {0};
  if (strcmp(what, "early started") == 0) {
    range_end(range_start("gone"));
    early[0] = range_start("step");
    range_push("load");
    early[1] = range_start("copy");
  }
  begin(strcmp(what, "early") != 0);
  if (strcmp(what, "early") == 0) {
    go();
    in("copy");
    range_pop();
    go();
    expect("pop", range_pop(), 0);
    expect("pop of nothing", range_pop(), -2);
    range_push("step");
    in("in");
    range_pop();
  } else if (strcmp(what, "early started") == 0) {
    go();
    range_end(early[1]);
    range_pop();
    range_end(early[0]);
    go(); // of no step
    range_push("step");
    in("in");
    range_pop();
  } else if (strcmp(what, "early levels") == 0) {
    in("unseen"); // at off
    range_push("begun at off");
    range_push("deeper");
    level("lane", 2);
    in("in");
    range_pop(); // of deeper
    range_push("in");
    go();
    range_pop();
    range_pop(); // of what began at off
    in("last");
    level("off", 0);
    in("unseen");
    expect("pop", range_pop(), 1); // of outer, at off
    level("lane", 2);
    in("in step");
    level("off", 0);
    expect("pop", range_pop(), 0);
    in("unseen");
    level("lane", 2);
    range_push("step");
    in("in");
    range_pop();
  } else if (strcmp(what, "functions") == 0) {
    functions();
  } else if (strcmp(what, "domains") == 0) {
    domains();
  } else if (strcmp(what, "nested") == 0) {
    for (int i = 0; i < 2; i++) {
      char name[16];
      snprintf(name, sizeof name, "outer %d", i);
      range_push(name);
      go();
      in("inner");
      range_pop();
    }
  } else if (strcmp(what, "vllm") == 0) {
    // Two passes of the runner as the last rank makes them, the second with drafts;
    // one of a rank that is not the last; one that found nothing to do.
    for (int i = 0; i < 2; i++) {
      annotated("schedule: allocate_slots", 0);
      annotated("gpu_model_runner: preprocess", 1);
      annotated("gpu_model_runner: forward", 1);
      annotated("gpu_model_runner: postprocess", 1);
      annotated("gpu_model_runner: sample", 1);
      annotated("gpu_model_runner: bookkeep", 0);
      if (i == 1)
        annotated("gpu_model_runner: draft", 1);
      annotated("gpu_model_runner: eplb", 0);
      annotated("gpu_model_runner: ModelRunnerOutput", 0);
      annotated("gpu_model_runner: AsyncGPUModelRunnerOutput", 1);
      annotated("gpu_model_runner: set_async_sampled_token_ids", 0);
      annotated("llm_engine step: get_output", 0);
    }
    annotated("gpu_model_runner: preprocess", 1);
    annotated("gpu_model_runner: forward", 1);
    annotated("gpu_model_runner: preprocess", 0);
    annotated("gpu_model_runner: ModelRunnerOutput", 0);
  } else if (strcmp(what, "vllm of 2025") == 0) {
    annotated("Preprocess", 1), annotated("Forward", 1), annotated("Postprocess", 1), annotated("Sample", 1);
    annotated("Bookkeep", 1), annotated("Draft", 1), annotated("EPLB", 0);
  } else if (strcmp(what, "sglang") == 0) {
    annotated_push("scheduler.event_loop_overlap");
    for (int i = 0; i < 2; i++) {
      annotated("scheduler.recv_requests", 0);
      annotated("scheduler.get_next_batch_to_run", 0);
      annotated_push("scheduler.run_batch");
      go();
      annotated("cuda_graph_runner.replay", 1);
      annotated_pop();
      annotated("scheduler.process_batch_result", 0);
    }
    annotated_pop();
  } else if (strcmp(what, "unmarked") == 0) {
    for (int i = 0; i < 3; i++) {
      replay();
      go();
    }
  } else if (strcmp(what, "unmarked for long") == 0) {
    replay();
    loop(8);
    replay();
    synchronize();
  } else if (strcmp(what, "replays for long") == 0) {
    for (int i = 0; i < 8; i++) {
      replay();
      usleep(100000);
    }
    synchronize();
  } else if (strcmp(what, "eager for long") == 0) {
    loop(9);
  } else if (strcmp(what, "marked late") == 0) {
    loop(5);
    range_push("outer");
    go();
    in("inner");
    range_pop();
  } else if (strcmp(what, "marked at the start") == 0) {
    in("weights");
    in("kv_cache");
    loop(12);
    in("a mark"); // ends what stands in
    go();
    loop(12);
  } else if (strcmp(what, "pauses") == 0) {
    for (int i = 0; i < 3; i++) {
      in("step");
      go();
      usleep(700000);
      go();
    }
  } else if (strcmp(what, "deep domains") == 0) {
    deep_domains();
  } else if (strcmp(what, "captured") == 0) {
    captures();
  } else if (strcmp(what, "strings") == 0) {
    strings();
  } else if (strcmp(what, "started by one") == 0) {
    started_by_one();
  } else if (strcmp(what, "started apart") == 0) {
    started_apart();
  } else if (strcmp(what, "started by all") == 0) {
    started_by_all();
  } else if (strcmp(what, "streams") == 0) {
    CUstream first = stream;
    range_push("step");
    for (int i = 0; i < 40; i++) {
      if (i > 0)
        OK(stream_create(&stream, CU_STREAM_NON_BLOCKING));
      go();
      go();
    }
    range_pop();
    stream = first;
  } else if (strcmp(what, "deep") == 0) {
    range_push("step");
    for (int i = 1; i < 100; i++) {
      char name[16];
      snprintf(name, sizeof name, "level %d", i);
      expect("push", range_push(name), i);
    }
    go();
    for (int i = 99; i > 0; i--)
      expect("pop", range_pop(), i);
    range_pop();
  } else if (strcmp(what, "levels") == 0) {
    range_push("step"); // at off
    level("lane", 2);
    range_pop(); // of what was not seen
    range_push("step");
    go();
    in("in");
    range_pop();
    range_push("step");
    go();
    level("off", 0);
    in("unseen");
    range_pop();
    level("lane", 2);
    range_push("step");
    go();
    in("in");
    range_pop();
  } else {
    return 3;
  }
  synchronize();
  if (getenv("ENGINE_WAIT") != NULL) {
    puts("ready");
    fflush(stdout);
    getchar();
  }
  return 0;
}
