// SPDX-License-Identifier: Apache-2.0
//
// cost WHAT N: nanoseconds a call, over the driver that does nothing.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvtxclient.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int (*alloc)(unsigned long long *, size_t);
static int (*release)(unsigned long long);

// A stack of some depth, as programs have.
__attribute__((noinline)) static void allocate(int depth, int n) {
  if (depth > 0) {
    allocate(depth - 1, n);
    __asm__ volatile("" ::: "memory");
    return;
  }
  unsigned long long p;
  for (int i = 0; i < n; i++) {
    alloc(&p, 4096);
    release(p);
  }
}

int main(int argc, char **argv) {
  int n = argc > 2 ? atoi(argv[2]) : 1000;
  void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context;
  if (lib == NULL || argc < 2)
    return 2;
  int (*retain)(void **, int), (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                                         void **, void **);
  *(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
  *(void **)&launch = dlsym(lib, "cuLaunchKernel");
  *(void **)&alloc = dlsym(lib, "cuMemAlloc_v2");
  *(void **)&release = dlsym(lib, "cuMemFree_v2");
  nvtx_open();
  if (retain(&context, 0) != 0)
    return 3;
  double begun = now();
  if (strcmp(argv[1], "launch") == 0)
    for (int i = 0; i < n; i++)
      launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
  else if (strcmp(argv[1], "range") == 0)
    for (int i = 0; i < n; i++)
      range_push("range"), range_pop();
  else if (strcmp(argv[1], "alloc") == 0)
    allocate(20, n);
  printf("%f\n", (now() - begun) / n);
  return 0;
}
