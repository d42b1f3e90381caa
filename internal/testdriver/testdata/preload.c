// SPDX-License-Identifier: Apache-2.0
//
// A preloaded library with functions of the driver's names, as interposers
// have. The driver itself must not call them.
int preload_calls;

int cuMemAlloc_v2(unsigned long long *ptr, unsigned long bytes) {
  (void)ptr;
  (void)bytes;
  preload_calls++;
  return 12345;
}
