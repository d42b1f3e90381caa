/* A stand-in for the driver's management library: one GPU that draws 500 W by its counter.
 * What it lacks, or answers with 3, it does not support. With STANDIN_HANG set, reading
 * power does not return; the file STANDIN_COUNT grows by a byte for each reading of energy. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3 };
typedef int ret;
typedef void *device;

ret nvmlInit_v2(void) { return SUCCESS; }
ret nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(ret r) { return r == NOT_SUPPORTED ? "Not Supported" : "?"; }

ret nvmlDeviceGetCount_v2(unsigned *n) {
  *n = 1;
  return SUCCESS;
}

ret nvmlDeviceGetHandleByIndex_v2(unsigned i, device *d) {
  *d = (device)(uintptr_t)(i + 1);
  return SUCCESS;
}

ret nvmlDeviceGetUUID(device d, char *s, unsigned n) {
  (void)d;
  snprintf(s, n, "GPU-5e1f0000-0000-4000-8000-000000000000");
  return SUCCESS;
}

ret nvmlDeviceGetName(device d, char *s, unsigned n) {
  (void)d;
  snprintf(s, n, "stand-in GPU");
  return SUCCESS;
}

ret nvmlDeviceGetPowerUsage(device d, unsigned *mw) {
  (void)d;
  for (; getenv("STANDIN_HANG") != NULL;) pause();
  *mw = 123456;
  return SUCCESS;
}

ret nvmlDeviceGetTotalEnergyConsumption(device d, unsigned long long *mj) {
  (void)d;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  *mj = (unsigned long long)t.tv_sec * 500000 + (unsigned long long)t.tv_nsec / 2000;
  const char *count = getenv("STANDIN_COUNT");
  int fd = count == NULL ? -1 : open(count, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0 && write(fd, "", 1) != 1) abort();
  if (fd >= 0) close(fd);
  return SUCCESS;
}

ret nvmlDeviceGetClockInfo(device d, int clock, unsigned *mhz) {
  (void)d;
  *mhz = clock == 1 ? 1980 : 3201;
  return SUCCESS;
}

ret nvmlDeviceGetTemperature(device d, int sensor, unsigned *c) {
  (void)d, (void)sensor;
  *c = 0;
  return SUCCESS;
}

ret nvmlDeviceGetCurrentClocksThrottleReasons(device d, unsigned long long *bits) {
  (void)d;
  *bits = 0x48; /* the hardware, for heat */
  return SUCCESS;
}

ret nvmlDeviceGetMemoryInfo(device d, unsigned long long *m) {
  (void)d;
  m[0] = 1000, m[1] = 600, m[2] = 400;
  return SUCCESS;
}

ret nvmlDeviceGetUtilizationRates(device d, unsigned *u) {
  (void)d, (void)u;
  return NOT_SUPPORTED;
}

ret nvmlDeviceGetTotalEccErrors(device d, int type, int counter, unsigned long long *n) {
  (void)d, (void)counter;
  *n = type == 0 ? 7 : 0;
  return SUCCESS;
}
