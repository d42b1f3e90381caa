// SPDX-License-Identifier: Apache-2.0
//
// A program that finds the driver by name, like any other; testdriver_test.go
// sets what it must then see.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "control.h"
#include "cuda_abi.h"

static int failures;
#define EQ(got, want)                                                                         \
  do {                                                                                        \
    long long got_ = (long long)(got), want_ = (long long)(want);                             \
    if (got_ != want_) {                                                                      \
      fprintf(stderr, "program.c:%d: %s is %lld, want %lld\n", __LINE__, #got, got_, want_);  \
      failures++;                                                                             \
    }                                                                                         \
  } while (0)

static __typeof__(cuGetProcAddress_v2) *get;

static void *find(const char *name) {
  void *f = NULL;
  int status;
  EQ(get(name, &f, 13000, 0, &status), 0);
  return f;
}

int main(void) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (lib == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  *(void **)&get = dlsym(lib, "cuGetProcAddress_v2");
  __typeof__(cuInit) *init = find("cuInit");
  __typeof__(cuDeviceGetCount) *count = find("cuDeviceGetCount");
  __typeof__(cuDeviceGetAttribute) *attribute = find("cuDeviceGetAttribute");
  __typeof__(cuCtxCreate_v4) *create = find("cuCtxCreate");
  __typeof__(cuCtxSynchronize) *sync = find("cuCtxSynchronize");
  __typeof__(cuMemAlloc_v2) *alloc = find("cuMemAlloc");
  __typeof__(cuMemGetInfo_v2) *info = find("cuMemGetInfo");
  __typeof__(lt_testdriver_gpu_ns) *gpu;
  *(void **)&gpu = dlsym(lib, "lt_testdriver_gpu_ns");

  EQ(init(0), 0);
  int n = 0;
  EQ(count(&n), 0);
  EQ(n, 2);
  EQ(attribute(&n, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0), 0);
  EQ(n, 1);
  CUcontext ctx;
  EQ(create(&ctx, NULL, 0, 1), 0);
  CUdeviceptr p;
  EQ(alloc(&p, 100), 0);
  EQ(alloc(&p, 100), 2);
  EQ(alloc(&p, 100), 0);
  EQ(sync(), 700);
  EQ(sync(), 700);
  size_t free_bytes, total;
  EQ(info(&free_bytes, &total), 0);
  EQ(total, 67108864);
  EQ(gpu(0), 1000000000000);

  void *f;
  int status;
  EQ(get("cuStreamGetId", &f, 13000, 0, &status), 0);
  EQ(f == NULL, 1);
  EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  // The newest that is not hidden.
  EQ(find("cuEventElapsedTime") == dlsym(lib, "cuEventElapsedTime"), 1);

  // The preloaded library has the name, the driver's own is behind it.
  int *calls = dlsym(RTLD_DEFAULT, "preload_calls");
  EQ(calls != NULL, 1);
  if (calls != NULL)
    EQ(*calls, 0);
  __typeof__(cuMemAlloc_v2) *preloaded;
  *(void **)&preloaded = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
  EQ(preloaded(&p, 1), 12345);
  return failures > 0;
}
