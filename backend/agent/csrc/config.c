// SPDX-License-Identifier: Apache-2.0
//
// The LANETRACE_* variables. Their meanings and limits are those of the Go
// library's Config.FromEnv. Numbers are read by hand: the C library's functions
// follow the program's locale, and some have symbols newer than glibc 2.28.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hub.h"
#include "ring_internal.h"

static const char *const level_text[] = {"off", "basic", "lane", "kernel"};
enum { LEVELS = sizeof level_text / sizeof level_text[0] };

int lt_level_parse(const char *text) {
  for (int i = 0; i < LEVELS; i++)
    if (strcmp(text, level_text[i]) == 0)
      return i;
  return -1;
}

const char *lt_level_text(int level) { return level >= 0 && level < LEVELS ? level_text[level] : "unknown"; }

bool lt_parse_u64(const char *s, uint64_t max, uint64_t *v) {
  uint64_t n = 0;
  if (*s == 0)
    return false;
  for (; *s != 0; s++) {
    uint64_t d = (uint64_t)(*s - '0');
    if (*s < '0' || *s > '9' || n > (max - d) / 10)
      return false;
    n = n * 10 + d;
  }
  *v = n;
  return true;
}

// parse_share reads a decimal number, with a fraction and an exponent or without.
static bool parse_share(const char *s, double *v) {
  double n = 0;
  int scale = 0, exponent = 0, digits = 0;
  for (; (*s >= '0' && *s <= '9') || (*s == '.' && scale == 0); s++) {
    if (*s == '.') {
      scale = 1;
      continue;
    }
    n = n * 10 + (*s - '0');
    exponent -= scale;
    digits++;
  }
  if (digits == 0 || digits > 300)
    return false;
  if (*s == 'e' || *s == 'E') {
    s++;
    int sign = *s == '-' ? -1 : 1;
    if (*s == '-' || *s == '+')
      s++;
    uint64_t e;
    if (!lt_parse_u64(s, 300, &e))
      return false;
    exponent += sign * (int)e;
    s = "";
  }
  double ten = 1;
  for (int i = 0; i < (exponent < 0 ? -exponent : exponent); i++)
    ten *= 10;
  *v = exponent < 0 ? n / ten : n * ten;
  return *s == 0;
}

static const char *get(char *(*env)(const char *), const char *name) {
  const char *v = env(name);
  return v == NULL ? "" : v;
}

static bool text(char *dst, size_t size, char *(*env)(const char *), const char *name, lt_error *err) {
  const char *v = get(env, name);
  if (strlen(v) >= size) {
    lt_error_set(err, "%s: over %zu bytes", name, size - 1);
    return false;
  }
  memcpy(dst, v, strlen(v) + 1);
  return true;
}

static bool number(uint64_t *dst, char *(*env)(const char *), const char *name, uint64_t lo, uint64_t hi, lt_error *err) {
  const char *v = get(env, name);
  if (*v == 0)
    return true;
  uint64_t n;
  if (!lt_parse_u64(v + (*v == '+'), hi, &n) || n < lo) {
    lt_error_set(err, "%s=\"%s\": want a whole number from %llu to %llu", name, v, (unsigned long long)lo, (unsigned long long)hi);
    return false;
  }
  *dst = n;
  return true;
}

static bool share(double *dst, char *(*env)(const char *), const char *name, lt_error *err) {
  const char *v = get(env, name);
  if (*v == 0 || (parse_share(v, dst) && *dst > 0 && *dst <= 1))
    return true;
  lt_error_set(err, "%s=\"%s\": want a share over 0 and at most 1", name, v);
  return false;
}

int lt_config_from_env(lt_config *c, char *(*env)(const char *), lt_error *err) {
  memset(c, 0, sizeof *c);
  c->level = LT_LEVEL_LANE;
  c->group = -1;
  for (int i = 0; i < 4; i++)
    c->rank[i] = -1;
  const char *level = get(env, "LANETRACE_LEVEL");
  if (*level != 0 && (c->level = lt_level_parse(level)) < 0) {
    lt_error_set(err, "LANETRACE_LEVEL: unknown level \"%s\": want one of off, basic, lane, kernel", level);
    return -1;
  }
  uint64_t group = 0, bytes = 0, pairs = 0, every = 64;
  const char *g = get(env, "LANETRACE_GROUP");
  // The last number, all ones, means "no group" to chown.
  if (*g != 0 && !lt_parse_u64(g, UINT32_MAX - 1, &group)) {
    lt_error_set(err, "LANETRACE_GROUP=\"%s\": want a group's number", g);
    return -1;
  }
  if (*g != 0)
    c->group = (int64_t)group;
  if (!text(c->dir, sizeof c->dir, env, "LANETRACE_DIR", err) || !text(c->service, sizeof c->service, env, "OTEL_SERVICE_NAME", err) ||
      !text(c->model, sizeof c->model, env, "LANETRACE_MODEL", err) ||
      !number(&bytes, env, "LANETRACE_RING_BYTES", 64 << 10, LT_MAX_FILE_BYTES, err) ||
      !number(&pairs, env, "LANETRACE_PAIRS", 1, 1 << 20, err) ||
      !number(&every, env, "LANETRACE_KERNEL_SPAN_EVERY", 1, INT32_MAX, err))
    return -1;
  static const char *const ranks[] = {"LANETRACE_RANK_DATA", "LANETRACE_RANK_TENSOR", "LANETRACE_RANK_PIPELINE", "LANETRACE_RANK_EXPERT"};
  for (int i = 0; i < 4; i++) {
    uint64_t rank = UINT64_MAX;
    if (!number(&rank, env, ranks[i], 0, INT32_MAX, err))
      return -1;
    c->rank[i] = rank == UINT64_MAX ? -1 : (int32_t)rank;
  }
  c->dir_named = c->dir[0] != 0;
  if (!c->dir_named)
    snprintf(c->dir, sizeof c->dir, "/dev/shm/lanetrace-%u", (unsigned)getuid());
  c->ring_bytes = (int64_t)bytes;
  c->kernel_every = (uint32_t)every;
  c->kernel_budget = 0.003;
  if (!share(&c->kernel_budget, env, "LANETRACE_KERNEL_BUDGET", err) || !share(&c->lane_budget, env, "LANETRACE_LANE_BUDGET", err))
    return -1;
  lt_geometry geo = {0};
  if (c->ring_bytes != 0 && lt_geometry_for_bytes(c->ring_bytes, &geo, err) != 0)
    return -1;
  if (lt_geometry_settle(&geo, err) != 0)
    return -1;
  if (pairs > geo.slots) {
    lt_error_set(err, "%llu event pairs: want from 1 to the ring's %llu slots", (unsigned long long)pairs, (unsigned long long)geo.slots);
    return -1;
  }
  if (pairs == 0) {
    pairs = geo.slots / 4 > 0 ? geo.slots / 4 : 1;
    if (pairs > 4096)
      pairs = 4096;
  }
  c->pairs = (uint32_t)pairs;
  return 0;
}
