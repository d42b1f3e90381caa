// SPDX-License-Identifier: Apache-2.0
//
// An engine that knows nothing of lanetrace: every hooked call in every variant,
// ranges, graphs, memory. It prints what it saw, so that runs with and without the
// agent can be compared. How it reaches the driver is set when it is compiled:
// LINKED, else through dlopen and dlsym, or with "proc" through cuGetProcAddress.
//
//	engine HOW WHAT [STEPS]
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control.h"
#include "cuda_abi.h"
#include "nvtxclient.h"

#define F(sym, base, ver)
#define S(sym, sfx, base, ver) extern __typeof__(sym) sym##sfx;
#include "functions.h"
#undef F
#undef S

static struct {
#define F(sym, base, ver) __typeof__(sym) *sym;
#define S(sym, sfx, base, ver) __typeof__(sym) *sym, *sym##sfx;
#include "functions.h"
#undef F
#undef S
} cu;

static _Atomic int calls;
// R makes a driver call and prints its result.
#define R(call)                                              \
  do {                                                       \
    int r_ = cu.call;                                        \
    calls++;                                                 \
    if (r_ != 0)                                             \
      printf("%d %.40s = %d\n", (int)calls, #call, r_);           \
  } while (0)

static void load(const char *how) {
#ifdef LINKED
  (void)how;
#define F(sym, base, ver) cu.sym = sym;
#define S(sym, sfx, base, ver) cu.sym = sym, cu.sym##sfx = sym##sfx;
#include "functions.h"
#undef F
#undef S
#else
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (lib == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(3);
  }
  if (strcmp(how, "proc") == 0) {
    void *first = dlsym(lib, "cuGetProcAddress_v2");
    __typeof__(cuGetProcAddress_v2) *get;
    memcpy(&get, &first, sizeof get);
    // The look-up function looked up through itself, as the runtime does.
    int status;
    void *p = NULL;
    if (get("cuGetProcAddress", &p, 12000, 0, &status) != 0 || p == NULL)
      exit(4);
    memcpy(&get, &p, sizeof get);
#define GET(field, base, ver, flags)                                                     \
  if (get(base, (void **)&cu.field, ver, flags, &status) != 0)                           \
    exit(5);
#define F(sym, base, ver) GET(sym, #base, ver, 1)
#define S(sym, sfx, base, ver) GET(sym, #base, ver, 1) GET(sym##sfx, #base, ver, 2)
#include "functions.h"
#undef F
#undef S
  } else {
#define F(sym, base, ver) *(void **)&cu.sym = dlsym(lib, #sym);
#define S(sym, sfx, base, ver) *(void **)&cu.sym = dlsym(lib, #sym), *(void **)&cu.sym##sfx = dlsym(lib, #sym #sfx);
#include "functions.h"
#undef F
#undef S
  }
#endif
}

static const char ptx[] = ".version 8.4\n.target sm_80\n.address_size 64\n"
                          ".visible .entry lt_test_fill(.param .u64 p, .param .u32 v, .param .u32 n)\n{ ret; }\n"
                          ".visible .entry lt_test_scale(.param .u64 p, .param .u32 f, .param .u32 n)\n{ ret; }\n"
                          ".visible .entry nothing()\n{ ret; }\n";

static CUcontext context;
static CUmodule module;
static CUlibrary library;
static CUfunction fill, scale, nothing, from_kernel;
static CUstream a, b;
static CUdeviceptr buffer;

static void begin(void) {
  R(cuInit(0));
  R(cuDevicePrimaryCtxRetain(&context, 0));
  R(cuCtxSetCurrent(context));
  R(cuModuleLoadData(&module, ptx));
  R(cuModuleGetFunction(&fill, module, "lt_test_fill"));
  R(cuModuleGetFunction(&scale, module, "lt_test_scale"));
  R(cuModuleGetFunction(&nothing, module, "nothing"));
  CUkernel kernel;
  R(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
  R(cuLibraryGetKernel(&kernel, library, "nothing"));
  R(cuKernelGetFunction(&from_kernel, kernel));
  R(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  R(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  R(cuMemAlloc_v2(&buffer, 3 << 20));
}

static void show(void) {
  unsigned v[4];
  R(cuStreamSynchronize(a));
  R(cuStreamSynchronize(b));
  R(cuCtxSynchronize());
  R(cuMemcpyDtoH_v2(v, buffer, sizeof v));
  printf("values %u %u %u %u\n", v[0], v[1], v[2], v[3]);
}

static unsigned n = 4;
static void do_fill(CUstream s, unsigned value) {
  void *params[] = {&buffer, &value, &n};
  R(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, s, params, NULL));
}
static void do_scale(CUstream s, unsigned factor) {
  void *params[] = {&buffer, &factor, &n};
  CUlaunchConfig c = {1, 1, 1, 32, 1, 1, 0, s, NULL, 0};
  R(cuLaunchKernelEx(&c, scale, params, NULL));
}

static void do_nothing(CUstream s) {
  CUlaunchConfig c = {1, 1, 1, 32, 1, 1, 0, s, NULL, 0};
  R(cuLaunchKernelEx(&c, nothing, NULL, NULL));
}

static CUgraphExec make_graph(int variant) {
  CUgraph graph;
  CUgraphExec exec;
  if (variant & 1) {
    R(cuStreamBeginCapture_v2_ptsz(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  } else {
    R(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  }
  range_push("captured");
  do_scale(a, 3);
  do_fill(a, 7);
  do_scale(a, 2);
  range_pop();
  if (variant & 1) {
    R(cuStreamEndCapture_ptsz(a, &graph));
  } else {
    R(cuStreamEndCapture(a, &graph));
  }
  CUDA_GRAPH_INSTANTIATE_PARAMS how = {0};
  if (variant == 0)
    R(cuGraphInstantiateWithFlags(&exec, graph, 0));
  else if (variant == 1)
    R(cuGraphInstantiateWithParams(&exec, graph, &how));
  else
    R(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
  R(cuGraphDestroy(graph));
  return exec;
}

// Steps of two lanes: prefill on two streams, decode as a graph.
static void steps(int count) {
  CUgraphExec exec = make_graph(0);
  for (int i = 0; i < count; i++) {
    range_push("step");
    range_push("prefill");
    do_fill(a, 1 + (unsigned)i);
    do_nothing(b); // not ordered with the other stream
    do_fill(a, 2);
    range_pop();
    range_push("host only");
    range_pop();
    range_push("decode");
    R(cuGraphLaunch(exec, a));
    range_push("sample");
    do_scale(a, 5);
    range_pop();
    range_pop();
    range_pop();
    R(cuStreamSynchronize(a));
  }
  show();
  R(cuGraphExecDestroy(exec));
}

// Each launch in each variant, the default streams too.
static void variants(void) {
  unsigned value = 9;
  void *params[] = {&buffer, &value, &n};
  CUlaunchConfig c = {1, 1, 1, 32, 1, 1, 0, a, NULL, 0};
  CUlaunchAttribute early = {.id = 6, .value.i = 1};
  CUstream on[] = {a, NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
  range_push("step");
  for (int i = 0; i < 4; i++) {
    range_push("variants");
    c.hStream = on[i];
    R(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, on[i], params, NULL));
    R(cuLaunchKernel_ptsz(fill, 1, 1, 1, 32, 1, 1, 0, on[i], params, NULL));
    R(cuLaunchKernelEx(&c, fill, params, NULL));
    R(cuLaunchKernelEx_ptsz(&c, fill, params, NULL));
    R(cuLaunchCooperativeKernel(nothing, 2, 1, 1, 32, 1, 1, 0, on[i], NULL));
    R(cuLaunchCooperativeKernel_ptsz(nothing, 2, 1, 1, 32, 1, 1, 0, on[i], NULL));
    R(cuLaunchKernel(from_kernel, 1, 1, 1, 32, 1, 1, 0, on[i], NULL, NULL));
    c.attrs = &early;
    c.numAttrs = 1;
    R(cuLaunchKernelEx(&c, fill, params, NULL));
    c.attrs = NULL;
    c.numAttrs = 0;
    R(cuCtxSynchronize());
    range_pop();
  }
  range_pop();
  for (int i = 0; i < 3; i++) {
    CUgraphExec exec = make_graph(i);
    range_push("step");
    range_push("replay");
    R(cuGraphLaunch(exec, a));
    R(cuGraphLaunch_ptsz(exec, NULL));
    range_pop();
    range_pop();
    R(cuCtxSynchronize());
    R(cuGraphExecDestroy(exec));
  }
  // Refused, and seen to be.
  R(cuLaunchKernel(fill, 0, 1, 1, 32, 1, 1, 0, a, params, NULL));
  R(cuGraphLaunch(NULL, a));
  show();
}

// What stays: 3 MiB of begin, 1 MiB of cuMemAllocAsync_ptsz, 2 MiB that is mapped
// though its handle was released, 2 MiB whose handle is held.
static void memory(void) {
  CUdeviceptr p[8] = {0}, space;
  size_t pitch;
  R(cuMemAlloc_v2(&p[0], 1000));
  R(cuMemAllocManaged(&p[1], 70000, CU_MEM_ATTACH_GLOBAL));
  R(cuMemAllocPitch_v2(&p[2], &pitch, 100, 10, 4));
  R(cuMemAllocAsync(&p[3], 4096, a));
  R(cuMemAllocAsync_ptsz(&p[4], 1 << 20, a));
  CUmemoryPool pool, other;
  CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  R(cuDeviceGetDefaultMemPool(&pool, 0));
  R(cuMemPoolCreate(&other, &props));
  R(cuMemAllocFromPoolAsync(&p[5], 8192, pool, a));
  R(cuMemAllocFromPoolAsync_ptsz(&p[6], 8192, other, a));
  R(cuMemFree_v2(p[0]));
  R(cuMemFree_v2(p[0])); // twice
  R(cuMemFree_v2(p[1]));
  R(cuMemFree_v2(p[2]));
  R(cuMemFreeAsync(p[3], a));
  R(cuMemFreeAsync_ptsz(p[5], a));
  R(cuMemFreeAsync(p[6], a));
  R(cuStreamSynchronize(a));
  R(cuMemPoolTrimTo(pool, 0));
  R(cuMemPoolDestroy(other));
  R(cuMemAlloc_v2(&p[7], (size_t)1 << 50)); // more than there is

  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemGenericAllocationHandle held, mapped, gone, again;
  R(cuMemAddressReserve(&space, (size_t)64 << 20, 0, 0, 0));
  R(cuMemCreate(&held, 2 << 20, &prop, 0));
  R(cuMemCreate(&mapped, 2 << 20, &prop, 0));
  R(cuMemCreate(&gone, 2 << 20, &prop, 0));
  R(cuMemMap(space, 2 << 20, 0, mapped, 0));
  R(cuMemMap(space + (4 << 20), 2 << 20, 0, gone, 0));
  R(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)space));
  R(cuMemRelease(mapped));
  R(cuMemRelease(again));
  R(cuMemRelease(gone));
  R(cuMemUnmap(space + (4 << 20), 2 << 20));
  R(cuMemRelease(gone)); // twice
}

static void contexts(void) {
  CUcontext c[3];
  CUdeviceptr p;
  R(cuCtxCreate_v2(&c[0], 0, 0));
  R(cuMemAlloc_v2(&p, 5000));
  R(cuCtxCreate_v3(&c[1], NULL, 0, 0, 0));
  R(cuMemAlloc_v2(&p, 6000));
  R(cuCtxCreate_v4(&c[2], NULL, 0, 0));
  R(cuMemAlloc_v2(&p, 7000));
  for (int i = 2; i >= 0; i--)
    R(cuCtxDestroy_v2(c[i]));
  R(cuCtxSetCurrent(context));
  do_fill(a, 4);
  show();
  R(cuDevicePrimaryCtxRetain(&context, 0));
  R(cuDevicePrimaryCtxRelease_v2(0));
  do_fill(a, 5);
  show();
}

static void *storm_thread(void *arg) {
  (void)arg;
  R(cuCtxSetCurrent(context));
  range_push("step");
  range_push("prefill");
  CUstream s;
  R(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CUdeviceptr p;
  R(cuMemAlloc_v2(&p, 4096));
  do_nothing(s);
  do_nothing(s);
  range_pop();
  range_pop();
  R(cuStreamSynchronize(s));
  R(cuStreamDestroy_v2(s));
  R(cuMemFree_v2(p));
  return NULL;
}

static void storm(int threads) {
  pthread_t t[64];
  for (int round = 0; round < threads / 16; round++) {
    for (int i = 0; i < 16; i++)
      pthread_create(&t[i], NULL, storm_thread, NULL);
    for (int i = 0; i < 16; i++)
      pthread_join(t[i], NULL);
  }
}

// A child that goes on without CUDA, one that execs, one that is spawned.
static void forks(void) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    range_push("step");
    range_push("prefill");
    range_pop();
    range_pop();
    // exit, not _exit: what the parent registered runs here too.
    exit(7);
  }
  int status;
  waitpid(child, &status, 0);
  printf("child %d\n", WEXITSTATUS(status));
  char *argv[] = {"sh", "-c", "exit 9", NULL};
  extern char **environ;
  posix_spawn(&child, "/bin/sh", NULL, NULL, argv, environ);
  waitpid(child, &status, 0);
  printf("spawned %d\n", WEXITSTATUS(status));
}

static _Atomic int looking = 1;
static void *look_up(void *lib) {
  while (looking)
    dlsym(lib, "cuLaunchKernel");
  return NULL;
}

// Children of fork look the driver's functions up, as threads do that they have not.
static void forks_looking_up(void) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW);
  pthread_t t[2];
  int hung = 0;
  for (int i = 0; i < 2; i++)
    pthread_create(&t[i], NULL, look_up, lib);
  for (int i = 0; i < 200 && hung == 0; i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(30);
      dlsym(lib, "cuLaunchKernel");
      _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    hung += status != 0;
  }
  looking = 0;
  for (int i = 0; i < 2; i++)
    pthread_join(t[i], NULL);
  printf("hung %d\n", hung);
}

// A child that outlives its parent, until the other end of descriptor 3 is closed.
static void orphan(void) {
  fflush(stdout);
  if (fork() == 0) {
    char c;
    while (read(3, &c, 1) > 0) {
    }
    _exit(0);
  }
}

// Runs when everything that was registered after it has run: nobody may call the
// driver any more but the program itself.
static void late(void) {
  uint64_t (*total)(void);
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *(void **)&total = dlsym(lib, "lt_testdriver_calls_total");
  uint64_t before = total();
  usleep(50000);
  printf("calls after exit began: %d\n", (int)(total() - before));
  before = total();
  range_push("step");
  range_push("late");
  do_nothing(a);
  range_pop();
  range_pop();
  R(cuMemFree_v2(buffer));
  usleep(20000);
  printf("calls for two of the program's: %d\n", (int)(total() - before));
  fflush(stdout);
}

int main(int argc, char **argv) {
  const char *how = argc > 1 ? argv[1] : "dlsym", *what = argc > 2 ? argv[2] : "steps";
  int count = argc > 3 ? atoi(argv[3]) : 3;
  if (strcmp(what, "nothing") == 0)
    return 0;
  // A program that looks whether there is CUDA, in its way.
  if (strcmp(what, "absent") == 0)
    return dlsym(RTLD_DEFAULT, "cuInit") != NULL || dlsym(RTLD_DEFAULT, "cuLaunchKernel") != NULL;
  if (strcmp(what, "looking up") == 0) {
    forks_looking_up();
    return 0;
  }
  if (strcmp(what, "exit") == 0)
    atexit(late);
  load(how);
  nvtx_open();
  begin();
  if (strcmp(what, "steps") == 0)
    steps(count);
  else if (strcmp(what, "variants") == 0)
    variants();
  else if (strcmp(what, "memory") == 0)
    memory();
  else if (strcmp(what, "contexts") == 0)
    contexts();
  else if (strcmp(what, "storm") == 0)
    storm(count);
  else if (strcmp(what, "forks") == 0)
    steps(2), forks(), steps(1);
  else if (strcmp(what, "exit") == 0) {
    // Ends with work in flight, a step and its lanes open.
    range_push("step");
    for (int i = 0; i < 20; i++) {
      range_push("prefill");
      do_nothing(a);
      if (i < 19)
        range_pop();
    }
  } else if (strcmp(what, "orphan") == 0)
    steps(2), orphan();
  else if (strcmp(what, "all") == 0)
    steps(count), variants(), memory(), contexts();
  else
    return 2;
#ifndef LINKED
  if (getenv("ENGINE_UNLOAD") != NULL) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    for (int i = 0; i < 3 && lib != NULL; i++)
      dlclose(lib);
  }
#endif
  // Waits to be read, or killed.
  if (getenv("ENGINE_WAIT") != NULL) {
    printf("ready\n");
    fflush(stdout);
    getchar();
  }
  printf("done\n");
  return 0;
}
