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
                                                "libtorch_cuda_linalg*"};

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
static backtrace_fn backtrace_frames;
static ip_fn frame_ip;

static void open_unwinder(void) {
  void *lib = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL);
  if (lib != NULL) {
    void *a = lt_real_dlsym()(lib, "_Unwind_Backtrace"), *b = lt_real_dlsym()(lib, "_Unwind_GetIP");
    if (a != NULL && b != NULL) {
      memcpy(&frame_ip, &b, sizeof b);
      memcpy(&backtrace_frames, &a, sizeof a);
      return;
    }
  }
  (void)dlerror();
  lt_say("no libgcc_s.so.1: call sites of allocations are not known");
}

struct walk {
  uintptr_t frame[DEPTH];
  int n;
};

static _Unwind_Reason_Code visit(struct _Unwind_Context *c, void *arg) {
  struct walk *w = arg;
  w->frame[w->n++] = (uintptr_t)frame_ip(c);
  return w->n < DEPTH ? _URC_NO_REASON : _URC_NORMAL_STOP;
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

// describe writes the site of a return address: module!symbol+offset [range] (build id).
static void describe(char *dst, size_t size, uintptr_t ip, const struct module *m, const char *range) {
  char number[48];
  Dl_info info = {0};
  bool found = dladdr((void *)(ip - 1), &info) != 0;
  size_t n = put(dst, 0, size, found && info.dli_fname != NULL ? base_name(info.dli_fname) : m != NULL ? "?" : "[no module]");
  uintptr_t from = found ? (uintptr_t)info.dli_fbase : m != NULL ? m->base : 0;
  if (found && info.dli_sname != NULL) {
    n = put(dst, n, size, "!");
    n = put(dst, n, size, info.dli_sname);
    from = (uintptr_t)info.dli_saddr;
  }
  snprintf(number, sizeof number, "+0x%zx", (size_t)(ip - from));
  n = put(dst, n, size, number);
  if (range != NULL) {
    n = put(dst, n, size, " in ");
    n = put(dst, n, size, range);
  }
  if (m != NULL && m->build_bytes > 0) {
    n = put(dst, n, size, " (build ");
    for (unsigned i = 0; i < m->build_bytes && i < 8; i++) {
      snprintf(number, sizeof number, "%02x", m->build[i]);
      n = put(dst, n, size, number);
    }
    put(dst, n, size, ")");
  }
}

uint32_t lt_site(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_unwinder);
  if (backtrace_frames == NULL)
    return 0;
  struct walk w;
  w.n = 0;
  backtrace_frames(visit, &w);

  pthread_mutex_lock(&lock);
  read_modules();
  const struct module *m = NULL;
  uintptr_t ip = 0;
  bool cached = false;
  for (int i = 0; i < w.n; i++) {
    ip = w.frame[i];
    m = module_of(ip - 1);
    enum class is = m != NULL ? m->is : CALLER;
    if (is == CALLER)
      break;
    cached = cached || is == ALLOCATOR;
    // Should all of the stack be allocators, the outermost stands for the site.
  }
  const char *range = cached ? lt_steps_range() : NULL;
  uint64_t key = key_of(ip, range, lt_agent_generation());
  uint32_t name = 0;
  unsigned at = (unsigned)(key >> 20) & (SITES - 1), i;
  for (i = 0; i < PROBES; i++) {
    unsigned p = (at + i) & (SITES - 1);
    if (sites[p].key == key) {
      name = sites[p].name;
      break;
    }
    if (sites[p].key == 0)
      break;
  }
  if (name == 0 && ip != 0) {
    char text[1200];
    describe(text, sizeof text, ip, m, range);
    name = lt_ring_name_z(lt_hub_ring(), LT_NAME_SITE, text);
    if (i < PROBES && name != 0) {
      sites[(at + i) & (SITES - 1)].name = name;
      sites[(at + i) & (SITES - 1)].key = key;
    }
  }
  pthread_mutex_unlock(&lock);
  return name;
}
