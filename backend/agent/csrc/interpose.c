// SPDX-License-Identifier: Apache-2.0
#include "interpose.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "say.h"

// dlsym ------------------------------------------------------------------------------

#if defined(__x86_64__)
#define FIRST_VERSION "GLIBC_2.2.5"
#else
#define FIRST_VERSION "GLIBC_2.17"
#endif

// The function has both of the versions under which C libraries have dlsym: programs
// ask for either, and other interposers for the first, to find the dlsym behind them.
#define BOTH_VERSIONS                               \
  ".globl lt_dlsym_first\n"                         \
  ".set lt_dlsym_first, lt_dlsym_entry\n"           \
  ".symver lt_dlsym_first, dlsym@" FIRST_VERSION ", remove\n" \
  ".globl lt_dlsym_later\n"                         \
  ".set lt_dlsym_later, lt_dlsym_entry\n"           \
  ".symver lt_dlsym_later, dlsym@@GLIBC_2.34, remove\n"

// The function that programs call. Whichever function answers is entered by a
// jump, with the arguments and the return address that we were entered with.
#if defined(__x86_64__)
__asm__(".text\n"
        ".type lt_dlsym_entry, @function\n"
        "lt_dlsym_entry:\n"
        BOTH_VERSIONS
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
        ".size lt_dlsym_entry, . - lt_dlsym_entry\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".type lt_dlsym_entry, %function\n"
        "lt_dlsym_entry:\n"
        BOTH_VERSIONS
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
        ".size lt_dlsym_entry, . - lt_dlsym_entry\n");
#else
#error "the agent knows x86-64 and aarch64"
#endif

static void *no_dlsym(void *handle, const char *name) {
  (void)handle;
  (void)name;
  return NULL;
}

// gnu_hash is the hash of a name in a DT_GNU_HASH table.
static uint32_t gnu_hash(const char *name) {
  uint32_t h = 5381;
  for (; *name != '\0'; name++)
    h = h * 33 + (uint8_t)*name;
  return h;
}

// defined finds a function in one loaded object's own table of symbols.
static void *defined(const struct dl_phdr_info *o, const char *name) {
  const ElfW(Dyn) *d = NULL;
  for (int i = 0; i < o->dlpi_phnum; i++)
    if (o->dlpi_phdr[i].p_type == PT_DYNAMIC)
      d = (const ElfW(Dyn) *)(o->dlpi_addr + o->dlpi_phdr[i].p_vaddr);
  const ElfW(Sym) *symbols = NULL;
  const char *strings = NULL;
  const uint32_t *hash = NULL;
  for (; d != NULL && d->d_tag != DT_NULL; d++) {
    // The loader has turned these into addresses, but not in every object.
    uintptr_t p = (uintptr_t)d->d_un.d_ptr;
    if (p < o->dlpi_addr)
      p += o->dlpi_addr;
    if (d->d_tag == DT_SYMTAB)
      symbols = (const ElfW(Sym) *)p;
    else if (d->d_tag == DT_STRTAB)
      strings = (const char *)p;
    else if (d->d_tag == DT_GNU_HASH)
      hash = (const uint32_t *)p;
  }
  if (symbols == NULL || strings == NULL || hash == NULL || hash[0] == 0)
    return NULL;
  uint32_t buckets = hash[0], first = hash[1], filter = hash[2], want = gnu_hash(name);
  const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(hash + 4) + filter), *chain = bucket + buckets;
  uint32_t i = bucket[want % buckets];
  if (i < first)
    return NULL;
  for (;; i++) {
    uint32_t h = chain[i - first];
    const ElfW(Sym) *s = &symbols[i];
    if ((h | 1) == (want | 1) && s->st_shndx != SHN_UNDEF && (s->st_info & 15) == STT_FUNC &&
        strcmp(strings + s->st_name, name) == 0)
      return (void *)(o->dlpi_addr + s->st_value);
    if (h & 1)
      return NULL;
  }
}

struct behind {
  bool passed; // this library
  void *found;
};

static int look_behind(struct dl_phdr_info *o, size_t size, void *arg) {
  (void)size;
  struct behind *b = arg;
  if (!b->passed) {
    for (int i = 0; i < o->dlpi_phnum; i++) {
      uintptr_t at = (uintptr_t)look_behind - o->dlpi_addr - o->dlpi_phdr[i].p_vaddr;
      b->passed = b->passed || (o->dlpi_phdr[i].p_type == PT_LOAD && at < o->dlpi_phdr[i].p_memsz);
    }
    return 0;
  }
  const char *slash = o->dlpi_name != NULL ? strrchr(o->dlpi_name, '/') : NULL;
  const char *file = slash != NULL ? slash + 1 : "";
  // The C library's own is asked for by version; who comes after it is behind it.
  if (strncmp(file, "libc.so", 7) == 0 || strncmp(file, "libdl.so", 8) == 0)
    return 1;
  b->found = defined(o, "dlsym");
  return b->found != NULL;
}

// library_dlsym is the C library's, whoever may be between.
static lt_dlsym_fn library_dlsym(void) {
  static _Atomic(void *) known;
  void *f = atomic_load_explicit(&known, memory_order_acquire);
  if (f == NULL) {
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

lt_dlsym_fn lt_real_dlsym(void) {
  static _Atomic(void *) known;
  void *f = atomic_load_explicit(&known, memory_order_acquire);
  lt_dlsym_fn fn;
  if (f == NULL) {
    // Another interposer between us and the C library comes first: interposers nest.
    // It has no version by which it could be asked for. Who is there stays there, and
    // is looked for once: the loader's lock, taken for that, is not a child of fork's to
    // take if another thread had it.
    struct behind b = {false, NULL};
    dl_iterate_phdr(look_behind, &b);
    f = b.found;
    if (f == NULL) {
      fn = library_dlsym();
      memcpy(&f, &fn, sizeof f);
    }
    atomic_store_explicit(&known, f, memory_order_release);
  }
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

// find looks up for the agent itself, without leaving a trace in dlerror, and past
// other interposers' dlsym: they would take this library's calls for the program's,
// and RTLD_NEXT would mean what is behind them.
static void *find(void *handle, const char *name) {
  void *p = library_dlsym()(handle, name);
  if (p == NULL)
    (void)dlerror();
  return p;
}

void *lt_driver_symbol(void *unused, const char *name) {
  (void)unused;
  void *lib = lt_libcuda();
  if (lib == NULL)
    return NULL;
  return find(lib, name);
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

// missing fails as the real dlsym does, dlerror included. It is called, not jumped
// to: the real one must take this library for its caller.
static __attribute__((noinline)) void *missing(const char *name) {
  void *volatile p = library_dlsym()(RTLD_NEXT, name);
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
    return other_definition(s) != NULL ? p : missing(name);
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
  return missing(name);
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void in_child(void) { pthread_mutex_init(&lock, NULL); }

__attribute__((constructor)) static void loaded(void) {
  pthread_atfork(NULL, NULL, in_child);
  (void)lt_real_dlsym();
}

void *lt_wrap(const struct lt_kind *kind, void *real, bool per_thread) {
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
