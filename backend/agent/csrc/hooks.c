// SPDX-License-Identifier: Apache-2.0
//
// What the agent does around the driver's calls. Every hook makes exactly the call
// that the program made, with the program's arguments and result; before and after
// it there may be event records, counting and look-ups. At level off a launch costs
// one load.
#include "hooks.h"

#include <string.h>

#include "agent.h"
#include "interpose.h"
#include "names.h"
#include "site.h"
#include "steps.h"

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define SLOW static __attribute__((noinline))

enum { SYMBOL_MISSING = 302, ILLEGAL_STATE = 401, WRONG_THREAD = 908, OUT_OF_MEMORY = 2 };

#define FN(kind) typedef int (*fn_##kind)(LT_P_##kind);
LT_KINDS(FN)
#undef FN

// The default streams have one handle each here, though programs have two for either.
INLINE void *named(void *stream, bool per_thread) {
  if (stream == NULL && per_thread)
    return LT_STREAM_PER_THREAD;
  return stream == LT_STREAM_LEGACY ? NULL : stream;
}

// Launches ----------------------------------------------------------------------------

// Kernels launched with a programmatic dependency overlap the one before them; an
// event between would end that.
static bool programmatic(const struct lt_launch_config *c) {
  for (unsigned i = 0; c->attrs != NULL && i < c->attr_count; i++)
    if ((c->attrs[i].id == LT_ATTR_PROGRAMMATIC_SERIALIZATION && c->attrs[i].value.i != 0) ||
        c->attrs[i].id == LT_ATTR_PROGRAMMATIC_EVENT)
      return true;
  return false;
}

#define TIMED(kind, the_stream, name, call)                                    \
  do {                                                                         \
    lt_launch l;                                                               \
    if (lt_timing() && lt_launch_begin(&l, kind, the_stream, name, own)) {     \
      int r = call;                                                            \
      lt_launch_end(&l, r);                                                    \
      return r;                                                                \
    }                                                                          \
    return call;                                                               \
  } while (0)

SLOW int slow_launch(fn_launch real, bool per_thread, LT_P_launch) {
  void *s = named(stream, per_thread);
  lt_step own = lt_steps_launch(s);
  TIMED(LT_LAUNCH_KERNEL, s, lt_function_name(f), real(LT_A_launch));
}

SLOW int slow_launch_ex(fn_launch_ex real, bool per_thread, LT_P_launch_ex) {
  if (config == NULL)
    return real(LT_A_launch_ex);
  void *s = named(config->stream, per_thread);
  lt_step own = lt_steps_launch(s);
  if (lt_timing() && programmatic(config)) {
    lt_steps_overlapping();
    lt_launch_untimed(s);
    return real(LT_A_launch_ex);
  }
  TIMED(LT_LAUNCH_KERNEL, s, lt_function_name(f), real(LT_A_launch_ex));
}

SLOW int slow_launch_coop(fn_launch_coop real, bool per_thread, LT_P_launch_coop) {
  void *s = named(stream, per_thread);
  lt_step own = lt_steps_launch(s);
  TIMED(LT_LAUNCH_KERNEL, s, lt_function_name(f), real(LT_A_launch_coop));
}

static int timed_graph(fn_graph_launch real, void *exec, void *stream, void *s, lt_step own) {
  TIMED(LT_LAUNCH_GRAPH, s, lt_graph_name(exec), real(exec, stream));
}

SLOW int slow_graph_launch(fn_graph_launch real, bool per_thread, LT_P_graph_launch) {
  void *s = named(stream, per_thread);
  lt_stand_in in;
  lt_step own = lt_steps_graph_begin(&in, s);
  int r = timed_graph(real, exec, stream, s, own);
  lt_steps_graph_end(&in);
  return r;
}

#define ON_LAUNCH(kind)                                              \
  INLINE int hook_##kind(fn_##kind real, bool per_thread, LT_P_##kind) { \
    if (lt_hub_level() == LT_LEVEL_OFF)                              \
      return real(LT_A_##kind);                                      \
    return slow_##kind(real, per_thread, LT_A_##kind);               \
  }
ON_LAUNCH(launch)
ON_LAUNCH(launch_ex)
ON_LAUNCH(launch_coop)
ON_LAUNCH(graph_launch)

// One launch on several devices and streams has no one place for a pair.
INLINE int hook_launch_multi(fn_launch_multi real, bool per_thread, LT_P_launch_multi) {
  (void)per_thread;
  return real(LT_A_launch_multi);
}

// Graphs and captures --------------------------------------------------------------------

#define ON_INSTANTIATE(kind)                                     \
  SLOW int hook_##kind(fn_##kind real, bool per_thread, LT_P_##kind) { \
    (void)per_thread;                                            \
    int r = real(LT_A_##kind);                                   \
    if (r == LT_OK && exec != NULL)                              \
      lt_graph_made(*exec, graph);                               \
    return r;                                                    \
  }
ON_INSTANTIATE(graph_flags)
ON_INSTANTIATE(graph_log)
ON_INSTANTIATE(graph_params)

SLOW int hook_graph_destroy(fn_graph_destroy real, bool per_thread, LT_P_graph_destroy) {
  (void)per_thread;
  // Forgotten first: the handle may come again before we are back.
  lt_graph_gone(exec);
  return real(LT_A_graph_destroy);
}

static _Atomic int capturing;

#define ON_CAPTURE(kind)                                         \
  SLOW int hook_##kind(fn_##kind real, bool per_thread, LT_P_##kind) { \
    (void)per_thread;                                            \
    lt_capture_begun();                                          \
    atomic_fetch_add(&capturing, 1);                             \
    int r = real(LT_A_##kind);                                   \
    if (r != LT_OK) {                                            \
      atomic_fetch_sub(&capturing, 1);                           \
      lt_capture_ended();                                        \
    }                                                            \
    return r;                                                    \
  }
ON_CAPTURE(capture_plain)
ON_CAPTURE(capture_begin)
ON_CAPTURE(capture_graph)

SLOW int hook_capture_end(fn_capture_end real, bool per_thread, LT_P_capture_end) {
  (void)per_thread;
  int r = real(LT_A_capture_end);
  // These leave a capture as it was, or there was none.
  if (r == LT_INVALID_VALUE || r == ILLEGAL_STATE || r == WRONG_THREAD)
    return r;
  int n = atomic_load(&capturing);
  while (n > 0 && !atomic_compare_exchange_weak(&capturing, &n, n - 1)) {
  }
  if (n > 0)
    lt_capture_ended();
  return r;
}

// Memory ----------------------------------------------------------------------------------

static void allocated(int r, unsigned kind, enum lt_mem_source source, const uint64_t *p, uint64_t bytes) {
  int context = lt_agent_context(NULL);
  lt_ledger *l = lt_agent_ledger();
  if (l == NULL)
    return;
  if (r == LT_OK && p != NULL)
    lt_mem_alloc(l, context, kind, source, *p, bytes, lt_site());
  else if (r == OUT_OF_MEMORY)
    lt_mem_alloc_failed(l);
}

SLOW int hook_mem_alloc(fn_mem_alloc real, bool per_thread, LT_P_mem_alloc) {
  (void)per_thread;
  int r = real(LT_A_mem_alloc);
  allocated(r, LT_ALLOC_DEVICE, LT_MEM_PLAIN, p, n);
  return r;
}

SLOW int hook_mem_managed(fn_mem_managed real, bool per_thread, LT_P_mem_managed) {
  (void)per_thread;
  int r = real(LT_A_mem_managed);
  allocated(r, LT_ALLOC_MANAGED, LT_MEM_PLAIN, p, n);
  return r;
}

SLOW int hook_mem_pitch(fn_mem_pitch real, bool per_thread, LT_P_mem_pitch) {
  (void)per_thread;
  int r = real(LT_A_mem_pitch);
  allocated(r, LT_ALLOC_DEVICE, LT_MEM_PLAIN, p, r == LT_OK && pitch != NULL ? (uint64_t)*pitch * height : 0);
  return r;
}

// An allocation in a capture is a node: its memory is the graph's.
static bool in_capture(void *stream) {
  const lt_driver *d = lt_agent_driver();
  int status = 0;
  return atomic_load_explicit(&capturing, memory_order_relaxed) > 0 && d != NULL &&
         (d->cuStreamIsCapturing(stream, &status) != LT_OK || status != 0);
}

SLOW int hook_mem_async(fn_mem_async real, bool per_thread, LT_P_mem_async) {
  bool node = in_capture(named(stream, per_thread));
  int r = real(LT_A_mem_async);
  if (!node)
    allocated(r, LT_ALLOC_DEVICE, LT_MEM_POOL, p, n);
  return r;
}

SLOW int hook_mem_pool(fn_mem_pool real, bool per_thread, LT_P_mem_pool) {
  bool node = in_capture(named(stream, per_thread));
  int r = real(LT_A_mem_pool);
  if (!node)
    allocated(r, LT_ALLOC_DEVICE, LT_MEM_POOL, p, n);
  return r;
}

SLOW int hook_mem_free(fn_mem_free real, bool per_thread, LT_P_mem_free) {
  (void)per_thread;
  lt_mem_taken t;
  lt_ledger *l = lt_agent_ledger();
  if (l == NULL)
    return real(LT_A_mem_free);
  lt_mem_take(l, p, &t);
  int r = real(LT_A_mem_free);
  lt_mem_freed(l, &t, r != LT_OK);
  return r;
}

SLOW int hook_mem_free_async(fn_mem_free_async real, bool per_thread, LT_P_mem_free_async) {
  lt_mem_taken t;
  lt_ledger *l = lt_agent_ledger();
  if (l == NULL || in_capture(named(stream, per_thread)))
    return real(LT_A_mem_free_async);
  lt_mem_take(l, p, &t);
  int r = real(LT_A_mem_free_async);
  lt_mem_freed(l, &t, r != LT_OK);
  return r;
}

SLOW int hook_vm_create(fn_vm_create real, bool per_thread, LT_P_vm_create) {
  (void)per_thread;
  int r = real(LT_A_vm_create);
  int context = lt_agent_context(NULL);
  lt_ledger *l = lt_agent_ledger();
  if (l == NULL)
    return r;
  // prop: type, handle types, then the location's type (1 is a device) and number.
  if (r == LT_OK && handle != NULL)
    lt_vm_create(l, context, *handle, prop != NULL && prop[2] == 1 ? size : 0, lt_site());
  else if (r == OUT_OF_MEMORY)
    lt_mem_alloc_failed(l);
  return r;
}

SLOW int hook_vm_import(fn_vm_import real, bool per_thread, LT_P_vm_import) {
  (void)per_thread;
  int r = real(LT_A_vm_import);
  // Another process's memory: known, but not ours to count.
  if (r == LT_OK && handle != NULL)
    lt_vm_create(lt_agent_ledger(), 0, *handle, 0, 0);
  return r;
}

SLOW int hook_vm_retain(fn_vm_retain real, bool per_thread, LT_P_vm_retain) {
  (void)per_thread;
  int r = real(LT_A_vm_retain);
  if (r == LT_OK && handle != NULL)
    lt_vm_retain(lt_agent_ledger(), (uint64_t)(uintptr_t)address, *handle);
  return r;
}

SLOW int hook_vm_release(fn_vm_release real, bool per_thread, LT_P_vm_release) {
  (void)per_thread;
  lt_vm_taken t;
  lt_ledger *l = lt_agent_ledger();
  if (l == NULL)
    return real(LT_A_vm_release);
  lt_vm_release_begin(l, handle, &t);
  int r = real(LT_A_vm_release);
  lt_vm_release_done(l, &t, r != LT_OK);
  return r;
}

SLOW int hook_vm_map(fn_vm_map real, bool per_thread, LT_P_vm_map) {
  (void)per_thread;
  int r = real(LT_A_vm_map);
  if (r == LT_OK)
    lt_vm_map(lt_agent_ledger(), p, size, handle);
  return r;
}

SLOW int hook_vm_unmap(fn_vm_unmap real, bool per_thread, LT_P_vm_unmap) {
  (void)per_thread;
  lt_vm_taken t;
  lt_ledger *l = lt_agent_ledger();
  if (l == NULL)
    return real(LT_A_vm_unmap);
  lt_vm_unmap_begin(l, p, size, &t);
  int r = real(LT_A_vm_unmap);
  lt_vm_unmap_done(l, &t, r != LT_OK);
  return r;
}

// Names --------------------------------------------------------------------------------------

SLOW int hook_module_function(fn_module_function real, bool per_thread, LT_P_module_function) {
  (void)per_thread;
  int r = real(LT_A_module_function);
  if (r == LT_OK && f != NULL)
    lt_function_learn(*f, module, name);
  return r;
}

SLOW int hook_library_kernel(fn_library_kernel real, bool per_thread, LT_P_library_kernel) {
  (void)per_thread;
  int r = real(LT_A_library_kernel);
  if (r == LT_OK && kernel != NULL)
    lt_function_learn(*kernel, library, name);
  return r;
}

SLOW int hook_kernel_function(fn_kernel_function real, bool per_thread, LT_P_kernel_function) {
  (void)per_thread;
  int r = real(LT_A_kernel_function);
  if (r == LT_OK && f != NULL)
    lt_function_same(*f, kernel);
  return r;
}

SLOW int hook_unload(fn_unload real, bool per_thread, LT_P_unload) {
  (void)per_thread;
  if (!lt_agent_exiting()) // then nobody will ask for a name, and programs unload much
    lt_functions_forget(module);
  return real(LT_A_unload);
}

// Contexts and streams ---------------------------------------------------------------------------

#define ON_CONTEXT(kind)                                         \
  SLOW int hook_##kind(fn_##kind real, bool per_thread, LT_P_##kind) { \
    (void)per_thread;                                            \
    int r = real(LT_A_##kind);                                   \
    if (r == LT_OK && context != NULL)                           \
      lt_agent_context(*context);                                \
    return r;                                                    \
  }
ON_CONTEXT(context_v2)
ON_CONTEXT(context_v3)
ON_CONTEXT(context_v4)

// ending takes a context that may go out of telemetry; ended puts the ledger right
// when it is gone, or takes it in again when it is not.
static int ending(void *context) {
  if (lt_agent_exiting() || lt_agent_driver() == NULL)
    return -1;
  int index = lt_context_index(context);
  lt_context_end(context);
  return index;
}

static void ended(void *context, int index, bool gone) {
  if (index < 0)
    return;
  if (gone)
    lt_mem_context_end(lt_agent_ledger(), index);
  else
    lt_context_open(context);
}

SLOW int hook_context_destroy(fn_context_destroy real, bool per_thread, LT_P_context_destroy) {
  (void)per_thread;
  int index = context != NULL ? ending(context) : -1;
  int r = real(LT_A_context_destroy);
  ended(context, index, r == LT_OK);
  return r;
}

// Primary contexts are counted: only the last release destroys one.
enum { DEVICES = 64 };
static struct {
  _Atomic(void *) context;
  _Atomic int retained;
} primaries[DEVICES];

SLOW int hook_primary_retain(fn_primary_retain real, bool per_thread, LT_P_primary_retain) {
  (void)per_thread;
  int r = real(LT_A_primary_retain);
  if (r == LT_OK && context != NULL) {
    if (device >= 0 && device < DEVICES) {
      atomic_store(&primaries[device].context, *context);
      atomic_fetch_add(&primaries[device].retained, 1);
    }
    lt_agent_context(*context);
  }
  return r;
}

static bool active(int device) {
  int (*state)(int, unsigned *, int *);
  void *p = lt_driver_symbol(NULL, "cuDevicePrimaryCtxGetState");
  memcpy(&state, &p, sizeof state);
  unsigned flags;
  int on = 0;
  return state != NULL && state(device, &flags, &on) == LT_OK && on != 0;
}

SLOW int hook_primary_release(fn_primary_release real, bool per_thread, LT_P_primary_release) {
  (void)per_thread;
  if (device < 0 || device >= DEVICES)
    return real(LT_A_primary_release);
  void *context = atomic_load(&primaries[device].context);
  bool last = context != NULL && atomic_load(&primaries[device].retained) <= 1;
  int index = last ? ending(context) : -1;
  int r = real(LT_A_primary_release);
  if (r == LT_OK)
    atomic_fetch_sub(&primaries[device].retained, 1);
  ended(context, index, r == LT_OK && !active(device));
  return r;
}

SLOW int hook_primary_reset(fn_primary_reset real, bool per_thread, LT_P_primary_reset) {
  (void)per_thread;
  if (device < 0 || device >= DEVICES)
    return real(LT_A_primary_reset);
  void *context = atomic_load(&primaries[device].context);
  int index = context != NULL ? ending(context) : -1;
  int r = real(LT_A_primary_reset);
  if (r == LT_OK) // whoever had it has it no more
    atomic_store(&primaries[device].retained, 0);
  ended(context, index, r == LT_OK);
  return r;
}

SLOW int hook_stream_destroy(fn_stream_destroy real, bool per_thread, LT_P_stream_destroy) {
  (void)per_thread;
  if (stream != NULL)
    lt_stream_destroyed(stream);
  return real(LT_A_stream_destroy);
}

// Look-ups ---------------------------------------------------------------------------------------------

enum { PER_THREAD_FLAG = 2 };

SLOW int hook_proc(fn_proc real, bool per_thread, LT_P_proc) {
  (void)per_thread;
  int r = real(LT_A_proc);
  if (r != LT_OK || name == NULL || f == NULL || *f == NULL)
    return r;
  void *newest = NULL;
  if (lt_proc_is_later(name, version) && real(name, &newest, LT_KNOWN_CUDA, flags) != LT_OK)
    newest = &newest; // equals nothing
  *f = lt_wrap_proc(name, version, flags & PER_THREAD_FLAG, *f, newest);
  return r;
}

SLOW int hook_proc_v2(fn_proc_v2 real, bool per_thread, LT_P_proc_v2) {
  (void)per_thread;
  int r = real(LT_A_proc_v2);
  if (r != LT_OK || name == NULL || f == NULL || *f == NULL)
    return r;
  void *newest = NULL;
  int ignored;
  if (lt_proc_is_later(name, version) && real(name, &newest, LT_KNOWN_CUDA, flags, &ignored) != LT_OK)
    newest = &newest;
  *f = lt_wrap_proc(name, version, flags & PER_THREAD_FLAG, *f, newest);
  return r;
}

// Trampolines --------------------------------------------------------------------------------------------

// The driver has two addresses for most names; the rest is for drivers loaded again,
// other interposers' functions, and variants to come.
#define EIGHT(X, kind) X(kind, 0) X(kind, 1) X(kind, 2) X(kind, 3) X(kind, 4) X(kind, 5) X(kind, 6) X(kind, 7)

#define TRAMPOLINE(kind, i)                                                                \
  static int trampoline_##kind##_##i(LT_P_##kind) {                                        \
    struct lt_slot_of *s = &slots_##kind[i];                                               \
    void *real_ = atomic_load_explicit(&s->real, memory_order_relaxed);                    \
    return hook_##kind((fn_##kind)real_, s->per_thread, LT_A_##kind);                          \
  }
#define ENTRY(kind, i) (void *)trampoline_##kind##_##i,
#define KIND(kind)                                                                         \
  static struct lt_slot_of slots_##kind[8];                                                \
  EIGHT(TRAMPOLINE, kind)                                                                  \
  static void *const entries_##kind[8] = {EIGHT(ENTRY, kind)};                             \
  static const struct lt_kind kind_##kind = {#kind, slots_##kind, entries_##kind, 8};
// A function pointer in a void *, which dlsym's interface implies.
#pragma GCC diagnostic ignored "-Wpedantic"
LT_KINDS(KIND)

#define EXPORTED(kind, symbol, pt)                                                         \
  EXPORT int symbol(LT_P_##kind);                                                          \
  EXPORT int symbol(LT_P_##kind) {                                                         \
    static struct lt_slot_of own = {.per_thread = pt};                                     \
    void *real_ = atomic_load_explicit(&own.real, memory_order_relaxed);                   \
    if (__builtin_expect(real_ == NULL, 0) && (real_ = lt_next(#symbol, &own)) == NULL)    \
      return SYMBOL_MISSING;                                                               \
    return hook_##kind((fn_##kind)real_, pt, LT_A_##kind);                                     \
  }
#define S(kind, symbol, base, since) EXPORTED(kind, symbol, false)
#define T(kind, symbol, base, since) EXPORTED(kind, symbol, false) EXPORTED(kind, symbol##_ptsz, true)
#define O(symbol, base, since)
#define A(kind, base, since)
LT_SYMBOLS(S, T, O, A)
#undef S
#undef T
#undef O
#undef A

#define S(kind, symbol, base, since) {#symbol, #base, since, false, &kind_##kind, (void *)symbol},
#define T(kind, symbol, base, since)                                  \
  {#symbol, #base, since, false, &kind_##kind, (void *)symbol},       \
      {#symbol "_ptsz", #base, since, true, &kind_##kind, (void *)symbol##_ptsz},
#define O(symbol, base, since) {#symbol, #base, since, false, NULL, NULL},
#define A(kind, base, since) {"", #base, since, false, &kind_##kind, NULL},
const struct lt_symbol lt_symbols[] = {LT_SYMBOLS(S, T, O, A)};
const unsigned lt_symbol_count = sizeof lt_symbols / sizeof lt_symbols[0];
