// SPDX-License-Identifier: Apache-2.0
//
// interpose.h for a program that has the agent's other sources linked into it: the
// sanitizers' runtimes do not bear a dlsym of somebody else's. The program's calls
// reach the agent through the exported functions alone.
#include "interpose.h"

#include <dlfcn.h>
#include <string.h>

void *lt_wrap(const struct lt_kind *kind, void *real, bool per_thread) {
  (void)kind;
  (void)per_thread;
  return real;
}

void *lt_wrap_proc(const char *base, int version, bool per_thread, void *real, void *newest) {
  (void)base;
  (void)version;
  (void)per_thread;
  (void)newest;
  return real;
}

bool lt_proc_is_later(const char *base, int version) {
  (void)base;
  (void)version;
  return false;
}

void *lt_next(const char *name, struct lt_slot_of *slot) {
  void *p = dlsym(RTLD_NEXT, name);
  atomic_store(&slot->real, p);
  return p;
}

void *lt_libcuda(void) { return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD); }

void *lt_driver_symbol(void *unused, const char *name) {
  (void)unused;
  return dlsym(lt_libcuda(), name);
}

lt_dlsym_fn lt_real_dlsym(void) { return dlsym; }
