// SPDX-License-Identifier: Apache-2.0
//
// An engine that marks its steps itself, with lanetrace.h.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_abi.h"
#include "lanetrace.h"

#define FIND(name) \
  __typeof__(name) *p_##name; \
  *(void **)&p_##name = dlsym(lib, #name); \
  if (p_##name == NULL) return 22
#define OK(call) if ((call) != 0) return 23
#define WANT(call, want) \
  do { \
    long long got_ = (long long)(call); \
    if (got_ != (want)) { fprintf(stderr, "%s is %lld\n", #call, got_); return 24; } \
  } while (0)

// More lanes than are kept open, 32 on each of 33 streams; then there is room again.
static int many(__typeof__(cuStreamCreate) *create) {
  static lanetrace_lane lane[33][32];
  int refused = 0;
  CUstream s = NULL;
  lanetrace_step step = lanetrace_step_begin();
  for (int i = 0; i < 33; i++) {
    OK(create(&s, CU_STREAM_NON_BLOCKING));
    for (int j = 0; j < 32; j++) {
      char name[16];
      snprintf(name, sizeof name, "lane %d", j);
      lane[i][j] = lanetrace_lane_begin(step, name, s);
      refused += lane[i][j] == 0;
    }
  }
  WANT(refused, 33 * 32 - 1024);
  for (int i = 32; i >= 0; i--)
    for (int j = 31; j >= 0; j--)
      lanetrace_lane_end(lane[i][j]);
  lanetrace_lane last = lanetrace_lane_begin(step, "last", s);
  WANT(last != 0, 1);
  lanetrace_lane_end(last);
  lanetrace_step_end(step);
  return 0;
}

static _Atomic int racing = 1;
static void *stale_ends(void *first) {
  while (racing)
    lanetrace_lane_end((lanetrace_lane)(uintptr_t)first);
  return NULL;
}

// All places but one are taken, so that each lane has that one, and another thread ends
// the first that it had again and again.
static int race(__typeof__(cuStreamCreate) *create) {
  static lanetrace_lane lane[32][32];
  CUstream s = NULL;
  lanetrace_step step = lanetrace_step_begin();
  for (int i = 0; i < 32; i++) {
    OK(create(&s, CU_STREAM_NON_BLOCKING));
    for (int j = 0; j < 32; j++) {
      char name[16];
      snprintf(name, sizeof name, "lane %d", j);
      WANT((lane[i][j] = lanetrace_lane_begin(step, name, s)) != 0, 1);
    }
  }
  lanetrace_lane first = lane[31][31];
  lanetrace_lane_end(first);
  pthread_t other;
  OK(pthread_create(&other, NULL, stale_ends, (void *)(uintptr_t)first));
  for (int i = 0; i < 30000; i++) {
    lanetrace_lane_end(lanetrace_lane_begin(step, "again", s));
    if (i % 1000 == 0)
      usleep(2000); // for the pairs to come back
  }
  racing = 0;
  OK(pthread_join(other, NULL));
  for (int i = 0; i < 32 * 32 - 1; i++)
    lanetrace_lane_end(lane[i / 32][i % 32]);
  lanetrace_step_end(step);
  return 0;
}

// Waits to be read, if told to.
static void wait_to_be_read(void) {
  if (getenv("ENGINE_WAIT") == NULL)
    return;
  puts("ready");
  fflush(stdout);
  getchar();
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  void *lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (lib == NULL)
    return 21;
  FIND(cuInit); FIND(cuDevicePrimaryCtxRetain); FIND(cuCtxSetCurrent); FIND(cuModuleLoadData);
  FIND(cuModuleGetFunction); FIND(cuStreamCreate); FIND(cuLaunchKernel); FIND(cuCtxSynchronize);
  // Before there is a context: nothing, and no harm.
  lanetrace_step early = lanetrace_step_begin();
  WANT(early, 0);
  WANT(lanetrace_lane_begin(early, "early", NULL), 0);
  WANT(lanetrace_step_end(early), 0);
  CUcontext c;
  CUmodule m;
  CUfunction f;
  CUstream a, b;
  OK(p_cuInit(0));
  OK(p_cuDevicePrimaryCtxRetain(&c, 0));
  OK(p_cuCtxSetCurrent(c));
  OK(p_cuModuleLoadData(&m, ".version 8.4\n.target sm_80\n.address_size 64\n.visible .entry nothing()\n{ ret; }\n"));
  OK(p_cuModuleGetFunction(&f, m, "nothing"));
  OK(p_cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  OK(p_cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  if (*what != '\0') {
    int r = strcmp(what, "many") == 0 ? many(p_cuStreamCreate) : race(p_cuStreamCreate);
    OK(p_cuCtxSynchronize());
    wait_to_be_read();
    return r;
  }
  printf("level %d\n", lanetrace_level());
  int on = lanetrace_level() > 0;

  const char *request = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const char *later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what comes after";
  const char *wrong[] = {"", "00", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
                         "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                         "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                         "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                         "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                         "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
                         "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01"};
  int64_t begun = lanetrace_now();
  lanetrace_step s = lanetrace_step_begin();
  WANT(s != 0, on);
  WANT(lanetrace_step_attributes(s, 3, 4, 5, LANETRACE_GRAPH_MIXED), 0);
  WANT(lanetrace_step_link(s, request), 0);
  WANT(lanetrace_step_link(s, later), 0);
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    WANT(lanetrace_step_link(s, wrong[i]), on ? -1 : 0);
  lanetrace_lane prefill = lanetrace_lane_begin(s, "prefill", a);
  WANT(prefill != 0, on);
  OK(p_cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, a, NULL, NULL));
  lanetrace_lane sample = lanetrace_lane_begin(s, "sample", a);
  OK(p_cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, a, NULL, NULL));
  WANT(lanetrace_lane_end(sample), 0);
  WANT(lanetrace_lane_end(sample), 0); // twice: nothing
  lanetrace_lane copy = lanetrace_lane_begin(s, "copy", b);
  OK(p_cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, b, NULL, NULL));
  WANT(lanetrace_lane_end(prefill), 0);
  WANT(lanetrace_lane_end(copy), 0);
  WANT(lanetrace_lane_end(123456789), 0); // none of ours
  WANT(lanetrace_lane_begin(0, "none", b), 0);
  WANT(lanetrace_step_end(s), 0);
  WANT(lanetrace_request_end(request, begun, lanetrace_now(), 10, 20), 0);
  WANT(lanetrace_request_end("no request", begun, begun, 10, 20), on ? -1 : 0);
  OK(p_cuCtxSynchronize());
  wait_to_be_read();
  return 0;
}
