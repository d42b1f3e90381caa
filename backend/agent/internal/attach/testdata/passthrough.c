// SPDX-License-Identifier: Apache-2.0
//
// Calls every hooked function in every variant with arguments that are all different,
// and prints what came back: linked, through dlsym, or through cuGetProcAddress.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#include "fakedriver.h"

// All arguments are integers or addresses, which the calling conventions pass alike.
typedef int (*any_fn)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                      uint64_t);

#ifdef LINKED
#define S(kind, symbol, base, since) int symbol(LT_P_##kind);
#define T(kind, symbol, base, since) S(kind, symbol, base, since) S(kind, symbol##_ptsz, base, since)
#define O(symbol, base, since)
#define A(kind, base, since)
LT_SYMBOLS(S, T, O, A)
#undef S
#undef T
#undef O
#undef A
#endif

static void call(const char *kind, const char *symbol, void *f, int seed) {
  static struct lt_launch_config config __attribute__((aligned(4096))) = {.grid = {1, 2, 3}};
  any_fn fn;
  memcpy(&fn, &f, sizeof f);
  if (f == NULL) {
    printf("%s: none\n", symbol);
    return;
  }
  uint64_t a = strcmp(kind, "launch_ex") == 0 ? (uint64_t)(uintptr_t)&config : (uint64_t)seed;
  printf("%s:\n", symbol);
  int r = fn(a, (uint64_t)seed + 1, (uint64_t)seed + 2, (uint64_t)seed + 3, (uint64_t)seed + 4, (uint64_t)seed + 5,
             (uint64_t)seed + 6, (uint64_t)seed + 7, (uint64_t)seed + 8, (uint64_t)seed + 9, (uint64_t)seed + 10);
  printf("  = %d\n", r);
}

#ifndef LINKED
static void *lib;
static int (*get)(LT_P_proc_v2);
static void *ask(const char *base, int version, uint64_t flags) {
  void *f = NULL;
  int status = -1;
  int r = get(base, &f, version, flags, &status);
  printf("%s %d %d: %d, %d\n", base, version, (int)flags, r, status);
  return f;
}
#endif

int main(int argc, char **argv) {
  int seed = 100, proc = argc > 1 && strcmp(argv[1], "proc") == 0;
  (void)proc;
#ifdef LINKED
#define FIND(symbol, base, since, flags) (void *)symbol
#define FIND_OLD(symbol, base, since) NULL
#define FIND_ALIAS(base, since) NULL
#else
  lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (lib == NULL)
    return 3;
  *(void **)&get = dlsym(lib, "cuGetProcAddress_v2");
  int (*first)(LT_P_proc);
  *(void **)&first = dlsym(lib, "cuGetProcAddress");
  void *second = NULL;
  if (first("cuGetProcAddress", &second, 12000, 0) != 0 || first("cuNotThere", (void **)&second, 12000, 0) != 500)
    return 4;
  *(void **)&get = ask("cuGetProcAddress", 12000, 0);
#define FIND(symbol, base, since, flags) (proc ? ask(#base, since, flags) : dlsym(lib, #symbol))
#define FIND_OLD(symbol, base, since) FIND(symbol, base, since, 0)
#define FIND_ALIAS(base, since) (proc ? ask(#base, since, 0) : NULL)
#endif
  for (int round = 0; round < 2; round++) {
#define CALL(kind, symbol, base, since, flags)                 \
  if (!IS_PROC(kind)) {                                        \
    call(#kind, #symbol, FIND(symbol, base, since, flags), seed); \
    seed += 16;                                                \
  }
#define S(kind, symbol, base, since) CALL(kind, symbol, base, since, 1)
#define T(kind, symbol, base, since) CALL(kind, symbol, base, since, 1) CALL(kind, symbol##_ptsz, base, since, 2)
#define O(symbol, base, since) call("old", #symbol, FIND_OLD(symbol, base, since), seed += 16);
#define A(kind, base, since) call(#kind, #base " of " #since, FIND_ALIAS(base, since), seed += 16);
    LT_SYMBOLS(S, T, O, A)
  }
  fflush(stdout);
  return 0;
}
