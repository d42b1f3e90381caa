// SPDX-License-Identifier: Apache-2.0
//
// How the agent gets between a program and the driver.
//
// A program reaches the driver in three ways: it is linked with libcuda (then the
// dynamic loader finds the functions of this library first, for it was preloaded),
// it asks dlsym, or it asks cuGetProcAddress. All three are answered with a
// function of ours that knows one real address and calls it: a trampoline. Each
// address handed out has a trampoline of its own, so that variants of one name
// (legacy and per-thread default stream, versions) are never merged. They are
// compiled, a fixed number for each kind of call; no code is made at run time, and
// when a kind has none left the program gets the driver's own address (said once).
//
// Names that are not hooked, and look-ups in other libraries, are answered by the
// real dlsym as if nobody had been there: it is entered by a jump, so it sees its
// caller, on whom RTLD_NEXT and RTLD_DEFAULT depend.
#ifndef LANETRACE_AGENT_INTERPOSE_H
#define LANETRACE_AGENT_INTERPOSE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

// A real address and what is known of it. A slot that belongs to an exported
// function is filled at its first call.
struct lt_slot_of {
  _Atomic(void *) real;
  bool per_thread; // its NULL stream is the per-thread default stream
};

// A kind of call: its trampolines, in the order of their slots.
struct lt_kind {
  const char *name;
  struct lt_slot_of *slots;
  void *const *entries;
  unsigned count;
};

// A name of the driver's that is hooked.
struct lt_symbol {
  const char *name; // as exported
  const char *base; // as cuGetProcAddress is asked
  int since;        // the CUDA version from which cuGetProcAddress means this one
  bool per_thread;
  const struct lt_kind *kind; // NULL: a variant too old to be hooked
  void *own;                  // our exported function
};

extern const struct lt_symbol lt_symbols[];
extern const unsigned lt_symbol_count;

// The latest CUDA version whose variants the table knows.
#ifndef LT_KNOWN_CUDA
#define LT_KNOWN_CUDA 13000
#endif

// lt_wrap is the trampoline of an address; the address itself when it is one of
// ours already, or none is left. Takes a lock; not for hot paths.
void *lt_wrap(const struct lt_kind *kind, void *real, bool per_thread);

// lt_wrap_proc is lt_wrap for what cuGetProcAddress handed out under a base name.
// newest is what the same question gives at LT_KNOWN_CUDA, asked only of programs
// that want more; NULL: not asked.
void *lt_wrap_proc(const char *base, int version, bool per_thread, void *real, void *newest);

// lt_proc_is_later: this question may mean a variant that the table does not know.
bool lt_proc_is_later(const char *base, int version);

// lt_next is the next definition of an exported function of ours behind this
// library, else the one in a libcuda that was loaded privately; NULL when no
// driver is loaded. It is remembered in *slot.
void *lt_next(const char *name, struct lt_slot_of *slot);

// lt_driver_symbol finds a function in the loaded libcuda itself, past all hooks;
// NULL when there is no such function, or no libcuda. It has lt_lookup's type.
void *lt_driver_symbol(void *unused, const char *name);

// lt_libcuda is the handle of the loaded libcuda, which then stays loaded for the
// process's life: what was handed out would lead nowhere otherwise. NULL if none is.
void *lt_libcuda(void);

// lt_real_dlsym is dlsym as the next library has it.
typedef void *(*lt_dlsym_fn)(void *handle, const char *name);
lt_dlsym_fn lt_real_dlsym(void);

#endif
