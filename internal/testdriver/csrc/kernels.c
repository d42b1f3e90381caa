// SPDX-License-Identifier: Apache-2.0
//
// Kernels that the stand-in knows by name and really runs, over host memory.
// Entries of any other name do nothing for as long as they take.

#include "internal.h"

#define ARG(type, i) (*(type *)params[i])

static void fill(void **params, const unsigned grid[3], const unsigned block[3]) {
  (void)grid;
  (void)block;
  uint32_t *p = ARG(uint32_t *, 0), value = ARG(uint32_t, 1), n = ARG(uint32_t, 2);
  for (uint32_t i = 0; i < n; i++)
    p[i] = value;
}

static void add(void **params, const unsigned grid[3], const unsigned block[3]) {
  (void)grid;
  (void)block;
  uint32_t *dst = ARG(uint32_t *, 0), *a = ARG(uint32_t *, 1), *b = ARG(uint32_t *, 2), n = ARG(uint32_t, 3);
  for (uint32_t i = 0; i < n; i++)
    dst[i] = a[i] + b[i];
}

static void scale(void **params, const unsigned grid[3], const unsigned block[3]) {
  (void)grid;
  (void)block;
  uint32_t *p = ARG(uint32_t *, 0), factor = ARG(uint32_t, 1), n = ARG(uint32_t, 2);
  for (uint32_t i = 0; i < n; i++)
    p[i] *= factor;
}

static void copy8(void **params, const unsigned grid[3], const unsigned block[3]) {
  (void)grid;
  (void)block;
  memmove(ARG(void *, 0), ARG(void *, 1), ARG(uint64_t, 2));
}

static void store(void **params, const unsigned grid[3], const unsigned block[3]) {
  (void)grid;
  (void)block;
  *ARG(uint64_t *, 0) = ARG(uint64_t, 1);
}

// lt_acc_stamp writes a value to two words 64 bytes apart, which the host watches.
static void stamp(void **params, const unsigned grid[3], const unsigned block[3]) {
  (void)grid;
  (void)block;
  uint64_t *words = ARG(uint64_t *, 0), value = ARG(uint64_t, 1);
  __atomic_store_n(&words[0], value, __ATOMIC_RELEASE);
  __atomic_store_n(&words[8], value, __ATOMIC_RELEASE);
}

static void args(void **params, const unsigned grid[3], const unsigned block[3]) {
  (void)grid;
  (void)block;
  uint64_t *out = ARG(uint64_t *, 0);
  out[0] = ARG(uint8_t, 1);
  out[1] = ARG(uint16_t, 2);
  out[2] = ARG(uint32_t, 3);
  out[3] = ARG(uint64_t, 4);
  out[4] = ARG(uint32_t, 5); // a float's and
  out[5] = ARG(uint64_t, 6); // a double's bits
  out[6] = ARG(uint8_t, 7);
}

lt_testdriver_kernel_fn builtin_body(const struct fninfo *f) {
  static const struct {
    const char *name;
    lt_testdriver_kernel_fn body;
    size_t nparams, bytes;
  } known[] = {
      {"lt_test_fill", fill, 3, 16},   {"lt_test_add", add, 4, 28},     {"lt_test_scale", scale, 3, 16},
      {"lt_test_copy8", copy8, 3, 24}, {"lt_test_store", store, 2, 16},
      {"lt_test_args", args, 8, 41},   {"lt_acc_stamp", stamp, 3, 24},
  };
  // An entry that has the name but other parameters is somebody else's.
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (strcmp(known[i].name, f->name) == 0 && known[i].nparams == f->nparams && known[i].bytes == f->bytes)
      return known[i].body;
  return NULL;
}
