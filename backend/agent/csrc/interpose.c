// SPDX-License-Identifier: Apache-2.0
#include "interpose.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "say.h"

// dlsym ------------------------------------------------------------------------------

// The function that programs call. Whichever function answers is entered by a
// jump, with the arguments and the return address that we were entered with.
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "endbr64\n"
        "pushq %rdi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "pushq %rsi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "subq $8, %rsp\n"
        ".cfi_adjust_cfa_offset 8\n"
        "call lt_dlsym_route\n"
        "addq $8, %rsp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "popq %rsi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "popq %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "jmp *%rax\n"
        ".cfi_endproc\n"
        ".size dlsym, . - dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "hint #34\n" // bti c
        "stp x29, x30, [sp, #-32]!\n"
        ".cfi_adjust_cfa_offset 32\n"
        ".cfi_rel_offset x29, 0\n"
        ".cfi_rel_offset x30, 8\n"
        "mov x29, sp\n"
        "stp x0, x1, [sp, #16]\n"
        "bl lt_dlsym_route\n"
        "mov x16, x0\n"
        "ldp x0, x1, [sp, #16]\n"
        "ldp x29, x30, [sp], #32\n"
        ".cfi_restore x29\n"
        ".cfi_restore x30\n"
        ".cfi_adjust_cfa_offset -32\n"
        "br x16\n"
        ".cfi_endproc\n"
        ".size dlsym, . - dlsym\n");
#else
#error "the agent knows x86-64 and aarch64"
#endif

#if defined(__x86_64__)
#define FIRST_VERSION "GLIBC_2.2.5"
#else
#define FIRST_VERSION "GLIBC_2.17"
#endif

static void *no_dlsym(void *handle, const char *name) {
  (void)handle;
  (void)name;
  return NULL;
}

lt_dlsym_fn lt_real_dlsym(void) {
  static _Atomic(void *) known;
  void *f = atomic_load_explicit(&known, memory_order_acquire);
  if (f == NULL) {
    // Asked by version, so that the answer does not depend on dlsym. A library
    // behind us that has a dlsym without versions answers to any: interposers nest.
    f = dlvsym(RTLD_NEXT, "dlsym", FIRST_VERSION);
    if (f == NULL)
      f = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (f == NULL) {
      static _Atomic int said;
      lt_say_once(&said, "no dlsym to be found behind this library: programs will not find functions");
      f = (void *)(uintptr_t)no_dlsym;
    }
    atomic_store_explicit(&known, f, memory_order_release);
  }
  lt_dlsym_fn fn;
  memcpy(&fn, &f, sizeof fn);
  return fn;
}

static const struct lt_symbol *symbol_named(const char *name) {
  if (name[0] != 'c' || name[1] != 'u')
    return NULL;
  for (unsigned i = 0; i < lt_symbol_count; i++)
    if (strcmp(lt_symbols[i].name, name) == 0)
      return lt_symbols[i].kind != NULL ? &lt_symbols[i] : NULL;
  return NULL;
}

// The path says whether a function is the driver's: it is loaded as libcuda.so.1,
// or under its full version.
static bool driver_path(const char *path) {
  const char *slash = strrchr(path, '/');
  return strncmp(slash != NULL ? slash + 1 : path, "libcuda.so", 10) == 0;
}

static bool in_driver(void *address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != NULL && driver_path(info.dli_fname);
}

void *lt_libcuda(void) {
  static _Atomic(void *) known;
  void *h = atomic_load_explicit(&known, memory_order_acquire);
  if (h != NULL)
    return h;
  h = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  if (h == NULL) {
    // The failure is ours, the program must not be told of it.
    (void)dlerror();
    return NULL;
  }
  atomic_store_explicit(&known, h, memory_order_release);
  return h;
}

// find is the real dlsym without leaving a trace in dlerror.
static void *find(void *handle, const char *name) {
  void *p = lt_real_dlsym()(handle, name);
  if (p == NULL)
    (void)dlerror();
  return p;
}

void *lt_driver_symbol(void *unused, const char *name) {
  (void)unused;
  void *lib = lt_libcuda();
  if (lib == NULL)
    return NULL;
  void *p = find(lib, name);
  return p;
}

void *lt_next(const char *name, struct lt_slot_of *slot) {
  void *p = atomic_load_explicit(&slot->real, memory_order_acquire);
  if (p != NULL)
    return p;
  p = find(RTLD_NEXT, name);
  void *lib = lt_libcuda();
  if (p == NULL && lib != NULL)
    p = find(lib, name);
  if (p != NULL)
    atomic_store_explicit(&slot->real, p, memory_order_release);
  return p;
}

// Whether anybody but this library has the name.
static void *other_definition(const struct lt_symbol *s) {
  struct lt_slot_of none = {.per_thread = s->per_thread};
  return lt_next(s->name, &none);
}

// Answers for a hooked name. Entered by a jump from dlsym, so it looks like it.
static void *dlsym_hooked(void *handle, const char *name) {
  const struct lt_symbol *s = symbol_named(name);
  void *p = handle == RTLD_DEFAULT ? s->own : lt_real_dlsym()(handle, name);
  if (p == NULL)
    return NULL;
  if (p == s->own) {
    // Found because we are here. Where no driver is, nothing is to be found: the
    // real dlsym says so, in dlerror as well.
    return other_definition(s) != NULL ? p : lt_real_dlsym()(RTLD_NEXT, name);
  }
  // A handle of the driver's leads to the driver, whatever address another
  // interposer behind us gave.
  if (in_driver(p) || (handle != RTLD_NEXT && handle == lt_libcuda())) {
    (void)lt_libcuda();
    return lt_wrap(s->kind, p, s->per_thread);
  }
  return p;
}

static void *dlsym_absent(void *handle, const char *name) {
  (void)handle;
  return lt_real_dlsym()(RTLD_NEXT, name);
}

__attribute__((visibility("hidden"), used)) void *lt_dlsym_route(void *handle, const char *name);
void *lt_dlsym_route(void *handle, const char *name) {
  const struct lt_symbol *s;
  lt_dlsym_fn answer = lt_real_dlsym();
  if (name != NULL && (s = symbol_named(name)) != NULL) {
    if (handle != RTLD_NEXT)
      answer = dlsym_hooked;
    else if (other_definition(s) == NULL)
      answer = dlsym_absent;
    // Else what is behind the caller: our own function, when we are behind it; the
    // driver's, when it is an interposer behind us whose call has come through us.
  }
  void *p;
  memcpy(&p, &answer, sizeof p);
  return p;
}

// Trampolines ----------------------------------------------------------------------------

static bool ours(void *address) {
  Dl_info a, self;
  return dladdr(address, &a) != 0 && dladdr((void *)(uintptr_t)lt_wrap, &self) != 0 && a.dli_fbase == self.dli_fbase;
}

void *lt_wrap(const struct lt_kind *kind, void *real, bool per_thread) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static _Atomic int said;
  if (kind == NULL || real == NULL || ours(real))
    return real;
  void *entry = NULL;
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < kind->count && entry == NULL; i++) {
    struct lt_slot_of *s = &kind->slots[i];
    void *have = atomic_load_explicit(&s->real, memory_order_relaxed);
    if (have == NULL) {
      s->per_thread = per_thread;
      atomic_store_explicit(&s->real, real, memory_order_release);
      entry = kind->entries[i];
    } else if (have == real && s->per_thread == per_thread) {
      entry = kind->entries[i];
    }
  }
  pthread_mutex_unlock(&lock);
  if (entry == NULL) {
    lt_say_once(&said, "more than %u variants of %s: calls through further ones are not seen", kind->count, kind->name);
    return real;
  }
  return entry;
}

static const struct lt_symbol *symbol_meant(const char *base, int version, bool per_thread) {
  const struct lt_symbol *best = NULL;
  for (unsigned i = 0; i < lt_symbol_count; i++) {
    const struct lt_symbol *s = &lt_symbols[i];
    if (s->since > version || (best != NULL && s->since < best->since) || strcmp(s->base, base) != 0)
      continue;
    if (best == NULL || s->since > best->since || s->per_thread == per_thread)
      best = s;
  }
  return best;
}

bool lt_proc_is_later(const char *base, int version) {
  return version > LT_KNOWN_CUDA && symbol_meant(base, version, false) != NULL;
}

void *lt_wrap_proc(const char *base, int version, bool per_thread, void *real, void *newest) {
  static _Atomic int said;
  const struct lt_symbol *s = symbol_meant(base, version, per_thread);
  if (s == NULL || s->kind == NULL)
    return real;
  if (newest != NULL && newest != real) {
    // A later CUDA has another function under this name; calling it as the one we
    // know would be wrong.
    lt_say_once(&said, "this driver has a variant of %s later than CUDA %d.%d: calls through it are not seen", base,
                LT_KNOWN_CUDA / 1000, LT_KNOWN_CUDA % 1000 / 10);
    return real;
  }
  (void)lt_libcuda();
  return lt_wrap(s->kind, real, s->per_thread);
}
