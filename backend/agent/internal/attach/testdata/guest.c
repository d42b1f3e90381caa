// SPDX-License-Identifier: Apache-2.0
//
// Programs in circumstances that few of them are in. Prints what it saw, so that runs
// with and without the agent can be compared.
//
//	guest WHAT [FILE]
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "control.h"
#include "cuda_abi.h"
#include "nvtxclient.h"

// R makes a driver call and prints a result that is none of success.
#define R(call)                           \
  do {                                    \
    int r_ = call;                        \
    if (r_ != 0)                          \
      printf("%.40s = %d\n", #call, r_); \
  } while (0)

static const char ptx[] = ".version 8.4\n.target sm_80\n.address_size 64\n.visible .entry nothing()\n{ ret; }\n";

static CUcontext context;
static CUfunction nothing;
static CUstream stream;

static void load(void) {
  CUmodule module;
  R(cuModuleLoadData(&module, ptx));
  R(cuModuleGetFunction(&nothing, module, "nothing"));
  R(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void begin(void) {
  R(cuInit(0));
  R(cuDevicePrimaryCtxRetain(&context, 0));
  R(cuCtxSetCurrent(context));
  load();
}

static void launch(void) { R(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL)); }

static void step(void) {
  CUdeviceptr p;
  range_push("step");
  range_push("prefill");
  R(cuMemAlloc_v2(&p, 4096));
  launch();
  range_pop();
  launch();
  range_pop();
  R(cuStreamSynchronize(stream));
  R(cuMemFree_v2(p));
}

// The standard streams are closed, and stay so.
static void closed(void) {
  int out = fcntl(1, F_DUPFD, 10);
  for (int fd = 0; fd < 3; fd++)
    close(fd);
  begin();
  step();
  int taken = 0;
  for (int fd = 0; fd < 3; fd++)
    taken += fcntl(fd, F_GETFD) >= 0;
  dprintf(out, "%d of the standard streams are open\n", taken);
  dup2(out, 1);
}

// All descriptors but the standard ones are closed, as daemons do; the next file has one
// of their numbers, and is written when the program ends.
static void close_all(const char *path) {
  begin();
  for (int fd = 3; fd < 256; fd++)
    close(fd);
  for (int i = 0; i < 16; i++) {
    char name[4096];
    snprintf(name, sizeof name, "%s%d", path, i);
    FILE *f = fopen(name, "w");
    if (f == NULL || fprintf(f, "written\n") < 0)
      printf("%s cannot be written\n", name);
  }
  step();
}

static void file_size(void) {
  setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 16, 1 << 16});
  begin();
  step();
}

// What a thread does that is cancelled before it begins.
static void *first(void *unused) {
  (void)unused;
  begin();
  return NULL;
}

static void *another(void *unused) {
  (void)unused;
  CUcontext c;
  R(cuCtxCreate_v2(&c, 0, 0));
  R(cuCtxDestroy_v2(c));
  return NULL;
}

static struct {
  void *(*what)(void *);
  int out[2];
} cancelled;

static void *wait_and_do(void *unused) {
  char c;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  if (read(cancelled.out[0], &c, 1) != 1)
    abort();
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  return cancelled.what(unused);
}

static void cancel(void *(*what)(void *)) {
  pthread_t t;
  cancelled.what = what;
  if (pipe(cancelled.out) != 0 || pthread_create(&t, NULL, wait_and_do, NULL) != 0)
    abort();
  pthread_cancel(t);
  if (write(cancelled.out[1], "", 1) != 1)
    abort();
  pthread_join(t, NULL);
}

static void cancels(void) {
  cancel(first);
  begin();
  for (int i = 0; i < 3; i++) {
    cancel(another);
    another(NULL);
    R(cuCtxSetCurrent(context));
    step();
  }
}

// A device's context comes and goes, while the thread stays in it; by release, or by a
// reset behind which nobody has it.
static void primaries(void) {
  R(cuInit(0));
  for (int i = 0; i < 6; i++) {
    begin();
    begin();
    step();
    R(cuDevicePrimaryCtxRelease_v2(0));
    step();
    if (i % 3 == 2)
      R(cuDevicePrimaryCtxReset_v2(0));
    else
      R(cuDevicePrimaryCtxRelease_v2(0));
  }
}

// The first who asks which device a context is on gets no answer.
static void refused(void) {
  R(cuInit(0));
  lt_testdriver_fail("cuCtxGetDevice", CUDA_ERROR_UNKNOWN, 0, 1);
  for (int i = 0; i < 2; i++) {
    begin();
    step();
    R(cuDevicePrimaryCtxRelease_v2(0));
  }
  lt_testdriver_clear_faults();
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  nvtx_open();
  if (strcmp(what, "closed") == 0)
    closed();
  else if (strcmp(what, "close all") == 0)
    close_all(argv[2]);
  else if (strcmp(what, "file size") == 0)
    file_size();
  else if (strcmp(what, "cancel") == 0)
    cancels();
  else if (strcmp(what, "primaries") == 0)
    primaries();
  else if (strcmp(what, "refused") == 0)
    refused();
  else if (strcmp(what, "step") == 0)
    begin(), step();
  else
    return 2;
  // Waits to be read.
  if (getenv("ENGINE_WAIT") != NULL) {
    printf("ready\n");
    fflush(stdout);
    getchar();
  }
  printf("done\n");
  return 0;
}
