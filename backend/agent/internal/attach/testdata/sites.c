// SPDX-License-Identifier: Apache-2.0
//
// Where memory is allocated. Compiled twice: as an allocator, and as the program
// that uses two copies of it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

unsigned long long allocate(int (*alloc)(unsigned long long *, size_t), size_t bytes);

#ifdef LIBRARY
__attribute__((noinline)) unsigned long long allocate(int (*alloc)(unsigned long long *, size_t), size_t bytes) {
  unsigned long long p = 0;
  if (alloc(&p, bytes) != 0)
    return 0;
  return p + 0;
}
#else
#include "nvtxclient.h"

typedef unsigned long long (*allocate_fn)(int (*)(unsigned long long *, size_t), size_t);
static int (*alloc)(unsigned long long *, size_t);
static allocate_fn caching, mine;

unsigned long long load_weights(size_t n);
unsigned long long make_cache(size_t n);
int workspace(size_t n);

__attribute__((noinline)) unsigned long long load_weights(size_t n) { return caching(alloc, n) + 1; }
__attribute__((noinline)) unsigned long long make_cache(size_t n) { return caching(alloc, n) + 1; }
__attribute__((noinline)) int workspace(size_t n) {
  unsigned long long p;
  return alloc(&p, n) + 1;
}

static allocate_fn open_allocator(const char *dir, const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  void *lib = dlopen(path, RTLD_NOW);
  allocate_fn f = NULL;
  if (lib != NULL)
    *(void **)&f = dlsym(lib, "allocate");
  return f;
}

int main(int argc, char **argv) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context;
  int (*init)(unsigned), (*retain)(void **, int), (*set)(void *);
  if (lib == NULL || argc < 2)
    return 2;
  *(void **)&init = dlsym(lib, "cuInit");
  *(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
  *(void **)&set = dlsym(lib, "cuCtxSetCurrent");
  *(void **)&alloc = dlsym(lib, "cuMemAlloc_v2");
  caching = open_allocator(argv[1], "libc10_cuda.so");
  mine = open_allocator(argv[1], "libmine.so");
  nvtx_open();
  range_push("weights"); // before there is a context, and so an agent
  range_push("gone");
  range_pop();
  if (caching == NULL || mine == NULL || init(0) != 0 || retain(&context, 0) != 0 || set(context) != 0)
    return 3;
  load_weights(2048);
  range_pop();
  range_push("outer");
  range_push("cache");
  make_cache(1024);
  range_pop();
  workspace(512); // its own frame says enough
  range_pop();
  mine(alloc, 4096);
  puts("ready");
  fflush(stdout);
  getchar();
  return 0;
}
#endif
