// SPDX-License-Identifier: Apache-2.0
#include "agent.h"

#include <pthread.h>
#include <stdlib.h>

#include "interpose.h"
#include "say.h"

enum { NEW, RUNNING, OFF };

static _Atomic int state;
static _Atomic unsigned generation = 1;
static _Atomic(lt_ledger *) ledger;
static lt_driver driver;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static void exit_begins(void) {
  lt_ledger *l = atomic_exchange(&ledger, NULL);
  atomic_store(&state, OFF);
  lt_hub_never();
  lt_ledger_detach(l);
}

// A child has no context, and the driver refuses it one if its parent had any; if
// it gets one nevertheless it gets an agent of its own.
static void in_child(void) {
  pthread_mutex_init(&starting, NULL);
  atomic_store(&ledger, NULL);
  atomic_store(&state, NEW);
  atomic_fetch_add(&generation, 1);
}

__attribute__((constructor)) static void loaded(void) { pthread_atfork(NULL, NULL, in_child); }

static int begin(const lt_driver *found, const char *absent) {
  if (absent != NULL) {
    lt_say("off: this driver has no %s", absent);
    return OFF;
  }
  driver = *found;
  if (lt_hub_start(&driver) != 0)
    return OFF;
  lt_ledger *l = lt_ledger_new(0);
  if (l == NULL) {
    lt_say("no memory for the ledger of allocations: device memory is not tracked");
  } else {
    lt_ledger_attach(l, lt_hub_ring(), lt_hub_level() >= LT_LEVEL_BASIC);
    lt_hub_on_level(lt_ledger_level, l);
    atomic_store(&ledger, l);
  }
  // Behind the hub's own: what is registered last is called first, and the ledger
  // must stop writing before the ring is closed.
  static int registered; // a child of fork inherits the registration
  if (registered == 0) {
    registered = 1;
    atexit(exit_begins);
  }
  return RUNNING;
}

static bool start(void) {
  int s = atomic_load_explicit(&state, memory_order_acquire);
  if (s == NEW) {
    // Looked up without the lock: looking up waits for whoever is loading a library,
    // and that one's constructors may be waiting here.
    lt_driver found;
    const char *absent = lt_driver_resolve(&found, lt_driver_symbol, NULL);
    pthread_mutex_lock(&starting);
    s = atomic_load(&state);
    if (s == NEW) {
      s = begin(&found, absent);
      if (s == OFF)
        lt_hub_never();
      atomic_store(&state, s);
    }
    pthread_mutex_unlock(&starting);
  }
  return s == RUNNING;
}

static void *current(void) {
  // Before the start the driver table is empty.
  lt_result (*get)(void **) = NULL;
  if (atomic_load_explicit(&state, memory_order_acquire) == RUNNING) {
    get = driver.cuCtxGetCurrent;
  } else {
    void *p = lt_driver_symbol(NULL, "cuCtxGetCurrent");
    __builtin_memcpy(&get, &p, sizeof get);
  }
  void *c = NULL;
  if (get == NULL || get(&c) != LT_OK)
    return NULL;
  return c;
}

int lt_agent_context(void *context) {
  if (atomic_load_explicit(&state, memory_order_relaxed) == OFF)
    return -1;
  if (context == NULL)
    context = current();
  if (context == NULL || !start())
    return -1;
  int i = lt_context_index(context);
  return i >= 0 ? i : lt_context_open(context);
}

lt_ledger *lt_agent_ledger(void) { return atomic_load_explicit(&ledger, memory_order_acquire); }

const lt_driver *lt_agent_driver(void) {
  return atomic_load_explicit(&state, memory_order_acquire) == RUNNING ? &driver : NULL;
}

unsigned lt_agent_generation(void) { return atomic_load_explicit(&generation, memory_order_relaxed); }

bool lt_agent_exiting(void) { return atomic_load_explicit(&state, memory_order_acquire) == OFF; }
