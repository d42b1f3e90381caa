// SPDX-License-Identifier: Apache-2.0
//
// Ranges of the NVIDIA Tools Extension. A program's copy of NVTX looks for a tool in
// the library that NVTX_INJECTION64_PATH names, hands it a table of its callbacks,
// and calls what the tool puts there. This is that interface, as far as ranges need
// it; marks, categories and names of resources are left alone.
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "ring.h"
#include "say.h"
#include "steps.h"

enum { TABLE_CALLBACKS = 1, MODULE_CORE = 1, MODULE_CORE2 = 5 };
enum {
  CORE_START_EX = 4, CORE_START_A, CORE_START_W, CORE_END, CORE_PUSH_EX, CORE_PUSH_A, CORE_PUSH_W, CORE_POP,
};
enum {
  CORE2_START_EX = 2, CORE2_END, CORE2_PUSH_EX, CORE2_POP,
  CORE2_STRING_A = 10, CORE2_STRING_W, CORE2_DOMAIN_A, CORE2_DOMAIN_W, CORE2_DOMAIN_GONE,
};
enum { TEXT_ASCII = 1, TEXT_WIDE = 2, TEXT_REGISTERED = 3, NO_TRACKING = -2 };

typedef void (*function)(void);
struct callbacks {
  size_t size;
  int (*module_table)(int module, function ***table, unsigned *count);
};
struct attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t text_type;
  const void *text;
};

// What a program gets as the handle of a string or a domain: one for each text, cut to
// TEXT_BYTES. They are never freed, as somebody may still hold one; what is registered
// beyond TEXTS of them or ALL_BYTES shares one.
struct named {
  uint64_t hash;
  size_t n;
  char text[];
};

enum { WIDE_BYTES = 1024, TEXT_BYTES = 1023, TEXTS = 1 << 16, ALL_BYTES = 16 << 20, PLACES = 2 * TEXTS };
static _Atomic(struct named *) known[PLACES]; // open addressing; readers take no lock
static struct {
  pthread_mutex_t lock;
  size_t texts, bytes;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void in_child(void) { pthread_mutex_init(&kept.lock, NULL); }
__attribute__((constructor)) static void loaded(void) { pthread_atfork(NULL, NULL, in_child); }

// narrow writes wide text as UTF-8, cut to size.
static size_t narrow(char *dst, size_t size, const wchar_t *w) {
  size_t n = 0;
  for (; w != NULL && *w != 0 && n + 4 < size; w++) {
    uint32_t c = (uint32_t)*w;
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
      c = 0xfffd;
    if (c < 0x80) {
      dst[n++] = (char)c;
    } else if (c < 0x800) {
      dst[n++] = (char)(0xc0 | c >> 6);
      dst[n++] = (char)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
      dst[n++] = (char)(0xe0 | c >> 12);
      dst[n++] = (char)(0x80 | (c >> 6 & 0x3f));
      dst[n++] = (char)(0x80 | (c & 0x3f));
    } else {
      dst[n++] = (char)(0xf0 | c >> 18);
      dst[n++] = (char)(0x80 | (c >> 12 & 0x3f));
      dst[n++] = (char)(0x80 | (c >> 6 & 0x3f));
      dst[n++] = (char)(0x80 | (c & 0x3f));
    }
  }
  dst[n] = '\0';
  return n;
}

// place_of finds the handle of a text, else its empty place. At most half are in use.
static _Atomic(struct named *) *place_of(uint64_t hash, const char *text, size_t n, struct named **found) {
  for (uint64_t at = hash;; at++) {
    _Atomic(struct named *) *p = &known[at % PLACES];
    struct named *v = *found = atomic_load_explicit(p, memory_order_acquire);
    if (v == NULL || (v->hash == hash && v->n == n && memcmp(v->text, text, n) == 0))
      return p;
  }
}

static struct named *more(void) {
  static struct named others = {.n = 7, .text = "(other)"};
  static _Atomic int said;
  lt_ring_add(lt_hub_ring(), LT_CTR_MISUSE, 1);
  lt_say_once(&said, "more than %d NVTX strings or %d MiB of them: those beyond share a name, and are counted (misuse)", TEXTS,
              ALL_BYTES >> 20);
  return &others;
}

static struct named *named_of(const char *text, size_t n) {
  if (n > TEXT_BYTES)
    n = TEXT_BYTES;
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < n; i++)
    hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3u;
  hash ^= hash >> 29;
  struct named *v;
  place_of(hash, text, n, &v);
  if (v != NULL)
    return v;
  pthread_mutex_lock(&kept.lock);
  _Atomic(struct named *) *p = place_of(hash, text, n, &v);
  const size_t bytes = sizeof *v + n + 1;
  if (v == NULL && kept.texts < TEXTS && kept.bytes + bytes <= ALL_BYTES && (v = malloc(bytes)) != NULL) {
    v->hash = hash;
    v->n = n;
    memcpy(v->text, text, n);
    v->text[n] = '\0';
    kept.texts++;
    kept.bytes += bytes;
    atomic_store_explicit(p, v, memory_order_release);
  }
  pthread_mutex_unlock(&kept.lock);
  return v != NULL ? v : more();
}

static const char *domain_name(const struct named *domain) { return domain != NULL ? domain->text : ""; }

// text_of finds an event's text; buf holds it where it has to be made.
static const char *text_of(const struct attributes *a, char buf[WIDE_BYTES], size_t *n) {
  *n = 0;
  if (a == NULL || a->size < offsetof(struct attributes, text) + sizeof a->text || a->text == NULL)
    return "";
  if (a->text_type == TEXT_ASCII) {
    *n = strlen(a->text);
    return a->text;
  }
  if (a->text_type == TEXT_WIDE) {
    *n = narrow(buf, WIDE_BYTES, a->text);
    return buf;
  }
  if (a->text_type == TEXT_REGISTERED) {
    const struct named *s = a->text;
    *n = s->n;
    return s->text;
  }
  return "";
}

static bool off(void) { return !lt_ranges_followed(); }

static int missed(void) {
  if (!lt_ranges_idle())
    lt_range_missed();
  return NO_TRACKING;
}

static int pushed(int depth) { return depth < 0 ? NO_TRACKING : depth; }

static int push_a(const char *text) {
  if (off())
    return missed();
  return pushed(lt_range_push(text != NULL ? text : "", text != NULL ? strlen(text) : 0, ""));
}

static int push_w(const wchar_t *text) {
  char buf[WIDE_BYTES];
  if (off())
    return missed();
  size_t n = narrow(buf, sizeof buf, text);
  return pushed(lt_range_push(buf, n, ""));
}

static int domain_push_ex(const struct named *domain, const struct attributes *a) {
  char buf[WIDE_BYTES];
  size_t n;
  if (off())
    return missed();
  const char *text = text_of(a, buf, &n);
  return pushed(lt_range_push(text, n, domain_name(domain)));
}

static int push_ex(const struct attributes *a) { return domain_push_ex(NULL, a); }

static int domain_pop(const struct named *domain) {
  return lt_ranges_idle() ? NO_TRACKING : pushed(lt_range_pop(domain_name(domain)));
}
static int pop(void) { return domain_pop(NULL); }

static uint64_t start_a(const char *text) {
  return off() || text == NULL ? 0 : lt_range_start(text, strlen(text), "");
}

static uint64_t start_w(const wchar_t *text) {
  char buf[WIDE_BYTES];
  if (off())
    return 0;
  size_t n = narrow(buf, sizeof buf, text);
  return lt_range_start(buf, n, "");
}

static uint64_t domain_start_ex(const struct named *domain, const struct attributes *a) {
  char buf[WIDE_BYTES];
  size_t n;
  if (off())
    return 0;
  const char *text = text_of(a, buf, &n);
  return lt_range_start(text, n, domain_name(domain));
}

static uint64_t start_ex(const struct attributes *a) { return domain_start_ex(NULL, a); }

static void domain_end(const struct named *domain, uint64_t range) {
  (void)domain;
  lt_range_stop(range);
}
static void end(uint64_t range) { lt_range_stop(range); }

static struct named *make_a(const char *text) { return named_of(text != NULL ? text : "", text != NULL ? strlen(text) : 0); }

static struct named *make_w(const wchar_t *text) {
  char buf[WIDE_BYTES];
  size_t n = narrow(buf, sizeof buf, text);
  return named_of(buf, n);
}

static struct named *string_a(const struct named *domain, const char *text) {
  (void)domain;
  return make_a(text);
}

static struct named *string_w(const struct named *domain, const wchar_t *text) {
  (void)domain;
  return make_w(text);
}

static void domain_gone(const struct named *domain) { (void)domain; }

struct install {
  unsigned at;
  function f;
};
#define PUT(at, f) {at, (function)(void *)f}

static int install(const struct callbacks *c, int module, const struct install *what, unsigned n) {
  function **table = NULL;
  unsigned count = 0;
  if (!c->module_table(module, &table, &count) || table == NULL)
    return 0;
  for (unsigned i = 0; i < n; i++)
    if (what[i].at < count && table[what[i].at] != NULL)
      *table[what[i].at] = what[i].f;
  return 1;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void *(*get_table)(uint32_t id));

// InitializeInjectionNvtx2 is called once for each copy of NVTX in the process, at
// its first use. It returns 1 when the tool will be called.
int InitializeInjectionNvtx2(const void *(*get_table)(uint32_t id)) {
  static const struct install core[] = {
      PUT(CORE_START_EX, start_ex), PUT(CORE_START_A, start_a), PUT(CORE_START_W, start_w), PUT(CORE_END, end),
      PUT(CORE_PUSH_EX, push_ex),   PUT(CORE_PUSH_A, push_a),   PUT(CORE_PUSH_W, push_w),   PUT(CORE_POP, pop),
  };
  static const struct install core2[] = {
      PUT(CORE2_START_EX, domain_start_ex), PUT(CORE2_END, domain_end),  PUT(CORE2_PUSH_EX, domain_push_ex),
      PUT(CORE2_POP, domain_pop),           PUT(CORE2_STRING_A, string_a), PUT(CORE2_STRING_W, string_w),
      PUT(CORE2_DOMAIN_A, make_a),          PUT(CORE2_DOMAIN_W, make_w), PUT(CORE2_DOMAIN_GONE, domain_gone),
  };
  const struct callbacks *c = get_table != NULL ? get_table(TABLE_CALLBACKS) : NULL;
  if (c == NULL || c->size < sizeof *c || c->module_table == NULL)
    return 0;
  int ok = install(c, MODULE_CORE, core, sizeof core / sizeof core[0]);
  return install(c, MODULE_CORE2, core2, sizeof core2 / sizeof core2[0]) | ok;
}
