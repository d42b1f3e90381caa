// SPDX-License-Identifier: Apache-2.0
//
// A libcuda.so.1 whose functions do nothing, so that what a hook costs is all there
// is to measure.
int cuCtxGetCurrent(void **c);
int cuDevicePrimaryCtxRetain(void **c, int device);

static int context;
int cuCtxGetCurrent(void **c) {
  *c = &context;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **c, int device) {
  (void)device;
  *c = &context;
  return 0;
}

#define NOTHING(name) \
  int name(void);     \
  int name(void) { return 0; }
NOTHING(cuInit) NOTHING(cuCtxPushCurrent_v2) NOTHING(cuCtxPopCurrent_v2) NOTHING(cuCtxGetDevice) NOTHING(cuDeviceGetName)
NOTHING(cuDeviceGetAttribute) NOTHING(cuStreamCreate) NOTHING(cuStreamDestroy_v2) NOTHING(cuStreamIsCapturing)
NOTHING(cuThreadExchangeStreamCaptureMode) NOTHING(cuEventCreate) NOTHING(cuEventDestroy_v2) NOTHING(cuEventRecord)
NOTHING(cuEventElapsedTime) NOTHING(cuEventElapsedTime_v2) NOTHING(cuModuleLoadDataEx) NOTHING(cuModuleUnload)
NOTHING(cuModuleGetFunction) NOTHING(cuLaunchKernel) NOTHING(cuDeviceGetUuid) NOTHING(cuDeviceGetUuid_v2)
NOTHING(cuMemFree_v2)

int cuMemAlloc_v2(unsigned long long *p, unsigned long n);
int cuMemAlloc_v2(unsigned long long *p, unsigned long n) {
  static unsigned long long next = 1 << 21;
  *p = next;
  next += (n + 511) & ~511ul;
  return 0;
}
