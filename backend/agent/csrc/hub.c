// SPDX-License-Identifier: Apache-2.0

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "hub.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cancel.h"
#include "events.h"
#include "say.h"

#ifndef LT_VERSION
#define LT_VERSION "0.1.0"
#endif
// How long a stop waits for the thread. Tests wait longer: their machine may be busy.
#ifndef LT_STOP_WAIT_MS
#define LT_STOP_WAIT_MS 200
#endif

enum {
  HARVEST_MS = 5,
  CONTROL_MS = 250,
  // The thread dozes once so many harvests in a row had nothing to do: an engine that
  // idles for less between steps never pays for a wake.
  IDLE_ROUNDS = 40,
  CAPTURE_WAIT_MS = 50,
  MAX_ARM_REQUEST = 1000000,
};

enum { NEW, RUNNING, FAILED, STOPPED };

_Atomic uint32_t lt_hub_level_word;
_Atomic int32_t lt_hub_armed_open;
_Atomic uint32_t lt_ranges_word = LT_HUB_AWAITED;

static _Atomic(lt_hub *) the_hub;
static _Atomic int state;
static _Atomic int exiting;
static _Atomic int captures;
static _Atomic unsigned epoch;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

lt_hub *lt_the_hub(void) { return atomic_load_explicit(&the_hub, memory_order_acquire); }
bool lt_exiting(void) { return atomic_load_explicit(&exiting, memory_order_relaxed) != 0; }
bool lt_capturing(void) { return atomic_load(&captures) > 0; }
void lt_capture_begun(void) { atomic_fetch_add(&captures, 1); }
void lt_capture_ended(void) { atomic_fetch_sub(&captures, 1); }
void lt_hub_never(void) { atomic_fetch_and(&lt_ranges_word, ~(uint32_t)LT_HUB_AWAITED); }

lt_ring *lt_hub_ring(void) {
  lt_hub *h = lt_the_hub();
  return h != NULL ? h->ring : NULL;
}

int64_t lt_hub_in_flight(void) {
  lt_hub *h = lt_the_hub();
  return h != NULL ? atomic_load(&h->in_flight) : 0;
}

// Threads ----------------------------------------------------------------------------------

static pthread_key_t thread_key;
static bool have_key;
static _Atomic uint64_t last_thread;
static _Thread_local __attribute__((tls_model("initial-exec"))) uint64_t thread_number;

uint64_t lt_thread_number(void) {
  if (thread_number == 0) {
    thread_number = atomic_fetch_add(&last_thread, 1) + 1;
    if (have_key)
      pthread_setspecific(thread_key, &thread_number);
  }
  return thread_number;
}

// A thread's default stream ends with it.
static void thread_ends(void *number) {
  lt_hub *h = lt_the_hub();
  for (int i = 0; h != NULL && i < atomic_load(&h->contexts); i++)
    lt_stream_forget_thread(h->context[i], *(uint64_t *)number);
}

// The thread ---------------------------------------------------------------------------------

void lt_hub_awake(lt_hub *h) {
  if (!atomic_exchange(&h->dozing, 0))
    return;
  atomic_fetch_add(&h->wake, 1);
  syscall(SYS_futex, &h->wake, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void sleep_until_woken(lt_hub *h, uint32_t seen, int64_t ns) {
  struct timespec ts = {.tv_sec = ns / (1000 * LT_MS), .tv_nsec = ns % (1000 * LT_MS)};
  syscall(SYS_futex, &h->wake, FUTEX_WAIT_PRIVATE, seen, &ts, NULL, 0);
}

static void refuse(lt_hub *h, const char *why) {
  lt_ring_add(h->ring, LT_CTR_CONTROL_REJECTED, 1);
  lt_say("control request refused: %s", why);
}

// poll_control acts on a request with another id than the last one. Each different
// nonsense counts once, not once a poll.
static void poll_control(lt_hub *h) {
  lt_control c;
  lt_error err;
  switch (lt_control_read(h->ring, &c, &err)) {
  case LT_CONTROL_NONE:
    return;
  case LT_CONTROL_BAD: {
    char id[sizeof err.text + 8];
    snprintf(id, sizeof id, "error: %s", err.text);
    if (strcmp(id, h->last_control) != 0) {
      strcpy(h->last_control, id);
      refuse(h, err.text);
    }
    return;
  }
  default:
    break;
  }
  if (c.id[0] == '\0' || strcmp(c.id, h->last_control) == 0)
    return;
  snprintf(h->last_control, sizeof h->last_control, "%s", c.id);
  char why[128];
  const int level = c.level[0] != '\0' ? lt_level_parse(c.level) : -1;
  if (c.level[0] != '\0' && level < 0) {
    snprintf(why, sizeof why, "unknown level \"%s\": want one of off, basic, lane, kernel", c.level);
    refuse(h, why);
    return;
  }
  if (c.arm_steps > MAX_ARM_REQUEST) {
    snprintf(why, sizeof why, "%u armed steps asked for, at most %d", c.arm_steps, MAX_ARM_REQUEST);
    refuse(h, why);
    return;
  }
  if (c.level[0] != '\0')
    lt_hub_set_level(level);
  lt_hub_arm(c.arm_steps);
  lt_ring_add(h->ring, LT_CTR_CONTROL_APPLIED, 1);
}

// harvest_all harvests every context that nobody else has in hand, and says whether
// there may be more to do soon.
static bool harvest_all(lt_hub *h) {
  bool more = atomic_load(&h->in_flight) > 0;
  atomic_store(&h->busy, 1);
  for (int i = 0; i < atomic_load(&h->contexts) && !lt_exiting(); i++) {
    lt_context *c = h->context[i];
    if (pthread_mutex_trylock(&c->mu) != 0)
      continue;
    lt_harvest_stats s = {0};
    lt_harvest(c, &s);
    more = more || s.calls > 0 || atomic_load(&c->wanted);
    pthread_mutex_unlock(&c->mu);
  }
  atomic_store(&h->busy, 0);
  return more;
}

static void *work(void *arg) {
  lt_hub *h = arg;
  int64_t control = 0;
  int idle = 0;
  prctl(PR_SET_NAME, "lanetrace", 0, 0, 0);
  while (!atomic_load(&h->stop)) {
    const int64_t now = lt_mono_ns();
    if (now >= control) {
      control = now + CONTROL_MS * LT_MS;
      // A request may raise the level, which makes driver calls.
      atomic_store(&h->busy, 1);
      if (!lt_exiting())
        poll_control(h);
      atomic_store(&h->busy, 0);
    }
    idle = harvest_all(h) ? 0 : idle + 1;
    const uint32_t seen = atomic_load(&h->wake);
    int64_t ns = HARVEST_MS * LT_MS;
    if (idle >= IDLE_ROUNDS) {
      atomic_store(&h->dozing, 1);
      if (atomic_load(&h->in_flight) == 0) // else somebody began before it could see that
        ns = CONTROL_MS * LT_MS;
    }
    if (!atomic_load(&h->stop))
      sleep_until_woken(h, seen, ns);
    if (atomic_exchange(&h->dozing, 0) == 0)
      idle = 0;
  }
  return NULL;
}

static int make_thread(lt_hub *h) {
  // Signals are the program's.
  sigset_t all, was;
  pthread_t thread;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &was);
  int err = pthread_create(&thread, NULL, work, h);
  pthread_sigmask(SIG_SETMASK, &was, NULL);
  if (err == 0)
    pthread_detach(thread);
  return err;
}

// Life ------------------------------------------------------------------------------------------

static void in_child(void) {
  // The parent's hub is a copy that nobody else has; its steps are of another epoch.
  atomic_store(&lt_hub_level_word, LT_LEVEL_OFF);
  atomic_store(&lt_hub_armed_open, 0);
  atomic_store(&the_hub, NULL);
  atomic_store(&captures, 0);
  atomic_store(&exiting, 0);
  atomic_fetch_add(&epoch, 1);
  pthread_mutex_init(&starting, NULL);
  if (atomic_load(&state) != FAILED) { // what could not be made was said already
    atomic_store(&state, NEW);
    atomic_fetch_or(&lt_ranges_word, LT_HUB_AWAITED);
  }
}

static void register_once(void) {
  static bool done;
  if (done)
    return;
  done = true;
  pthread_atfork(NULL, NULL, in_child);
  atexit(lt_hub_stop);
  have_key = pthread_key_create(&thread_key, thread_ends) == 0;
}

static lt_hub *make(const lt_driver *drv, lt_error *err) {
  lt_hub *h = calloc(1, sizeof *h);
  if (h == NULL) {
    snprintf(err->text, sizeof err->text, "no memory");
    return NULL;
  }
  h->drv = *drv;
  h->epoch = (uint8_t)(atomic_load(&epoch) & 0x7f);
  if (lt_config_from_env(&h->config, getenv, err) != 0) {
    free(h);
    return NULL;
  }
  lt_overhead_init(&h->over, h->config.kernel_every, h->config.kernel_budget, h->config.lane_budget);
  pthread_mutex_init(&h->mu, NULL);
  pthread_mutex_init(&h->names_mu, NULL);
  const lt_ring_options o = {.producer = "lanetrace-agent " LT_VERSION};
  h->ring = lt_ring_create(&h->config, &o, err);
  if (h->ring == NULL) {
    free(h);
    return NULL;
  }
  return h;
}

int lt_hub_start(const lt_driver *drv) {
  int s = atomic_load(&state);
  if (s == NEW) {
    const int cancel = lt_cancel_off();
    pthread_mutex_lock(&starting);
    s = atomic_load(&state);
    if (s == NEW) {
      register_once();
      lt_error err = {""};
      lt_hub *h = make(drv, &err);
      if (h != NULL && make_thread(h) != 0) {
        snprintf(err.text, sizeof err.text, "no thread could be made");
        lt_error ignored;
        lt_ring_remove(h->ring, &ignored);
        free(h);
        h = NULL;
      }
      if (h == NULL) {
        lt_say("telemetry is off: %s", err.text);
      } else {
        atomic_store(&the_hub, h);
        atomic_store(&lt_hub_level_word, (uint32_t)h->config.level);
        lt_ring_set_level(h->ring, h->config.level);
        lt_publish_arming(h);
      }
      s = h != NULL ? RUNNING : FAILED;
      atomic_store(&state, s);
      lt_hub_never();
    }
    pthread_mutex_unlock(&starting);
    lt_cancel_back(cancel);
  }
  return s == RUNNING ? 0 : -1;
}

// lock_soon locks a mutex that its holder should give back soon.
static bool lock_soon(pthread_mutex_t *mu, int64_t end) {
  while (pthread_mutex_trylock(mu) != 0) {
    if (lt_mono_ns() >= end)
      return false;
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  }
  return true;
}

void lt_hub_stop(void) {
  lt_hub *h = atomic_exchange(&the_hub, NULL);
  if (h == NULL)
    return;
  const int cancel = lt_cancel_off();
  atomic_store(&exiting, 1);
  atomic_store(&state, STOPPED);
  atomic_store(&lt_hub_level_word, LT_LEVEL_OFF);
  atomic_store(&lt_hub_armed_open, 0);
  atomic_store(&h->stop, 1);
  atomic_fetch_add(&h->wake, 1);
  syscall(SYS_futex, &h->wake, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  const int64_t end = lt_mono_ns() + LT_STOP_WAIT_MS * LT_MS;
  while (atomic_load(&h->busy) && lt_mono_ns() < end)
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  for (int i = 0; i < atomic_load(&h->contexts); i++)
    if (lock_soon(&h->context[i]->mu, end)) {
      lt_context_shut(h->context[i], false);
      pthread_mutex_unlock(&h->context[i]->mu);
    }
  lt_error err;
  if (lt_ring_close(h->ring, &err) != 0)
    lt_say("%s", err.text);
  lt_cancel_back(cancel);
}

// Level and arming ---------------------------------------------------------------------------------

static uint32_t lane_stride(const lt_hub *h) { return lt_hub_level() >= LT_LEVEL_LANE ? lt_overhead_lane_stride(&h->over) : 0; }

void lt_publish_arming(lt_hub *h) {
  const uint32_t every = lt_hub_level() >= LT_LEVEL_KERNEL ? lt_overhead_kernel_stride(&h->over) : 0;
  lt_ring_set_arming(h->ring, every, lt_overhead_asked(&h->over));
  const uint32_t lanes = lane_stride(h);
  atomic_store(&h->over.lanes.published, lanes);
  lt_ring_set_lanes(h->ring, lanes);
}

void lt_publish_lanes(lt_hub *h) {
  const uint32_t lanes = lane_stride(h);
  if (atomic_exchange(&h->over.lanes.published, lanes) != lanes)
    lt_ring_set_lanes(h->ring, lanes);
}

static void ensure_pool(lt_context *c) {
  pthread_mutex_lock(&c->mu);
  lt_pool_ensure(c, CAPTURE_WAIT_MS * LT_MS);
  pthread_mutex_unlock(&c->mu);
}

void lt_hub_set_level(int level) {
  lt_hub *h = lt_the_hub();
  if (h == NULL || level < LT_LEVEL_OFF || level > LT_LEVEL_KERNEL)
    return;
  pthread_mutex_lock(&h->mu);
  if (!lt_exiting()) {
    if (level >= LT_LEVEL_LANE)
      for (int i = 0; i < atomic_load(&h->contexts); i++)
        if (atomic_load(&h->context[i]->cu) != NULL)
          ensure_pool(h->context[i]);
    atomic_store(&lt_hub_level_word, (uint32_t)level);
    lt_ring_set_level(h->ring, level);
    lt_publish_arming(h);
    for (int i = 0; i < h->level_calls; i++)
      h->on_level[i].f(level, h->on_level[i].user);
  }
  pthread_mutex_unlock(&h->mu);
}

int lt_hub_on_level(void (*f)(int level, void *user), void *user) {
  lt_hub *h = lt_the_hub();
  if (h == NULL)
    return -1;
  pthread_mutex_lock(&h->mu);
  const int room = h->level_calls < LT_LEVEL_CALLS;
  if (room) {
    h->on_level[h->level_calls].f = f;
    h->on_level[h->level_calls++].user = user;
    f(lt_hub_level(), user);
  }
  pthread_mutex_unlock(&h->mu);
  return room ? 0 : -1;
}

void lt_hub_arm(uint32_t n) {
  lt_hub *h = lt_the_hub();
  if (h == NULL)
    return;
  atomic_fetch_add(&h->over.arms.asked, (int64_t)n);
  lt_publish_arming(h);
}

void lt_hub_harvest(void) {
  lt_hub *h = lt_the_hub();
  for (int i = 0; h != NULL && i < atomic_load(&h->contexts); i++) {
    lt_harvest_stats s = {0};
    pthread_mutex_lock(&h->context[i]->mu);
    lt_harvest(h->context[i], &s);
    pthread_mutex_unlock(&h->context[i]->mu);
  }
}

// Contexts ---------------------------------------------------------------------------------------------

static lt_context *find(lt_hub *h, void *cu) {
  const int n = atomic_load_explicit(&h->contexts, memory_order_acquire);
  for (int i = 0; i < n; i++)
    if (atomic_load_explicit(&h->context[i]->cu, memory_order_acquire) == cu)
      return h->context[i];
  return NULL;
}

lt_context *lt_current_context(lt_hub *h) {
  void *cu = NULL;
  if (lt_exiting())
    return NULL;
  lt_ring_add(h->ring, LT_CTR_DRIVER_CALLS, 1);
  return h->drv.cuCtxGetCurrent(&cu) == 0 && cu != NULL ? find(h, cu) : NULL;
}

int lt_context_index(void *ctx) {
  lt_hub *h = lt_the_hub();
  if (h == NULL)
    return -1;
  lt_context *c = ctx != NULL ? find(h, ctx) : lt_current_context(h);
  return c != NULL ? c->index : -1;
}

typedef struct device {
  char name[128];
  uint8_t uuid[16];
  bool mig;
  int ordinal, capability;
} device;

// describe asks which device the calling thread's context is on.
static lt_result describe(const lt_driver *d, device *out) {
  enum { ATTR_MAJOR = 75, ATTR_MINOR = 76 };
  memset(out, 0, sizeof *out);
  int dev = 0, major = 0, minor = 0;
  lt_result r = d->cuCtxGetDevice(&dev);
  if (r == 0)
    r = d->cuDeviceGetName(out->name, (int)sizeof out->name, dev);
  if (r == 0)
    r = d->cuDeviceGetAttribute(&major, ATTR_MAJOR, dev);
  if (r == 0)
    r = d->cuDeviceGetAttribute(&minor, ATTR_MINOR, dev);
  if (r != 0)
    return r;
  out->name[sizeof out->name - 1] = '\0';
  out->ordinal = dev;
  out->capability = major * 10 + minor;
  // The later entry point gives a MIG instance's own identity, the earlier the whole
  // GPU's: where they differ, this is an instance.
  uint8_t whole[16];
  const bool have_whole = d->cuDeviceGetUuid != NULL && d->cuDeviceGetUuid(whole, dev) == 0;
  const bool have = d->cuDeviceGetUuid_v2 != NULL && d->cuDeviceGetUuid_v2(out->uuid, dev) == 0;
  if (have_whole && have)
    out->mig = memcmp(whole, out->uuid, sizeof whole) != 0;
  else if (have_whole)
    memcpy(out->uuid, whole, sizeof whole);
  return 0;
}

static lt_result describe_context(lt_hub *h, void *cu, device *out) {
  lt_context asked = {.hub = h, .bound = cu};
  lt_bound b;
  lt_result r = lt_bind_context(&asked, true, &b);
  if (r != 0)
    return r;
  r = describe(&h->drv, out);
  lt_unbind_context(&asked, &b);
  lt_ring_add(h->ring, LT_CTR_DRIVER_CALLS, (uint64_t)b.calls + 6);
  return r;
}

static lt_context *new_context(lt_hub *h, const device *d, lt_error *err) {
  const int n = atomic_load(&h->contexts);
  lt_context *c = n < LT_MAX_CONTEXTS ? aligned_alloc(64, sizeof *c) : NULL;
  if (c == NULL) {
    snprintf(err->text, sizeof err->text, n < LT_MAX_CONTEXTS ? "no memory" : "there are %d already", n);
    return NULL;
  }
  memset(c, 0, sizeof *c);
  c->hub = h;
  c->state.mig = d->mig;
  memcpy(c->state.uuid, d->uuid, sizeof d->uuid);
  c->state.device = d->ordinal;
  c->state.capability = (uint16_t)d->capability;
  if (lt_ring_new_context(h->ring, &c->state, h->config.pairs, &c->slots, err) != 0) {
    free(c);
    return NULL;
  }
  c->index = c->state.index;
  memcpy(c->name, d->name, sizeof d->name);
  pthread_mutex_init(&c->mu, NULL);
  lt_streams_init(&c->streams);
  h->context[n] = c;
  atomic_store(&h->contexts, n + 1);
  return c;
}

// again takes the place of a context of the same device that has ended.
static lt_context *again(lt_hub *h, const device *d) {
  for (int i = 0; i < atomic_load(&h->contexts); i++) {
    lt_context *c = h->context[i];
    if (atomic_load(&c->cu) != NULL || c->state.device != d->ordinal || memcmp(c->state.uuid, d->uuid, sizeof d->uuid) != 0)
      continue;
    const lt_context_state was = c->state;
    pthread_mutex_lock(&c->mu);
    c->state = (lt_context_state){
        .index = was.index,
        .mig = d->mig,
        .device = d->ordinal,
        .capability = (uint16_t)d->capability,
        .first_slot = was.first_slot,
        .slots = was.slots,
    };
    memcpy(c->state.uuid, d->uuid, sizeof d->uuid);
    memset(&c->clock, 0, sizeof c->clock);
    c->failed = c->closed = false;
    atomic_store(&c->wanted, 0);
    lt_ring_set_context(h->ring, &c->state);
    pthread_mutex_unlock(&c->mu);
    return c;
  }
  return NULL;
}

static bool refused(const lt_hub *h, const void *cu) {
  for (unsigned i = 0; i < h->refusals && i < LT_MAX_CONTEXTS; i++)
    if (h->refused[i] == cu)
      return true;
  return false;
}

static lt_context *open_locked(lt_hub *h, void *cu) {
  lt_context *c = find(h, cu);
  if (c != NULL || lt_exiting() || refused(h, cu))
    return c;
  device d;
  lt_error err = {""};
  const lt_result r = describe_context(h, cu, &d);
  if (r == LT_NOT_ASKED)
    return NULL;
  if (r != 0)
    snprintf(err.text, sizeof err.text, "its device cannot be had (driver result %d)", (int)r);
  else if ((c = again(h, &d)) == NULL)
    c = new_context(h, &d, &err);
  if (c == NULL) {
    h->refused[h->refusals++ % LT_MAX_CONTEXTS] = cu;
    lt_say_once(&h->said_context, "a GPU context is not timed: %s", err.text);
    return NULL;
  }
  c->bound = cu;
  c->next_sweep = lt_mono_ns() + LT_ABANDON_NS / LT_SWEEPS_PER_ABANDON;
  if (c->index == 0) {
    char text[41];
    lt_uuid_text(c->state.uuid, c->state.mig, text);
    lt_ring_set_gpu(h->ring, text, c->name);
  }
  if (lt_hub_level() >= LT_LEVEL_LANE)
    ensure_pool(c);
  atomic_store(&c->cu, cu);
  return c;
}

int lt_context_open(void *ctx) {
  lt_hub *h = lt_the_hub();
  if (h == NULL || ctx == NULL)
    return -1;
  lt_context *c = find(h, ctx);
  if (c == NULL) {
    const int cancel = lt_cancel_off();
    pthread_mutex_lock(&h->mu);
    c = open_locked(h, ctx);
    pthread_mutex_unlock(&h->mu);
    lt_cancel_back(cancel);
  }
  return c != NULL ? c->index : -1;
}

void lt_context_end(void *ctx) {
  lt_hub *h = lt_the_hub();
  if (h == NULL || ctx == NULL)
    return;
  const int cancel = lt_cancel_off();
  pthread_mutex_lock(&h->mu);
  lt_context *c = find(h, ctx);
  if (c != NULL) {
    atomic_store(&c->cu, NULL);
    pthread_mutex_lock(&c->mu);
    lt_context_shut(c, true);
    lt_streams_forget_all(c);
    pthread_mutex_unlock(&c->mu);
  }
  for (unsigned i = 0; i < LT_MAX_CONTEXTS; i++) // its address may come again
    if (h->refused[i] == ctx)
      h->refused[i] = NULL;
  pthread_mutex_unlock(&h->mu);
  lt_cancel_back(cancel);
}

void lt_stream_destroyed(void *stream) {
  lt_hub *h = lt_the_hub();
  if (h == NULL || stream == NULL || stream == LT_STREAM_LEGACY || stream == LT_STREAM_PER_THREAD)
    return;
  // Handles of streams that live are told apart across contexts too.
  for (int i = 0; i < atomic_load(&h->contexts); i++)
    lt_stream_forget(h->context[i], stream);
}
