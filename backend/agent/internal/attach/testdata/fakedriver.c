// SPDX-License-Identifier: Apache-2.0
#include "fakedriver.h"

static int called(const char *symbol, unsigned n, const uint64_t *words) {
  printf("  %s", symbol);
  int sum = 0;
  for (unsigned i = 0; i < n; i++)
    printf(" %llu", (unsigned long long)words[i] % 4096); // of addresses what two runs have in common
  printf("\n");
  for (; *symbol != '\0'; symbol++)
    sum = sum * 31 % 10007 + *symbol;
  return 1000 + sum % 5000; // no result that means anything to the agent
}

#define DEFINE(kind, symbol)                                              \
  int symbol(LT_P_##kind);                                                \
  int symbol(LT_P_##kind) {                                               \
    uint64_t words[] = {WORDS(LT_A_##kind)};                              \
    return called(#symbol, sizeof words / sizeof words[0], words);        \
  }

// The look-ups are the only ones that work.
#define cuGetProcAddress cuGetProcAddress_unused
#define cuGetProcAddress_v2 cuGetProcAddress_v2_unused
#define S(kind, symbol, base, since) DEFINE(kind, symbol)
#define T(kind, symbol, base, since) DEFINE(kind, symbol) DEFINE(kind, symbol##_ptsz)
#define O(symbol, base, since) DEFINE(mem_free, symbol)
#define A(kind, base, since) DEFINE(kind, base##_##since)
LT_SYMBOLS(S, T, O, A)
#undef S
#undef T
#undef O
#undef A
#undef cuGetProcAddress
#undef cuGetProcAddress_v2

int cuGetProcAddress(LT_P_proc);
int cuGetProcAddress_v2(LT_P_proc_v2);

static const struct {
  const char *base;
  int since, per_thread;
  void *f;
} table[] = {
#define S(kind, symbol, base, since) {#base, since, 0, (void *)symbol},
#define T(kind, symbol, base, since) {#base, since, 0, (void *)symbol}, {#base, since, 1, (void *)symbol##_ptsz},
#define O(symbol, base, since) {#base, since, 0, (void *)symbol},
#define A(kind, base, since) {#base, since, 0, (void *)base##_##since},
    LT_SYMBOLS(S, T, O, A)
#undef S
#undef T
#undef O
#undef A
};

int cuGetProcAddress_v2(LT_P_proc_v2) {
  unsigned best = sizeof table / sizeof table[0];
  for (unsigned i = 0; i < sizeof table / sizeof table[0]; i++)
    if (strcmp(table[i].base, name) == 0 && table[i].since <= version && table[i].per_thread <= (flags == 2) &&
        (best == sizeof table / sizeof table[0] || table[i].since > table[best].since ||
         (table[i].since == table[best].since && table[i].per_thread)))
      best = i;
  *f = best < sizeof table / sizeof table[0] ? table[best].f : NULL;
  if (status != NULL)
    *status = *f == NULL;
  return 0;
}

int cuGetProcAddress(LT_P_proc) { return cuGetProcAddress_v2(name, f, version, flags, NULL) || *f == NULL ? 500 : 0; }

// What the agent needs to start, so that all is seen with it running too.
static int context;
int cuCtxGetCurrent(void **c);
int cuCtxGetCurrent(void **c) {
  *c = &context;
  return 0;
}
#define NOTHING(name) \
  int name(void);     \
  int name(void) { return 0; }
NOTHING(cuInit) NOTHING(cuCtxPushCurrent_v2) NOTHING(cuCtxPopCurrent_v2) NOTHING(cuCtxGetDevice) NOTHING(cuDeviceGetName)
NOTHING(cuDeviceGetAttribute) NOTHING(cuStreamCreate) NOTHING(cuStreamIsCapturing)
NOTHING(cuThreadExchangeStreamCaptureMode) NOTHING(cuEventCreate) NOTHING(cuEventDestroy_v2) NOTHING(cuEventRecord)
NOTHING(cuEventElapsedTime) NOTHING(cuModuleLoadDataEx) NOTHING(cuDeviceGetUuid)
