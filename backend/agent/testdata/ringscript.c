// SPDX-License-Identifier: Apache-2.0
//
// Plays a script of operations on a ring, one a line on standard input, and prints
// what each returned. Numbers are unsigned decimals (signed ones as their two's
// complement), texts "x" and hexadecimal digits.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entry.h"

enum { MAX_ARGS = 32, MAX_LINE = 1 << 16 };

static uint64_t a[MAX_ARGS];
static char *texts[MAX_ARGS];
static size_t lens[MAX_ARGS];

static void parse(char *line) {
  int n = 0;
  memset(a, 0, sizeof a);
  for (char *save, *t = strtok_r(line, " \n", &save); t != NULL && n < MAX_ARGS; t = strtok_r(NULL, " \n", &save), n++) {
    if (*t != 'x') {
      a[n] = strtoull(t, NULL, 10);
      continue;
    }
    lens[n] = strlen(t + 1) / 2;
    texts[n] = realloc(texts[n], lens[n] + 1);
    for (size_t i = 0; i < lens[n]; i++) {
      char digits[3] = {t[1 + 2 * i], t[2 + 2 * i], 0};
      texts[n][i] = (char)strtoul(digits, NULL, 16);
    }
    texts[n][lens[n]] = 0;
  }
}

static lt_slots slots[LT_MAX_CONTEXTS];
static unsigned contexts;

static lt_context_state context(void) {
  lt_context_state c = {.index = (uint8_t)a[0],
                        .mig = a[2],
                        .device = (int32_t)a[3],
                        .capability = (uint16_t)a[4],
                        .calibration = (uint8_t)a[5],
                        .constant_ns = (uint32_t)a[6],
                        .spread_ns = (uint32_t)a[7],
                        .first_slot = (uint32_t)a[8],
                        .slots = (uint32_t)a[9],
                        .gpu_ref_ns = (int64_t)a[10],
                        .host_ref_ns = (int64_t)a[11],
                        .rate_ppb = (int64_t)a[12],
                        .updated_mono_ns = (int64_t)a[13],
                        .uncertainty_ns = a[14]};
  memcpy(c.uuid, texts[1], 16);
  return c;
}

static lt_alloc alloc(int at) {
  return (lt_alloc){.addr = a[at],
                    .bytes = a[at + 1],
                    .guard_bytes = (uint32_t)a[at + 2],
                    .site = (lt_name_id)a[at + 3],
                    .index = a[at + 4],
                    .mono_ns = (int64_t)a[at + 5],
                    .kind = (uint8_t)a[at + 6],
                    .context = (uint8_t)a[at + 7]};
}

static uint64_t append(lt_ring *r, lt_words w) { return lt_ring_append(r, &w); }

static uint64_t play(lt_ring *r, const char *op) {
  lt_slots s = slots[a[0] % LT_MAX_CONTEXTS];
  if (strcmp(op, "span") == 0) {
    lt_span v = {(uint8_t)a[0], a[1], a[2], a[3], (uint8_t)a[4], (uint8_t)a[5], (uint8_t)a[6], (uint16_t)a[7], (uint16_t)a[8], a[9], (uint32_t)a[10], (uint32_t)a[11], (uint32_t)a[12], (int64_t)a[13], a[14], (uint16_t)a[15], (int64_t)a[16], a[17], a[18]};
    return append(r, lt_span_words(&v));
  }
  if (strcmp(op, "failed") == 0) {
    lt_span_failed v = {(uint8_t)a[0], (uint8_t)a[1], (uint8_t)a[2], (uint16_t)a[3], (uint16_t)a[4], a[5], (int64_t)a[6], (uint32_t)a[7], (uint32_t)a[8], (uint32_t)a[9]};
    return append(r, lt_span_failed_words(&v));
  }
  if (strcmp(op, "begin") == 0) {
    lt_step_begin_entry v = {a[0], (int64_t)a[1], a[2], a[3], a[6], (uint8_t)a[4], (uint8_t)a[5]};
    return append(r, lt_step_begin_words(&v));
  }
  if (strcmp(op, "end") == 0) {
    lt_step_end_entry v = {a[0], (int64_t)a[1], (int64_t)a[2], a[3], a[7], (uint32_t)a[4], (uint32_t)a[5], (uint32_t)a[6]};
    return append(r, lt_step_end_words(&v));
  }
  if (strcmp(op, "attrs") == 0) {
    lt_step_attrs_entry v = {a[0], (uint32_t)a[1], (uint32_t)a[2], (uint32_t)a[3], (uint8_t)a[4]};
    return append(r, lt_step_attrs_words(&v));
  }
  if (strcmp(op, "anchor") == 0) {
    lt_anchor_entry v = {(uint8_t)a[0], (int64_t)a[1], (int64_t)a[2], (int64_t)a[3], (int64_t)a[4], a[5]};
    return append(r, lt_anchor_words(&v));
  }
  if (strcmp(op, "link") == 0) {
    lt_step_link_entry v = {.step = a[0], .flags = (uint8_t)a[3]};
    memcpy(v.trace_id, texts[1], 16);
    memcpy(v.span_id, texts[2], 8);
    return append(r, lt_step_link_words(&v));
  }
  if (strcmp(op, "request") == 0) {
    lt_request_end_entry v = {.flags = (uint8_t)a[2], .begin_ns = (int64_t)a[3], .end_ns = (int64_t)a[4], .prompt_tokens = (uint32_t)a[5], .output_tokens = (uint32_t)a[6]};
    memcpy(v.trace_id, texts[0], 16);
    memcpy(v.span_id, texts[1], 8);
    return append(r, lt_request_end_words(&v));
  }
  if (strcmp(op, "mem") == 0) {
    lt_alloc v = alloc(3);
    return append(r, lt_mem_words((unsigned)a[0], &v, a[1], a[2]));
  }
  if (strcmp(op, "name") == 0)
    return lt_ring_name(r, (unsigned)a[0], texts[1], lens[1]);
  if (strcmp(op, "graph") == 0)
    return lt_ring_graph_name(r, a[0], (uint32_t)a[1], texts[2], lens[2]);
  if (strcmp(op, "add") == 0)
    return lt_ring_add(r, (unsigned)a[0], a[1]), lt_ring_counter(r, (unsigned)a[0]);
  if (strcmp(op, "level") == 0)
    return lt_ring_set_level(r, (int)a[0]), 0;
  if (strcmp(op, "lanes") == 0)
    return lt_ring_set_lanes(r, (uint32_t)a[0]), 0;
  if (strcmp(op, "arming") == 0)
    return lt_ring_set_arming(r, (uint32_t)a[0], (uint32_t)a[1]), 0;
  if (strcmp(op, "gpu") == 0)
    return lt_ring_set_gpu(r, texts[0], texts[1]), 0;
  if (strcmp(op, "newcontext") == 0) {
    lt_context_state c = context();
    lt_error err;
    lt_slots got;
    if (lt_ring_new_context(r, &c, (uint32_t)a[9], &got, &err) != 0)
      return UINT64_MAX;
    slots[contexts++] = got;
    return c.index | (uint64_t)c.first_slot << 8;
  }
  if (strcmp(op, "setcontext") == 0) {
    lt_context_state c = context();
    return lt_ring_set_context(r, &c), 0;
  }
  if (strcmp(op, "slotcas") == 0)
    return lt_slot_cas(s, (uint32_t)a[1], lt_slot_make((uint32_t)a[2], (unsigned)a[3]), lt_slot_make((uint32_t)a[4], (unsigned)a[5]));
  if (strcmp(op, "slotstore") == 0)
    return lt_slot_store(s, (uint32_t)a[1], lt_slot_make((uint32_t)a[2], (unsigned)a[3])), lt_slot_word(s, (uint32_t)a[1]);
  if (strcmp(op, "slotput") == 0) {
    lt_slot v = {(uint8_t)a[2], a[3], a[4], (uint8_t)a[5], (uint8_t)a[6], (uint16_t)a[7], (uint16_t)a[8], a[9], (int64_t)a[10], (int64_t)a[11], (uint32_t)a[12], (uint32_t)a[13], (uint32_t)a[14], a[15]};
    lt_slot_put(s, (uint32_t)a[1], &v);
    lt_slot got = lt_slot_get(s, (uint32_t)a[1]);
    return got.step ^ got.graph ^ got.ordinal ^ (uint64_t)got.name << 32 ^ got.kind ^ (uint64_t)got.armed << 8 ^ (uint64_t)got.gap << 12 ^ (uint64_t)got.shared_start << 16;
  }
  if (strcmp(op, "slotclosed") == 0)
    return lt_slot_set_closed(s, (uint32_t)a[1], (int64_t)a[2], (unsigned)a[3]), 0;
  if (strcmp(op, "allocput") == 0) {
    lt_alloc v = alloc(0);
    lt_allocs_lock(r);
    int32_t place = lt_allocs_put(r, &v);
    lt_allocs_unlock(r);
    return (uint64_t)(int64_t)place;
  }
  if (strcmp(op, "allocremove") == 0)
    return lt_allocs_lock(r), lt_allocs_remove(r, (int32_t)a[0]), lt_allocs_unlock(r), 0;
  if (strcmp(op, "allocsadd") == 0)
    return lt_allocs_lock(r), lt_allocs_add(r, (unsigned)a[0], (int64_t)a[1]), lt_allocs_unlock(r), lt_ring_counter(r, (unsigned)a[0]);
  if (strcmp(op, "raise") == 0)
    return lt_allocs_lock(r), lt_allocs_raise(r, (unsigned)a[0], a[1]), lt_allocs_unlock(r), lt_ring_counter(r, (unsigned)a[0]);
  if (strcmp(op, "track") == 0)
    return lt_allocs_lock(r), lt_allocs_track(r, (int)(int64_t)a[0], (int)(int64_t)a[1]), lt_allocs_unlock(r), 0;
  fprintf(stderr, "unknown operation %s\n", op);
  exit(2);
}

int main(void) {
  static lt_config c;
  lt_error err;
  if (lt_config_from_env(&c, getenv, &err) != 0) {
    fprintf(stderr, "%s\n", err.text);
    return 1;
  }
  // The geometry is that of the script's first line.
  static char line[MAX_LINE];
  if (fgets(line, sizeof line, stdin) == NULL)
    return 2;
  parse(line);
  lt_ring_options o = {.geometry = {a[0], a[1], a[2], a[3]}, .executable = texts[4], .gpu_uuid = texts[5], .gpu_name = texts[6], .producer = texts[7], .kernel_every = (uint32_t)a[8], .armed_requested = (uint32_t)a[9]};
  lt_ring *r = lt_ring_create(&c, &o, &err);
  if (r == NULL) {
    fprintf(stderr, "%s\n", err.text);
    return 1;
  }
  printf("%s\n", lt_ring_path(r));
  while (fgets(line, sizeof line, stdin) != NULL) {
    char op[32];
    size_t n = strcspn(line, " \n");
    snprintf(op, sizeof op, "%.*s", (int)n, line);
    parse(line + n);
    printf("%" PRIu64 "\n", play(r, op));
  }
  if (lt_ring_close(r, &err) != 0) {
    fprintf(stderr, "%s\n", err.text);
    return 1;
  }
  return 0;
}
