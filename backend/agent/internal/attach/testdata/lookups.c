// SPDX-License-Identifier: Apache-2.0
//
// Look-ups through dlsym whose answer depends on who asks, compared with and
// without an interposer. Compiled twice: as a library and as the program that links it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void say(const char *what, void *p, void *handle);
const char *which(void);

#ifdef LIBRARY
// Prints whose p is, by file name, and whether dlerror has something to say.
void say(const char *what, void *p, void *handle) {
  const char *error = dlerror();
  Dl_info info = {0};
  const char *file = p != NULL && dladdr(p, &info) ? info.dli_fname : "nobody";
  const char *slash = strrchr(file, '/');
  file = slash != NULL ? slash + 1 : file;
  // The agent answers for the driver.
  if (strcmp(file, "liblanetrace.so") == 0)
    file = "libcuda.so.1";
  printf("%s: %s, %s, %s\n", what, file, error != NULL ? "an error" : "no error", handle == NULL ? "" : "handle");
}

const char *which(void) {
  // The next definition behind this library: there is none in its program.
  say("which, next from the library", dlsym(RTLD_NEXT, "which"), NULL);
  say("malloc, next from the library", dlsym(RTLD_NEXT, "malloc"), NULL);
  say("cuInit, next from the library", dlsym(RTLD_NEXT, "cuLaunchKernel"), NULL);
  return "next";
}
#else
// The program has a function of the library's name, and finds the library's behind it.
const char *which(void) { return "own"; }

// Somebody else's function that happens to be called as the driver's.
int cuMemAllocNot(void) { return 1; }

int main(void) {
  const char *(*next)(void);
  void *p = dlsym(RTLD_NEXT, "which");
  memcpy(&next, &p, sizeof p);
  printf("%s\n", next != NULL ? next() : "none");
  const char *names[] = {"cuLaunchKernel", "cuGetProcAddress_v2", "cuMemAllocNot", "cuNoSuchFunction", "cuCtxSynchronize",
                         "malloc", "which"};
  for (int round = 0; round < 2; round++) {
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
      say(names[i], dlsym(RTLD_DEFAULT, names[i]), NULL);
      say(names[i], dlsym(RTLD_NEXT, names[i]), NULL);
      void *self = dlopen(NULL, RTLD_LAZY);
      say(names[i], dlsym(self, names[i]), self);
      void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
      if (lib != NULL)
        say(names[i], dlsym(lib, names[i]), lib);
      // A wrong name again: what it says must not have been lost, nor made up.
      say("after", dlsym(self, "cuNoSuchFunction"), self);
    }
    // In the second round the driver is there, and everybody's.
    if (round == 0 && dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == NULL)
      return 1;
  }
  return 0;
}
#endif
