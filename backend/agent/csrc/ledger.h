// SPDX-License-Identifier: Apache-2.0
//
// The ledger: every live allocation of device memory that the program made through
// the driver, by call site, on the ring's table and in its memory counters, and each
// allocation and free in the log. It means what package ledger means in Go.
//
// Live bytes follow physical memory. Reserved address space is none. Memory from
// cuMemCreate lives until its handle was released as often as it was had and
// nothing maps it any more, in whatever order.
//
// A ledger runs at every level; the level decides whether it is written to the
// ring: a rise to basic writes what is live, a fall to off marks the table stale.
// Totals are counters, so a table that is full never makes them wrong.
//
// Every function may be called from any thread. Each holds the ledger's lock for a
// moment; none makes a driver call. What is about to go is taken off the ledger
// before the driver is asked, so that its address or handle can come again, and is
// put back when the driver refuses. A NULL ledger does nothing. Memory for the
// ledger's own tables comes from malloc; should there be none, an allocation is not
// on the ledger, and its free counts as one of what is not known. In a child of fork
// a ledger does nothing; the child makes its own.
#ifndef LANETRACE_AGENT_LEDGER_H
#define LANETRACE_AGENT_LEDGER_H

#include "ring.h"

typedef struct lt_ledger lt_ledger;

// lt_ledger_new makes an empty ledger; NULL when there is no memory for it.
// chunk_bytes is the size of the ranges into which the driver packs small
// allocations, a power of two from 4 KiB to 1 GiB, by which slack is reckoned; 0 is
// 2 MiB. A ledger lives as long as the process.
lt_ledger *lt_ledger_new(uint64_t chunk_bytes);

// lt_ledger_attach ties the ledger to a ring, once. With publish, which follows
// from the level, it writes; without, the ring's table says that it is stale.
void lt_ledger_attach(lt_ledger *l, lt_ring *r, bool publish);
// lt_ledger_set_publishing follows the level: true from basic on.
void lt_ledger_set_publishing(lt_ledger *l, bool on);
// lt_ledger_level is lt_ledger_set_publishing for lt_hub_on_level, with the ledger
// as its user.
void lt_ledger_level(int level, void *ledger);
// lt_ledger_detach ends the writing, before the ring is closed. What is live stays
// on the ring's table and in its totals.
void lt_ledger_detach(lt_ledger *l);

// How memory was had: only of LT_MEM_PLAIN the driver's packing is known, so only
// that has slack.
enum lt_mem_source {
  LT_MEM_PLAIN = 0, // cuMemAlloc, cuMemAllocManaged, cuMemAllocPitch
  LT_MEM_POOL = 1,  // cuMemAllocAsync, cuMemAllocFromPoolAsync
  LT_MEM_OTHER = 2, // arrays and the like, by handle
};

// lt_mem_alloc puts an allocation, which the driver has made, on the ledger. context
// is the index of its context's record (one that is none counts as 0), kind
// LT_ALLOC_DEVICE or LT_ALLOC_MANAGED, addr its address or handle, site a name of
// kind LT_NAME_SITE in the attached ring, 0: unknown. Nothing happens for an address
// or a size of 0. What was still live at the address had been freed unseen: counted
// as replaced.
void lt_mem_alloc(lt_ledger *l, int context, unsigned kind, enum lt_mem_source source, uint64_t addr, uint64_t bytes,
                  lt_name_id site);

// lt_mem_alloc_failed counts an allocation that the driver refused.
void lt_mem_alloc_failed(lt_ledger *l);

// One allocation off the ledger, on the caller's stack.
typedef struct lt_mem_taken {
  lt_alloc alloc;
  uint8_t source, known;
} lt_mem_taken;

// lt_mem_take takes the allocation at addr off the ledger: call it before the
// driver's free, and lt_mem_freed after it with whether the driver refused. A free
// of address 0 is none.
void lt_mem_take(lt_ledger *l, uint64_t addr, lt_mem_taken *t);
void lt_mem_freed(lt_ledger *l, const lt_mem_taken *t, bool refused);

// lt_mem_context_end takes everything of a context off the ledger as freed: its
// destruction frees it. Physical memory from cuMemCreate belongs to no context and
// stays.
void lt_mem_context_end(lt_ledger *l, int context);

// Physical memory and its mappings ----------------------------------------------

// lt_vm_create: cuMemCreate gave the handle. With bytes 0 (memory of another
// process, or not on a device) the handle is known, but counts for nothing.
void lt_vm_create(lt_ledger *l, int context, uint64_t handle, uint64_t bytes, lt_name_id site);
// lt_vm_retain: cuMemRetainAllocationHandle gave the handle of what is mapped at
// addr, and with it one more release to come.
void lt_vm_retain(lt_ledger *l, uint64_t addr, uint64_t handle);

// lt_vm_map: cuMemMap has mapped size bytes of the handle at addr.
void lt_vm_map(lt_ledger *l, uint64_t addr, uint64_t size, uint64_t handle);

// What lt_vm_unmap_begin or lt_vm_release_begin took, on the caller's stack.
typedef struct lt_vm_taken {
  uint64_t addr, size, handle;
  uint8_t known;
} lt_vm_taken;

// lt_vm_unmap_begin marks the mappings that lie within [addr, addr+size) before
// cuMemUnmap, lt_vm_release_begin one of a handle's references before cuMemRelease;
// the _done functions say afterwards whether the driver refused, and drop them if it
// did not. A release of a handle that is not known (released before) changes no
// total; it is counted with the frees of what is not known, as others are.
void lt_vm_unmap_begin(lt_ledger *l, uint64_t addr, uint64_t size, lt_vm_taken *t);
void lt_vm_unmap_done(lt_ledger *l, const lt_vm_taken *t, bool refused);
void lt_vm_release_begin(lt_ledger *l, uint64_t handle, lt_vm_taken *t);
void lt_vm_release_done(lt_ledger *l, const lt_vm_taken *t, bool refused);

// Totals ------------------------------------------------------------------------

typedef struct lt_mem_totals {
  uint64_t live_bytes, live_count, peak_bytes;
  uint64_t allocs, frees, allocs_failed, frees_failed, frees_unknown, allocs_replaced;
} lt_mem_totals;

// lt_mem_read reads the totals, which do not depend on the level.
void lt_mem_read(lt_ledger *l, lt_mem_totals *t);

#endif
