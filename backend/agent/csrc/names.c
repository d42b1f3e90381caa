// SPDX-License-Identifier: Apache-2.0
#include "names.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "interpose.h"
#include "say.h"

// Tables of handles with open addressing. An entry is taken once, for one handle,
// and never moves; so readers need no lock. What is known of the handle changes
// under it. Names beyond a table's size are not known.
enum { FUNCTIONS = 1 << 15, GRAPHS = 1 << 13, PROBES = 64, NAME_MAX_BYTES = 4096 };

struct entry {
  _Atomic(void *) handle;
  // The name in the ring's table, as 32 bits, and above it the agent's generation
  // in which it was looked up; 0: not yet.
  _Atomic uint64_t name;
  // Under the lock:
  void *owner;
  char *text;
  uint64_t id; // a graph's number
  uint32_t nodes;
};

static struct entry functions[FUNCTIONS], graphs[GRAPHS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void in_child(void) { pthread_mutex_init(&lock, NULL); }
__attribute__((constructor)) static void loaded(void) { pthread_atfork(NULL, NULL, in_child); }

static uint32_t place(const void *handle, uint32_t size) {
  uint64_t h = (uint64_t)(uintptr_t)handle * 0x9e3779b97f4a7c15u;
  return (uint32_t)(h >> 40) & (size - 1);
}

static struct entry *find(struct entry *table, uint32_t size, void *handle) {
  uint32_t at = place(handle, size);
  for (int i = 0; i < PROBES; i++) {
    struct entry *e = &table[(at + (uint32_t)i) & (size - 1)];
    void *h = atomic_load_explicit(&e->handle, memory_order_acquire);
    if (h == handle)
      return e;
    if (h == NULL)
      return NULL;
  }
  return NULL;
}

// take finds the handle's entry or takes one. Under the lock.
static struct entry *take(struct entry *table, uint32_t size, void *handle) {
  uint32_t at = place(handle, size);
  for (int i = 0; i < PROBES; i++) {
    struct entry *e = &table[(at + (uint32_t)i) & (size - 1)];
    void *h = atomic_load_explicit(&e->handle, memory_order_relaxed);
    if (h == handle)
      return e;
    if (h == NULL) {
      atomic_store_explicit(&e->handle, handle, memory_order_release);
      return e;
    }
  }
  static _Atomic int said;
  lt_say_once(&said, "more functions or graphs than names are kept for: the names of some kernels are not known");
  return NULL;
}

static uint64_t stamp(uint32_t name) { return (uint64_t)lt_agent_generation() << 32 | name; }

static int known(const struct entry *e, uint32_t *name) {
  uint64_t v = atomic_load_explicit(&e->name, memory_order_acquire);
  *name = (uint32_t)v;
  return v != 0 && v >> 32 == lt_agent_generation();
}

// set gives an entry a text of its own. Under the lock.
static void set(struct entry *e, void *owner, const char *text) {
  if (e->text == NULL || strcmp(e->text, text) != 0) {
    char *copy = strndup(text, NAME_MAX_BYTES);
    free(e->text);
    e->text = copy;
    atomic_store_explicit(&e->name, 0, memory_order_release);
  }
  e->owner = owner;
}

void lt_function_learn(void *function, void *owner, const char *name) {
  if (function == NULL || name == NULL)
    return;
  pthread_mutex_lock(&lock);
  struct entry *e = take(functions, FUNCTIONS, function);
  if (e != NULL)
    set(e, owner, name);
  pthread_mutex_unlock(&lock);
}

void lt_function_same(void *function, void *kernel) {
  if (function == NULL || function == kernel)
    return;
  pthread_mutex_lock(&lock);
  struct entry *k = find(functions, FUNCTIONS, kernel);
  if (k != NULL && k->text != NULL) {
    struct entry *e = take(functions, FUNCTIONS, function);
    if (e != NULL)
      set(e, k->owner, k->text);
  }
  pthread_mutex_unlock(&lock);
}

void lt_functions_forget(void *owner) {
  pthread_mutex_lock(&lock);
  for (uint32_t i = 0; i < FUNCTIONS; i++) {
    struct entry *e = &functions[i];
    if (atomic_load_explicit(&e->handle, memory_order_relaxed) == NULL || (e->owner != owner && e->owner != NULL))
      continue;
    free(e->text);
    e->text = NULL;
    e->owner = NULL;
    atomic_store_explicit(&e->name, 0, memory_order_release);
  }
  pthread_mutex_unlock(&lock);
}

typedef int (*name_fn)(const char **name, void *handle);

static const char *ask(const char *how, void *handle) {
  void *p = lt_driver_symbol(NULL, how);
  name_fn get;
  memcpy(&get, &p, sizeof get);
  const char *text = NULL;
  return get != NULL && get(&text, handle) == LT_OK ? text : NULL;
}

uint32_t lt_function_name(void *function) {
  uint32_t name = 0;
  if (!lt_timing())
    return 0;
  struct entry *e = find(functions, FUNCTIONS, function);
  if (e != NULL && known(e, &name))
    return name;
  lt_ring *ring = lt_hub_ring();
  // Asked without the lock: the driver has locks of its own.
  const char *text = NULL;
  pthread_mutex_lock(&lock);
  int learnt = e != NULL && e->text != NULL;
  pthread_mutex_unlock(&lock);
  if (!learnt && (text = ask("cuFuncGetName", function)) == NULL)
    text = ask("cuKernelGetName", function);
  pthread_mutex_lock(&lock);
  e = take(functions, FUNCTIONS, function);
  if (e != NULL) {
    if (e->text == NULL && text != NULL)
      set(e, NULL, text);
    name = e->text != NULL ? lt_ring_name_z(ring, LT_NAME_KERNEL, e->text) : 0;
    atomic_store_explicit(&e->name, stamp(name), memory_order_release);
  }
  pthread_mutex_unlock(&lock);
  return name;
}

typedef int (*nodes_fn)(void *graph, void **nodes, size_t *n);

void lt_graph_made(void *exec, void *graph) {
  static uint64_t last;
  if (exec == NULL)
    return;
  void *p = lt_driver_symbol(NULL, "cuGraphGetNodes");
  nodes_fn get;
  memcpy(&get, &p, sizeof get);
  size_t n = 0;
  if (get == NULL || get(graph, NULL, &n) != LT_OK)
    n = 0;
  pthread_mutex_lock(&lock);
  struct entry *e = take(graphs, GRAPHS, exec);
  if (e != NULL) {
    e->id = ++last;
    e->nodes = n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
    atomic_store_explicit(&e->name, 0, memory_order_release);
  }
  pthread_mutex_unlock(&lock);
}

void lt_graph_gone(void *exec) {
  pthread_mutex_lock(&lock);
  struct entry *e = find(graphs, GRAPHS, exec);
  if (e != NULL) {
    e->id = 0;
    atomic_store_explicit(&e->name, 0, memory_order_release);
  }
  pthread_mutex_unlock(&lock);
}

uint32_t lt_graph_name(void *exec) {
  uint32_t name = 0;
  if (!lt_timing())
    return 0;
  struct entry *e = find(graphs, GRAPHS, exec);
  if (e == NULL || known(e, &name))
    return name;
  pthread_mutex_lock(&lock);
  if (e->id != 0) {
    name = lt_ring_graph_name(lt_hub_ring(), e->id, e->nodes, "", 0);
    atomic_store_explicit(&e->name, stamp(name), memory_order_release);
  }
  pthread_mutex_unlock(&lock);
  return name;
}
