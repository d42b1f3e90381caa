// SPDX-License-Identifier: Apache-2.0
//
// An engine that knows nothing of telemetry but its marks: it finds the driver by
// name, as CUDA's own libraries do, and works in steps on whatever device there is.
//
//	engine STEPS          does so many steps and ends with 0
//	engine STEPS wait     then waits for a signal; says which, ends with 3
//	engine STEPS kill     then kills itself with SIGKILL
//	engine STEPS spawn    then runs "engine STEPS" as a program of its own
//	engine STEPS fork     does so twice, first in a child of fork, then itself
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lanetrace.h"

static void *driver;

static void *find(const char *name) {
  void *f = dlsym(driver, name);
  if (f == NULL) {
    fprintf(stderr, "engine: no %s\n", name);
    exit(1);
  }
  return f;
}

#define CALL(name, params, ...)                       \
  do {                                                \
    int (*f_) params;                                 \
    *(void **)&f_ = find(name);                       \
    int r_ = f_(__VA_ARGS__);                         \
    if (r_ != 0) {                                    \
      fprintf(stderr, "engine: %s: %d\n", name, r_);  \
      exit(1);                                        \
    }                                                 \
  } while (0)

int main(int argc, char **argv) {
  int steps = argc > 1 ? atoi(argv[1]) : 1;
  const char *then = argc > 2 ? argv[2] : "";
  // Before there is anything that can be interrupted.
  sigset_t all;
  sigemptyset(&all);
  sigaddset(&all, SIGTERM);
  sigaddset(&all, SIGINT);
  sigaddset(&all, SIGUSR1);
  if (strcmp(then, "wait") == 0)
    sigprocmask(SIG_BLOCK, &all, NULL);
  if (strcmp(then, "fork") == 0) {
    pid_t child = fork();
    int status;
    if (child < 0 || (child > 0 && (waitpid(child, &status, 0) != child || status != 0)))
      return 1;
  }

  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == NULL) {
    fprintf(stderr, "engine: %s\n", dlerror());
    return 1;
  }
  int device;
  void *context, *stream;
  uint64_t memory;
  CALL("cuInit", (unsigned), 0);
  CALL("cuDeviceGet", (int *, int), &device, 0);
  CALL("cuCtxCreate_v2", (void **, unsigned, int), &context, 0, device);
  CALL("cuStreamCreate", (void **, unsigned), &stream, 1);
  CALL("cuMemAlloc_v2", (uint64_t *, size_t), &memory, 3 << 20);
  for (int i = 0; i < steps; i++) {
    lanetrace_step step = lanetrace_step_begin();
    lanetrace_lane lane = lanetrace_lane_begin(step, "decode", stream);
    CALL("cuMemsetD8Async", (uint64_t, unsigned char, size_t, void *), memory, 1, 1 << 20, stream);
    lanetrace_lane_end(lane);
    lanetrace_step_end(step);
  }
  CALL("cuCtxSynchronize", (void), );
  // What landed is read every few milliseconds, and never once the program ends.
  usleep(300 * 1000);
  printf("did %d steps\n", steps);
  fflush(stdout);
  if (strcmp(then, "kill") == 0)
    kill(getpid(), SIGKILL);
  if (strcmp(then, "spawn") == 0)
    execl(argv[0], argv[0], argv[1], (char *)NULL);
  if (strcmp(then, "wait") == 0) {
    alarm(120); // nobody is left behind by a test that failed
    int got = 0;
    sigwait(&all, &got);
    printf("signal %d\n", got);
    // Who sends one sends one.
    const struct timespec moment = {.tv_nsec = 300 * 1000 * 1000};
    got = sigtimedwait(&all, NULL, &moment);
    if (got > 0)
      printf("and signal %d\n", got);
    return 3;
  }
  return 0;
}
