// SPDX-License-Identifier: Apache-2.0
//
// A thread that nobody joins ends, and glibc, which keeps 40 MiB of stacks, frees the
// thread-locals of one that was joined before. argv[1] is a library that has some: this
// file, built with -DLIBRARY. A second argument asks for a race, too.
#define _GNU_SOURCE

#ifdef LIBRARY

static __thread long values[64];

long touch(void) { return ++values[5]; }

#else

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { JOINED = 8, STACK = 8 << 20 };

static long (*touch)(void);
static atomic_int last; // the thread that nobody joins, once it runs
static atomic_int go;
static int raced;

static void *use(void *race) {
  touch();
  if (race)
    raced++;
  return NULL;
}

// Relaxed: the sanitizer must find no order in it.
static void *end_last(void *unused) {
  (void)unused;
  atomic_store_explicit(&last, (int)syscall(SYS_gettid), memory_order_relaxed);
  while (!atomic_load_explicit(&go, memory_order_relaxed))
    usleep(1000);
  return NULL;
}

int main(int argc, char **argv) {
  void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
  touch = lib != NULL ? (long (*)(void))dlsym(lib, "touch") : NULL;
  if (touch == NULL) {
    fputs("usage: stacks LIBRARY [race]\n", stderr);
    return 2;
  }
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, STACK);
  pthread_t joined[JOINED], t;
  pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
  if (pthread_create(&t, &a, end_last, NULL) != 0)
    return 3;
  pthread_attr_setdetachstate(&a, PTHREAD_CREATE_JOINABLE);
  for (int i = 0; i < JOINED; i++)
    if (pthread_create(&joined[i], &a, use, argc > 2 ? argv[2] : NULL) != 0)
      return 3;
  for (int i = 0; i < JOINED; i++)
    pthread_join(joined[i], NULL);
  int tid;
  while ((tid = atomic_load_explicit(&last, memory_order_relaxed)) == 0)
    usleep(1000);
  atomic_store_explicit(&go, 1, memory_order_relaxed);
  char task[64];
  snprintf(task, sizeof task, "/proc/self/task/%d", tid);
  while (access(task, F_OK) == 0)
    usleep(1000);
  return 0;
}

#endif
