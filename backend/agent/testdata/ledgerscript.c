// SPDX-License-Identifier: Apache-2.0
//
// Plays a script of operations on a ledger, one a line on standard input, and
// prints the totals after each.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ledger.h"

// What two threads do in turn can be played by one: begin and done apart.
static lt_mem_taken taken[8];
static lt_vm_taken vm[8];

int main(void) {
  static lt_config c;
  lt_error err;
  lt_ring_options o = {.geometry = {1 << 14, 16, 64 << 10, 32}};
  if (lt_config_from_env(&c, getenv, &err) != 0) {
    fprintf(stderr, "%s\n", err.text);
    return 1;
  }
  lt_ring *r = lt_ring_create(&c, &o, &err);
  if (r == NULL) {
    fprintf(stderr, "%s\n", err.text);
    return 1;
  }
  printf("%s\n", lt_ring_path(r));
  lt_ledger *l = lt_ledger_new(0);
  char line[256], op[16];
  while (fgets(line, sizeof line, stdin) != NULL) {
    uint64_t a[6] = {0};
    if (sscanf(line, "%15s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, op, &a[0], &a[1], &a[2], &a[3], &a[4], &a[5]) < 1)
      return 2;
    if (strcmp(op, "attach") == 0)
      lt_ledger_attach(l, r, a[0]);
    else if (strcmp(op, "publish") == 0)
      lt_ledger_level((int)a[0], l);
    else if (strcmp(op, "detach") == 0)
      lt_ledger_detach(l);
    else if (strcmp(op, "alloc") == 0)
      lt_mem_alloc(l, (int)a[0], (unsigned)a[1], (enum lt_mem_source)a[2], a[3], a[4], (lt_name_id)a[5]);
    else if (strcmp(op, "failed") == 0)
      lt_mem_alloc_failed(l);
    else if (strcmp(op, "take") == 0)
      lt_mem_take(l, a[1], &taken[a[0]]);
    else if (strcmp(op, "freed") == 0)
      lt_mem_freed(l, &taken[a[0]], a[1]);
    else if (strcmp(op, "contextend") == 0)
      lt_mem_context_end(l, (int)a[0]);
    else if (strcmp(op, "create") == 0)
      lt_vm_create(l, (int)a[0], a[1], a[2], (lt_name_id)a[3]);
    else if (strcmp(op, "retain") == 0)
      lt_vm_retain(l, a[0], a[1]);
    else if (strcmp(op, "map") == 0)
      lt_vm_map(l, a[0], a[1], a[2]);
    else if (strcmp(op, "unmap") == 0)
      lt_vm_unmap_begin(l, a[1], a[2], &vm[a[0]]);
    else if (strcmp(op, "unmapped") == 0)
      lt_vm_unmap_done(l, &vm[a[0]], a[1]);
    else if (strcmp(op, "release") == 0)
      lt_vm_release_begin(l, a[1], &vm[a[0]]);
    else if (strcmp(op, "released") == 0)
      lt_vm_release_done(l, &vm[a[0]], a[1]);
    else
      return 2;
    lt_mem_totals t;
    lt_mem_read(l, &t);
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", t.live_bytes, t.live_count, t.peak_bytes, t.allocs, t.frees, t.allocs_failed, t.frees_failed, t.frees_unknown, t.allocs_replaced);
  }
  return lt_ring_close(r, &err) != 0;
}
