// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for the CUDA driver library, for tests on machines without a GPU.
//
// What it models: the calling rules (initialisation, current contexts, stale
// handles, stream captures and what spoils them), the order in which work on
// streams happens and what is pending when, event stamps from a GPU clock with
// its own offset, rate and step, how memory is packed, what graph replays do
// to events, and the few kernels that tests launch, which really run over
// "device" memory that is host memory.
//
// What it does not: parallelism limits, contention, priorities (accepted, not
// obeyed), caches, textures, arrays, inter-process handles, device code other
// than what tests register, cubins and fat binaries, and how long real calls
// take on the host (see lt_testdriver_set_call_ns).
//
// Time is virtual where it can be. An operation's begin and end on the GPU
// follow from when it was enqueued, what is before it and how long such work
// takes; a worker thread for each stream merely lets the real clock catch up
// before anything can be seen complete. Stamps are therefore exact on a busy
// two-core machine, and no stamp is ever ahead of the real clock.
//
// This file holds the process-wide parts: the lock, calls, faults, settings,
// the log, handles, the clocks. The others are named after what they hold.

#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

struct driver drv = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .next_ctx_id = 1,
    .next_stream_id = 1,
    .next_capture_id = 1,
    .next_alloc_id = 1,
    .next_serial = 1,
};

_Thread_local bool in_callback;
_Thread_local int thread_capture_mode; // GLOBAL is 0

// Clocks ---------------------------------------------------------------------

int64_t mono_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t gpu_clock_ns(int64_t mono) {
  const struct settings *s = &drv.set;
  __int128 drift = (__int128)(mono - s->clock_base_ns) * s->clock_drift_ppb / 1000000000;
  return mono + s->clock_offset_ns + (int64_t)drift;
}

int64_t gpu_stamp_ns(int64_t mono) {
  int64_t t = gpu_clock_ns(mono);
  int64_t r = t % 32;
  return t - (r < 0 ? r + 32 : r);
}

// Thread ids from the kernel are reused; a capture or a default stream must
// not pass to a stranger.
uint64_t thread_token(void) {
  static atomic_uint_fast64_t next = 1;
  static _Thread_local uint64_t mine;
  if (mine == 0)
    mine = atomic_fetch_add(&next, 1);
  return mine;
}

// Handles --------------------------------------------------------------------

#define BUCKETS 16384
static struct obj *buckets[BUCKETS];
static struct obj *free_objs[K_COUNT];
static uint64_t live_objs[K_COUNT];

static unsigned bucket_of(const void *p) {
  uint64_t x = (uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15u;
  return (unsigned)(x >> 50);
}

void *obj_new(enum kind kind, size_t size) {
  struct obj *o = free_objs[kind];
  if (o != NULL) {
    free_objs[kind] = o->next;
    memset(o, 0, size);
  } else {
    o = calloc(1, size);
    if (o == NULL)
      return NULL;
  }
  o->kind = kind;
  unsigned b = bucket_of(o);
  o->next = buckets[b];
  buckets[b] = o;
  live_objs[kind]++;
  return o;
}

void obj_free(void *p) {
  struct obj *o = p;
  for (struct obj **at = &buckets[bucket_of(o)]; *at != NULL; at = &(*at)->next) {
    if (*at != o)
      continue;
    *at = o->next;
    o->next = free_objs[o->kind];
    free_objs[o->kind] = o;
    live_objs[o->kind]--;
    return;
  }
}

void *obj_get(const void *handle, enum kind kind) {
  for (struct obj *o = buckets[bucket_of(handle)]; o != NULL; o = o->next)
    if ((const void *)o == handle)
      return o->kind == kind ? o : NULL;
  return NULL;
}

void obj_sweep(enum kind kind, bool (*pick)(struct obj *, void *), void *arg, void (*drop)(struct obj *)) {
  for (unsigned b = 0; b < BUCKETS; b++) {
    // A drop may free further objects of this bucket, so start over after each.
    for (struct obj *o = buckets[b]; o != NULL;) {
      if (o->kind == kind && pick(o, arg)) {
        drop(o);
        o = buckets[b];
      } else {
        o = o->next;
      }
    }
  }
}

uint64_t obj_live(enum kind kind) { return live_objs[kind]; }

// Functions, counters, host time ------------------------------------------------

static const char *const fn_names[FN_COUNT] = {
#define F(sym, base, ver) #sym,
#define S(sym, sfx, base, ver) #sym, #sym #sfx,
#include "functions.h"
#undef F
#undef S
};
static uint64_t fn_calls[FN_COUNT], fn_calls_total;
static _Thread_local uint64_t fn_calls_here;
static int64_t fn_host_ns[FN_COUNT];

const char *fn_name(enum fn_id fn) { return fn_names[fn]; }

static int fn_find(const char *name) {
  for (int i = 0; i < FN_COUNT; i++)
    if (strcmp(fn_names[i], name) == 0)
      return i;
  return -1;
}

static void burn(int64_t ns) {
  int64_t until = mono_ns() + ns;
  if (ns > 200000) {
    struct timespec ts = {until / 1000000000, until % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR) {
    }
  }
  while (mono_ns() < until) {
  }
}

// Faults -----------------------------------------------------------------------

struct rule {
  struct rule *next;
  int fn; // -1: all
  int result;
  int64_t skip, times; // times < 0: for ever
};
static struct rule *rules;

static CUresult fault_for(int fn) {
  CUresult result = CUDA_SUCCESS;
  for (struct rule *r = rules; r != NULL; r = r->next) {
    if (r->fn >= 0 && r->fn != fn)
      continue;
    if (r->skip > 0) {
      r->skip--;
      continue;
    }
    if (r->times == 0)
      continue;
    if (r->times > 0)
      r->times--;
    if (result == CUDA_SUCCESS)
      result = r->result;
  }
  return result;
}

static void rules_clear(void) {
  while (rules != NULL) {
    struct rule *r = rules;
    rules = r->next;
    free(r);
  }
}

static int rule_add(const char *function, int result, int skip, int times) {
  int fn = -1;
  if (strcmp(function, "*") != 0) {
    fn = fn_find(function);
    if (fn < 0)
      return -1;
  }
  struct rule *r = calloc(1, sizeof *r);
  if (r == NULL)
    return -1;
  r->fn = fn;
  r->result = result;
  r->skip = skip;
  r->times = times == 0 ? -1 : times;
  struct rule **at = &rules;
  while (*at != NULL)
    at = &(*at)->next;
  *at = r;
  return 0;
}

// Calls --------------------------------------------------------------------------

// Workers do not survive a fork, and neither does the real driver.
static bool forked;

static bool needs_init(enum fn_id fn) {
  switch (fn) {
  case FN_cuInit:
  case FN_cuDriverGetVersion:
  case FN_cuGetErrorName:
  case FN_cuGetErrorString:
  case FN_cuGetProcAddress:
  case FN_cuGetProcAddress_v2:
    return false;
  default:
    return true;
  }
}

// What the driver lets a host function do, as measured: ask and even wait for
// streams and events, and record, but nothing that needs a current context.
static bool callback_may(enum fn_id fn) {
  switch (fn) {
  case FN_cuStreamQuery:
  case FN_cuStreamQuery_ptsz:
  case FN_cuStreamSynchronize:
  case FN_cuStreamSynchronize_ptsz:
  case FN_cuStreamGetId:
  case FN_cuStreamGetId_ptsz:
  case FN_cuStreamGetCtx:
  case FN_cuStreamGetCtx_ptsz:
  case FN_cuStreamGetFlags:
  case FN_cuStreamGetFlags_ptsz:
  case FN_cuStreamGetPriority:
  case FN_cuStreamGetPriority_ptsz:
  case FN_cuStreamIsCapturing:
  case FN_cuStreamIsCapturing_ptsz:
  case FN_cuStreamGetCaptureInfo_v2:
  case FN_cuStreamGetCaptureInfo_v2_ptsz:
  case FN_cuStreamGetCaptureInfo_v3:
  case FN_cuStreamGetCaptureInfo_v3_ptsz:
  case FN_cuStreamWaitEvent:
  case FN_cuStreamWaitEvent_ptsz:
  case FN_cuEventQuery:
  case FN_cuEventSynchronize:
  case FN_cuEventElapsedTime:
  case FN_cuEventElapsedTime_v2:
  case FN_cuEventRecord:
  case FN_cuEventRecord_ptsz:
  case FN_cuEventRecordWithFlags:
  case FN_cuEventRecordWithFlags_ptsz:
  case FN_cuThreadExchangeStreamCaptureMode:
    return true;
  default:
    return false;
  }
}

// No call is a cancellation point: one waits and writes with the lock held.
static _Thread_local int cancelling;

CUresult lt_enter(enum fn_id fn) {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling);
  pthread_mutex_lock(&drv.lock);
  fn_calls[fn]++;
  fn_calls_total++;
  fn_calls_here++;
  int64_t host = fn_host_ns[fn];
  if (host > 0) {
    pthread_mutex_unlock(&drv.lock);
    burn(host);
    pthread_mutex_lock(&drv.lock);
  }
  CUresult r = rules != NULL ? fault_for((int)fn) : CUDA_SUCCESS;
  if (r == CUDA_SUCCESS && needs_init(fn)) {
    if (!drv.initialised || forked)
      r = CUDA_ERROR_NOT_INITIALIZED;
    else if (in_callback && !callback_may(fn))
      r = CUDA_ERROR_NOT_PERMITTED;
  }
  return r != CUDA_SUCCESS ? lt_leave(r) : r;
}

CUresult lt_leave(CUresult r) {
  pthread_mutex_unlock(&drv.lock);
  pthread_setcancelstate(cancelling, NULL);
  return r;
}

// The log --------------------------------------------------------------------------

static int log_fd = -1;
static uint64_t log_seq;

bool log_on(void) { return log_fd >= 0; }

void log_line(enum fn_id fn, struct stream *s, const char *fmt, ...) {
  if (log_fd < 0)
    return;
  char line[4096];
  int n = snprintf(line, sizeof line, "%llu %s", (unsigned long long)++log_seq, fn_names[fn]);
  if (s != NULL)
    n += snprintf(line + n, sizeof line - (size_t)n, " ctx=%llu stream=%llu capturing=%d", (unsigned long long)s->ctx->id,
                  (unsigned long long)s->id, s->cap != NULL);
  va_list ap;
  va_start(ap, fmt);
  n += vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
  va_end(ap);
  if (n > (int)sizeof line - 2)
    n = (int)sizeof line - 2;
  line[n++] = '\n';
  // One write a line and no buffer: the lines survive a crash, and processes
  // that share the file do not cut each other's.
  if (write(log_fd, line, (size_t)n) < 0) {
    close(log_fd);
    log_fd = -1;
  }
}

static int log_open(const char *path) {
  if (log_fd >= 0)
    close(log_fd);
  log_fd = -1;
  if (path == NULL || *path == '\0')
    return 0;
  log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  return log_fd >= 0 ? 0 : errno;
}

// Hidden symbols --------------------------------------------------------------------

struct name {
  struct name *next;
  char text[];
};
static struct name *hidden;

// Symbols that this build was made without, for tests that use dlsym.
#ifndef LT_BUILT_WITHOUT
#define LT_BUILT_WITHOUT ""
#endif

static bool listed(const char *list, const char *name) {
  size_t n = strlen(name);
  for (const char *p = list; *p != '\0';) {
    size_t len = strcspn(p, ",");
    if (len == n && memcmp(p, name, n) == 0)
      return true;
    p += len;
    if (*p == ',')
      p++;
  }
  return false;
}

bool symbol_hidden(const char *name) {
  for (struct name *h = hidden; h != NULL; h = h->next)
    if (strcmp(h->text, name) == 0)
      return true;
  return listed(LT_BUILT_WITHOUT, name);
}

static int hide(const char *symbol, size_t len, bool on) {
  for (struct name **at = &hidden; *at != NULL;) {
    struct name *h = *at;
    if (strlen(h->text) == len && memcmp(h->text, symbol, len) == 0) {
      *at = h->next;
      free(h);
    } else {
      at = &h->next;
    }
  }
  if (!on)
    return 0;
  struct name *h = calloc(1, sizeof *h + len + 1);
  if (h == NULL)
    return -1;
  memcpy(h->text, symbol, len);
  h->next = hidden;
  hidden = h;
  return 0;
}

static void hidden_clear(void) {
  while (hidden != NULL) {
    struct name *h = hidden;
    hidden = h->next;
    free(h);
  }
}

// Kernels by name -----------------------------------------------------------------

struct kernel_entry {
  struct kernel_entry *next;
  lt_testdriver_kernel_fn body;
  int64_t ns;
  char name[];
};
static struct kernel_entry *kernels;

static struct kernel_entry *kernel_entry(const char *name, bool make) {
  for (struct kernel_entry *k = kernels; k != NULL; k = k->next)
    if (strcmp(k->name, name) == 0)
      return k;
  if (!make)
    return NULL;
  size_t len = strlen(name) + 1;
  struct kernel_entry *k = calloc(1, sizeof *k + len);
  if (k == NULL)
    return NULL;
  memcpy(k->name, name, len);
  k->ns = -1;
  k->next = kernels;
  kernels = k;
  return k;
}

lt_testdriver_kernel_fn kernel_body(const struct fninfo *f) {
  struct kernel_entry *k = kernel_entry(f->name, false);
  return k != NULL && k->body != NULL ? k->body : builtin_body(f);
}

int64_t kernel_ns(const char *name) {
  struct kernel_entry *k = kernel_entry(name, false);
  return k != NULL ? k->ns : -1;
}

static void kernels_clear(void) {
  while (kernels != NULL) {
    struct kernel_entry *k = kernels;
    kernels = k->next;
    free(k);
  }
}

// Loading ----------------------------------------------------------------------------

static struct settings initial;

static int64_t env_int(const char *name, int64_t otherwise) {
  const char *v = getenv(name);
  if (v == NULL || *v == '\0')
    return otherwise;
  char *end;
  errno = 0;
  long long n = strtoll(v, &end, 0);
  if (errno != 0 || *end != '\0') {
    fprintf(stderr, "testdriver: %s=%s is no number, ignored\n", name, v);
    return otherwise;
  }
  return n;
}

static void env_faults(void) {
  const char *v = getenv("LANETRACE_TESTDRIVER_FAIL");
  while (v != NULL && *v != '\0') {
    char item[256], fn[128];
    size_t len = strcspn(v, ",");
    int result = 0, skip = 0, times = 0, n = 0;
    if (len < sizeof item) {
      memcpy(item, v, len);
      item[len] = '\0';
      n = sscanf(item, "%127[^:]:%d:%d:%d", fn, &result, &skip, &times);
    }
    // A misspelt fault that is dropped makes a test pass for no reason.
    if (n < 2 || rule_add(fn, result, skip, times) != 0)
      fprintf(stderr, "testdriver: LANETRACE_TESTDRIVER_FAIL: cannot use \"%.*s\"\n", (int)len, v);
    v += len;
    if (*v == ',')
      v++;
  }
}

static void env_hidden(void) {
  const char *v = getenv("LANETRACE_TESTDRIVER_HIDE");
  while (v != NULL && *v != '\0') {
    size_t len = strcspn(v, ",");
    if (len > 0)
      hide(v, len, true);
    v += len;
    if (*v == ',')
      v++;
  }
}

static void before_fork(void) { pthread_mutex_lock(&drv.lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&drv.lock); }
static void after_fork_child(void) {
  forked = forked || drv.initialised; // before cuInit a fork does no harm
  pthread_mutex_unlock(&drv.lock);
}

__attribute__((constructor)) static void load(void) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&drv.done, &attr);
  pthread_condattr_destroy(&attr);

  int64_t devices = env_int("LANETRACE_TESTDRIVER_DEVICES", 1);
  initial = (struct settings){
      .devices = devices < 0 ? 0 : devices > LT_MAX_DEVICES ? LT_MAX_DEVICES : (int)devices,
      .clock_offset_ns = env_int("LANETRACE_TESTDRIVER_CLOCK_OFFSET_NS", 0),
      .clock_drift_ppb = env_int("LANETRACE_TESTDRIVER_CLOCK_DRIFT_PPB", 0),
      .clock_base_ns = mono_ns(),
      .record_ns = env_int("LANETRACE_TESTDRIVER_RECORD_NS", 1460),
      .after_record_ns = env_int("LANETRACE_TESTDRIVER_AFTER_RECORD_NS", 0),
      .latency_ns = env_int("LANETRACE_TESTDRIVER_LAUNCH_LATENCY_NS", 4000),
      .kernel_ns = env_int("LANETRACE_TESTDRIVER_KERNEL_NS", 5000),
      .spin_fixed_ns = 523,
      .copy_fixed_ns = 1500,
      .copy_bytes_per_us = 50000,
      .total_memory = (size_t)env_int("LANETRACE_TESTDRIVER_TOTAL_MEMORY", (int64_t)139 << 30) & ~(CHUNK_BYTES - 1),
      .swap_limit = -1,
      .integrated = (int)env_int("LANETRACE_TESTDRIVER_INTEGRATED", 0),
  };
  drv.set = initial;
  env_faults();
  env_hidden();
  const char *log = getenv("LANETRACE_TESTDRIVER_LOG");
  int err = log_open(log);
  if (err != 0)
    fprintf(stderr, "testdriver: LANETRACE_TESTDRIVER_LOG=%s: %s\n", log, strerror(err));
  pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

// Initialisation ------------------------------------------------------------------------

EXPORT CUresult cuInit(unsigned flags) {
  ENTER(FN_cuInit);
  if (flags != 0)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (forked)
    LEAVE(CUDA_ERROR_NOT_INITIALIZED);
  if (drv.set.devices == 0)
    LEAVE(CUDA_ERROR_NO_DEVICE);
  drv.initialised = true;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDriverGetVersion(int *version) {
  ENTER(FN_cuDriverGetVersion);
  if (version == NULL)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  *version = DRIVER_VERSION;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuProfilerStart(void) {
  ENTER(FN_cuProfilerStart);
  CUresult r = CUDA_SUCCESS;
  ctx_current(&r);
  LEAVE(r);
}

EXPORT CUresult cuProfilerStop(void) {
  ENTER(FN_cuProfilerStop);
  CUresult r = CUDA_SUCCESS;
  ctx_current(&r);
  LEAVE(r);
}

// Control ----------------------------------------------------------------------------------

#define LOCK() pthread_mutex_lock(&drv.lock)
#define UNLOCK() pthread_mutex_unlock(&drv.lock)

EXPORT void lt_testdriver_reset(void) {
  LOCK();
  drv.set = initial;
  rules_clear();
  env_faults();
  hidden_clear();
  env_hidden();
  kernels_clear();
  memset(fn_calls, 0, sizeof fn_calls);
  memset(fn_host_ns, 0, sizeof fn_host_ns);
  fn_calls_total = 0;
  log_open(NULL);
  UNLOCK();
}

EXPORT int lt_testdriver_set_kernel(const char *name, lt_testdriver_kernel_fn fn) {
  LOCK();
  struct kernel_entry *k = kernel_entry(name, true);
  if (k != NULL)
    k->body = fn;
  UNLOCK();
  return k != NULL ? 0 : -1;
}

EXPORT int lt_testdriver_set_kernel_ns(const char *name, int64_t ns) {
  int r = 0;
  LOCK();
  if (name == NULL) {
    drv.set.kernel_ns = ns < 0 ? initial.kernel_ns : ns;
  } else {
    struct kernel_entry *k = kernel_entry(name, true);
    if (k != NULL)
      k->ns = ns < 0 ? -1 : ns;
    else
      r = -1;
  }
  UNLOCK();
  return r;
}

#define SETTER(name, type, field, value) \
  EXPORT void name(type v) {             \
    LOCK();                              \
    drv.set.field = value;               \
    UNLOCK();                            \
  }
SETTER(lt_testdriver_set_spin_fixed_ns, int64_t, spin_fixed_ns, v)
SETTER(lt_testdriver_set_record_ns, int64_t, record_ns, v)
SETTER(lt_testdriver_set_after_record_ns, int64_t, after_record_ns, v)
SETTER(lt_testdriver_set_launch_latency_ns, int64_t, latency_ns, v)
SETTER(lt_testdriver_set_total_memory, uint64_t, total_memory, (size_t)v & ~(CHUNK_BYTES - 1))
SETTER(lt_testdriver_set_integrated, int, integrated, v != 0)
SETTER(lt_testdriver_set_swap_limit, int, swap_limit, v)

EXPORT void lt_testdriver_set_copy_cost(int64_t fixed_ns, int64_t bytes_per_us) {
  LOCK();
  drv.set.copy_fixed_ns = fixed_ns;
  drv.set.copy_bytes_per_us = bytes_per_us;
  UNLOCK();
}

EXPORT void lt_testdriver_set_clock(int64_t offset_ns, int64_t drift_ppb) {
  LOCK();
  drv.set.clock_offset_ns = offset_ns;
  drv.set.clock_drift_ppb = drift_ppb;
  drv.set.clock_base_ns = mono_ns();
  UNLOCK();
}

EXPORT int64_t lt_testdriver_gpu_ns(int64_t mono) {
  LOCK();
  int64_t t = gpu_clock_ns(mono);
  UNLOCK();
  return t;
}

EXPORT int lt_testdriver_set_call_ns(const char *function, int64_t ns) {
  int fn = fn_find(function);
  if (fn < 0)
    return -1;
  LOCK();
  fn_host_ns[fn] = ns;
  UNLOCK();
  return 0;
}

EXPORT int lt_testdriver_fail(const char *function, int result, int skip, int times) {
  LOCK();
  int r = rule_add(function, result, skip, times);
  UNLOCK();
  return r;
}

EXPORT void lt_testdriver_clear_faults(void) {
  LOCK();
  rules_clear();
  drv.set.sticky = 0;
  UNLOCK();
}

EXPORT void lt_testdriver_set_sticky(int result) {
  LOCK();
  drv.set.sticky = result;
  streams_wake_all();
  UNLOCK();
}

EXPORT int lt_testdriver_hide(const char *symbol, int on) {
  LOCK();
  int r = hide(symbol, strlen(symbol), on != 0);
  UNLOCK();
  return r;
}

EXPORT uint64_t lt_testdriver_calls(const char *function) {
  int fn = fn_find(function);
  if (fn < 0)
    return UINT64_MAX; // a misspelt name must not read as "never called"
  LOCK();
  uint64_t n = fn_calls[fn];
  UNLOCK();
  return n;
}

EXPORT uint64_t lt_testdriver_calls_total(void) {
  LOCK();
  uint64_t n = fn_calls_total;
  UNLOCK();
  return n;
}

EXPORT uint64_t lt_testdriver_calls_here(void) { return fn_calls_here; }

EXPORT void lt_testdriver_reset_calls(void) {
  LOCK();
  memset(fn_calls, 0, sizeof fn_calls);
  fn_calls_total = 0;
  UNLOCK();
}

EXPORT uint64_t lt_testdriver_live(const char *kind) {
  static const char *const words[K_COUNT] = {"context", "stream", "event", "module", "function", "library",
                                             "kernel",  "graph",  "exec",  "node",   "pool",     "physical"};
  uint64_t n = UINT64_MAX;
  LOCK();
  if (strcmp(kind, "allocation") == 0)
    n = alloc_live();
  for (int i = 0; i < K_COUNT; i++)
    if (strcmp(kind, words[i]) == 0)
      n = live_objs[i];
  UNLOCK();
  return n;
}

EXPORT int lt_testdriver_log(const char *path) {
  LOCK();
  int r = log_open(path);
  UNLOCK();
  return r;
}
