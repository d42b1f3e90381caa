// SPDX-License-Identifier: Apache-2.0
#include "site.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

#include "agent.h"
#include "interpose.h"
#include "say.h"
#include "steps.h"

// Modules ------------------------------------------------------------------------------

enum class { CALLER, AGENT, CUDA, ALLOCATOR };

// File names, as far as the star goes. LANETRACE_SITE_SKIP adds to the allocators.
static const char *const cuda_modules[] = {"libcuda.so*", "libcudart.so*", "libcudart-*", "libcupti.so*", "libnvrtc*"};
static const char *const allocator_modules[] = {"libc10*", "librmm*", "libcumem_allocator*", "cumem_allocator*",
                                                "libtorch_cuda_linalg*",
                                                // what Python calls C through
                                                "libffi*", "_ctypes*", "_cffi_backend*"};

enum { MODULES = 1024, BUILD_ID_BYTES = 20, SKIPS = 32, DEPTH = 48 };

struct module {
  uintptr_t start, end, base;
  enum class is;
  uint8_t build_bytes, build[BUILD_ID_BYTES];
};

static struct module modules[MODULES];
static unsigned module_count;
static unsigned long long module_adds, module_subs;
static bool modules_read;
static char *skips[SKIPS];
static unsigned skip_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void in_child(void) { pthread_mutex_init(&lock, NULL); }

__attribute__((constructor)) static void loaded(void) {
  pthread_atfork(NULL, NULL, in_child);
  const char *v = getenv("LANETRACE_SITE_SKIP");
  while (v != NULL && *v != '\0' && skip_count < SKIPS) {
    size_t n = strcspn(v, ",");
    if (n > 0 && (skips[skip_count] = strndup(v, n)) != NULL)
      skip_count++;
    v += n + (v[n] == ',');
  }
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

static enum class classify(const char *path) {
  const char *name = base_name(path);
  size_t n = strlen(name);
  for (unsigned i = 0; i < sizeof cuda_modules / sizeof cuda_modules[0]; i++)
    if (lt_pattern_matches(cuda_modules[i], name, n))
      return CUDA;
  for (unsigned i = 0; i < sizeof allocator_modules / sizeof allocator_modules[0]; i++)
    if (lt_pattern_matches(allocator_modules[i], name, n))
      return ALLOCATOR;
  for (unsigned i = 0; i < skip_count; i++)
    if (lt_pattern_matches(skips[i], name, n))
      return ALLOCATOR;
  return CALLER;
}

static void read_build_id(struct module *m, const struct dl_phdr_info *info) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    if (p->p_type != PT_NOTE)
      continue;
    const char *at = (const char *)(info->dlpi_addr + p->p_vaddr), *end = at + p->p_memsz;
    while (end - at >= (ptrdiff_t)sizeof(ElfW(Nhdr))) {
      ElfW(Nhdr) h;
      memcpy(&h, at, sizeof h);
      size_t name = ((size_t)h.n_namesz + 3) & ~(size_t)3, desc = ((size_t)h.n_descsz + 3) & ~(size_t)3;
      at += sizeof h;
      if ((size_t)(end - at) < name + desc)
        break;
      if (h.n_type == NT_GNU_BUILD_ID && h.n_namesz == 4 && memcmp(at, "GNU", 4) == 0) {
        m->build_bytes = h.n_descsz < BUILD_ID_BYTES ? (uint8_t)h.n_descsz : BUILD_ID_BYTES;
        memcpy(m->build, at + name, m->build_bytes);
        return;
      }
      at += name + desc;
    }
  }
}

static int add_module(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size;
  (void)unused;
  if (module_count == MODULES)
    return 1;
  struct module *m = &modules[module_count];
  *m = (struct module){.start = UINTPTR_MAX, .base = info->dlpi_addr};
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    if (p->p_type != PT_LOAD)
      continue;
    uintptr_t from = info->dlpi_addr + p->p_vaddr;
    m->start = from < m->start ? from : m->start;
    m->end = from + p->p_memsz > m->end ? from + p->p_memsz : m->end;
  }
  if (m->start >= m->end)
    return 0;
  uintptr_t self = (uintptr_t)add_module;
  m->is = self >= m->start && self < m->end ? AGENT : classify(info->dlpi_name != NULL ? info->dlpi_name : "");
  read_build_id(m, info);
  module_count++;
  return 0;
}

static int look(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)unused;
  if (size < offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs)
    return 1;
  if (info->dlpi_adds != module_adds || info->dlpi_subs != module_subs)
    modules_read = false;
  module_adds = info->dlpi_adds;
  module_subs = info->dlpi_subs;
  return 1;
}

// module_of finds the module of an address. Under the lock.
static const struct module *module_of(uintptr_t address) {
  for (unsigned i = 0; i < module_count; i++)
    if (address >= modules[i].start && address < modules[i].end)
      return &modules[i];
  return NULL;
}

static void read_modules(void) {
  dl_iterate_phdr(look, NULL);
  if (modules_read)
    return;
  module_count = 0;
  dl_iterate_phdr(add_module, NULL);
  modules_read = true;
}

// The stack --------------------------------------------------------------------------------

typedef _Unwind_Reason_Code (*backtrace_fn)(_Unwind_Trace_Fn, void *);
typedef _Unwind_Ptr (*ip_fn)(struct _Unwind_Context *);
static _Atomic(void *) backtrace_frames, frame_ip;

// unwinder opens libgcc_s. Two threads may do so at once: neither waits for the
// other, for one of them may be in the constructor of a library that is being
// loaded, for which the other's dlopen waits.
static backtrace_fn unwinder(void) {
  static _Atomic int said;
  void *a = atomic_load_explicit(&backtrace_frames, memory_order_acquire);
  if (a == NULL && !atomic_load_explicit(&said, memory_order_relaxed)) {
    void *lib = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL);
    void *b = lib != NULL ? lt_real_dlsym()(lib, "_Unwind_GetIP") : NULL;
    if (b != NULL && (a = lt_real_dlsym()(lib, "_Unwind_Backtrace")) != NULL) {
      atomic_store(&frame_ip, b);
      atomic_store_explicit(&backtrace_frames, a, memory_order_release);
    } else {
      (void)dlerror();
      lt_say_once(&said, "no libgcc_s.so.1: call sites of allocations are not known");
    }
  }
  backtrace_fn f;
  memcpy(&f, &a, sizeof f);
  return f;
}

// How far up the stack the site was looked for. Under the lock.
struct walk {
  ip_fn get_ip;
  int frames;
  uintptr_t ip;     // the site's return address, else the outermost looked at
  struct module in; // whose code it is; end is 0 for nobody's
  bool cached;      // under an allocator
};

static _Unwind_Reason_Code visit(struct _Unwind_Context *c, void *arg) {
  struct walk *w = arg;
  uintptr_t ip = (uintptr_t)w->get_ip(c);
  if (ip == 0)
    return _URC_NORMAL_STOP;
  const struct module *m = module_of(ip - 1);
  w->ip = ip;
  w->in = m != NULL ? *m : (struct module){0};
  enum class is = m != NULL ? m->is : CALLER;
  w->cached = w->cached || is == ALLOCATOR;
  return is == CALLER || ++w->frames == DEPTH ? _URC_NORMAL_STOP : _URC_NO_REASON;
}

// Sites ---------------------------------------------------------------------------------------

enum { SITES = 1 << 13, PROBES = 32 };
static struct {
  uint64_t key;
  uint32_t name;
} sites[SITES];

static uint64_t key_of(uintptr_t address, const char *range, unsigned generation) {
  uint64_t h = 0xcbf29ce484222325u ^ address;
  h = (h ^ (uintptr_t)range) * 0x100000001b3u;
  h = (h ^ generation) * 0x9e3779b97f4a7c15u;
  return (h ^ h >> 29) | 1;
}

static size_t put(char *dst, size_t at, size_t size, const char *text) {
  for (; *text != '\0' && at + 1 < size; text++)
    dst[at++] = *text;
  dst[at] = '\0';
  return at;
}

// describe writes the site of a return address: module!symbol+offset in range (build
// id). Without the lock: dladdr waits for whoever is loading a library, and its
// constructors may be waiting for us.
static void describe(char *dst, size_t size, const struct walk *w, const char *range) {
  char number[48];
  Dl_info info = {0};
  bool found = dladdr((void *)(w->ip - 1), &info) != 0;
  size_t n = put(dst, 0, size, found && info.dli_fname != NULL ? base_name(info.dli_fname) : "[no module]");
  uintptr_t from = found ? (uintptr_t)info.dli_fbase : 0;
  if (found && info.dli_sname != NULL) {
    n = put(dst, n, size, "!");
    n = put(dst, n, size, info.dli_sname);
    from = (uintptr_t)info.dli_saddr;
  }
  snprintf(number, sizeof number, "+0x%zx", (size_t)(w->ip - from));
  n = put(dst, n, size, number);
  if (range != NULL) {
    n = put(dst, n, size, " in ");
    n = put(dst, n, size, range);
  }
  if (w->in.build_bytes > 0) {
    n = put(dst, n, size, " (build ");
    for (unsigned i = 0; i < w->in.build_bytes && i < 8; i++) {
      snprintf(number, sizeof number, "%02x", w->in.build[i]);
      n = put(dst, n, size, number);
    }
    put(dst, n, size, ")");
  }
}

// place finds the place of a key, or a free one; SITES when there is neither. Under
// the lock.
static unsigned place(uint64_t key) {
  unsigned at = (unsigned)(key >> 20) & (SITES - 1);
  for (unsigned i = 0; i < PROBES; i++) {
    unsigned p = (at + i) & (SITES - 1);
    if (sites[p].key == key || sites[p].key == 0)
      return p;
  }
  return SITES;
}

uint32_t lt_site(void) {
  backtrace_fn walk_frames = unwinder();
  if (walk_frames == NULL)
    return 0;
  struct walk w = {0};
  void *get_ip = atomic_load_explicit(&frame_ip, memory_order_relaxed);
  memcpy(&w.get_ip, &get_ip, sizeof get_ip);
  pthread_mutex_lock(&lock);
  read_modules();
  walk_frames(visit, &w);
  const char *range = w.cached ? lt_steps_range() : NULL;
  uint64_t key = key_of(w.ip, range, lt_agent_generation());
  unsigned p = place(key);
  uint32_t name = p < SITES && sites[p].key == key ? sites[p].name : 0;
  pthread_mutex_unlock(&lock);
  if (name != 0 || w.ip == 0)
    return name;
  char text[1200];
  describe(text, sizeof text, &w, range);
  name = lt_ring_name_z(lt_hub_ring(), LT_NAME_SITE, text);
  pthread_mutex_lock(&lock);
  p = place(key);
  if (p < SITES && name != 0) {
    sites[p].key = key;
    sites[p].name = name;
  }
  pthread_mutex_unlock(&lock);
  return name;
}
