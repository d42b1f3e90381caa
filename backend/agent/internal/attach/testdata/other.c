// SPDX-License-Identifier: Apache-2.0
//
// Another tool: it interposes dlsym and wraps the driver's launches, as some do.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                         void **);
typedef void *(*dlsym_fn)(void *, const char *);

static int launches;
static launch_fn behind;

static dlsym_fn real(void) {
  void *p = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  if (p == NULL)
    p = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
  dlsym_fn f;
  memcpy(&f, &p, sizeof f);
  return f;
}

static int counted(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra) {
  launches++;
  return behind(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

// Programs that link the driver.
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra) {
  if (behind == NULL) {
    void *p = real()(RTLD_NEXT, "cuLaunchKernel");
    memcpy(&behind, &p, sizeof p);
  }
  return counted(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

void *dlsym(void *restrict handle, const char *restrict name) {
  void *p = real()(handle, name);
  if (p == NULL || handle == RTLD_NEXT || strcmp(name, "cuLaunchKernel") != 0)
    return p;
  memcpy(&behind, &p, sizeof p);
  launch_fn f = counted;
  memcpy(&p, &f, sizeof p);
  return p;
}

__attribute__((destructor)) static void report(void) {
  const char *path = getenv("OTHER_SEEN");
  FILE *f = path != NULL && launches > 0 ? fopen(path, "w") : NULL;
  if (f == NULL)
    return;
  fprintf(f, "%d launches\n", launches);
  fclose(f);
}
