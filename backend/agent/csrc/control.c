// SPDX-License-Identifier: Apache-2.0
//
// The control file: a small JSON object that an operator replaces by rename. It is
// read, never mapped, and believed in nothing: what is not the JSON that it should
// be is refused whole.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ring_internal.h"

// Objects and arrays within each other, in fields that are skipped.
enum { MAX_DEPTH = 64 };

typedef struct json {
  const char *p, *end;
} json;

static void blanks(json *j) {
  while (j->p < j->end && (*j->p == ' ' || *j->p == '\t' || *j->p == '\n' || *j->p == '\r'))
    j->p++;
}

static bool take(json *j, char c) {
  blanks(j);
  if (j->p == j->end || *j->p != c)
    return false;
  j->p++;
  return true;
}

static bool word(json *j, const char *w) {
  size_t n = strlen(w);
  if ((size_t)(j->end - j->p) < n || memcmp(j->p, w, n) != 0)
    return false;
  j->p += n;
  return true;
}

static bool hex4(json *j, uint32_t *v) {
  *v = 0;
  for (int i = 0; i < 4; i++, j->p++) {
    if (j->p == j->end)
      return false;
    char c = *j->p;
    uint32_t d = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10) : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10) : 16;
    if (d == 16)
      return false;
    *v = *v << 4 | d;
  }
  return true;
}

// A string's bytes, as far as there is room for them.
typedef struct out {
  char *b;
  size_t room, n;
} out;

static void put(out *o, uint32_t c) {
  if (o->n < o->room)
    o->b[o->n] = (char)c;
  o->n++;
}

static void put_rune(out *o, uint32_t r) {
  if (r < 0x80) {
    put(o, r);
  } else if (r < 0x800) {
    put(o, 0xc0 | r >> 6);
    put(o, 0x80 | (r & 63));
  } else if (r < 0x10000) {
    put(o, 0xe0 | r >> 12);
    put(o, 0x80 | (r >> 6 & 63));
    put(o, 0x80 | (r & 63));
  } else {
    put(o, 0xf0 | r >> 18);
    put(o, 0x80 | (r >> 12 & 63));
    put(o, 0x80 | (r >> 6 & 63));
    put(o, 0x80 | (r & 63));
  }
}

static bool escape(json *j, out *o) {
  if (j->p == j->end)
    return false;
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  char c = *j->p++;
  const char *at = c == 0 ? NULL : strchr(from, c);
  if (at != NULL) {
    put(o, (unsigned char)to[at - from]);
    return true;
  }
  uint32_t r, low;
  if (c != 'u' || !hex4(j, &r))
    return false;
  if (r >= 0xd800 && r < 0xdc00) {
    json ahead = *j;
    if (word(&ahead, "\\u") && hex4(&ahead, &low) && low >= 0xdc00 && low < 0xe000) {
      *j = ahead;
      r = 0x10000 + ((r - 0xd800) << 10) + (low - 0xdc00);
    }
  }
  put_rune(o, r >= 0xd800 && r < 0xe000 ? 0xfffd : r);
  return true;
}

static bool string(json *j, out *o) {
  if (!take(j, '"'))
    return false;
  while (j->p < j->end) {
    unsigned char c = (unsigned char)*j->p++;
    if (c == '"')
      return true;
    if (c < 0x20)
      return false;
    if (c != '\\')
      put(o, c);
    else if (!escape(j, o))
      return false;
  }
  return false;
}

static size_t digits(json *j) {
  const char *from = j->p;
  while (j->p < j->end && *j->p >= '0' && *j->p <= '9')
    j->p++;
  return (size_t)(j->p - from);
}

static bool number(json *j) {
  if (j->p < j->end && *j->p == '-')
    j->p++;
  const char *from = j->p;
  size_t n = digits(j);
  if (n == 0 || (n > 1 && *from == '0'))
    return false;
  if (j->p < j->end && *j->p == '.') {
    j->p++;
    if (digits(j) == 0)
      return false;
  }
  if (j->p < j->end && (*j->p == 'e' || *j->p == 'E')) {
    j->p++;
    if (j->p < j->end && (*j->p == '+' || *j->p == '-'))
      j->p++;
    return digits(j) > 0;
  }
  return true;
}

static bool skip(json *j, int depth) {
  blanks(j);
  if (j->p == j->end || depth == MAX_DEPTH)
    return false;
  out nothing = {0};
  char open = *j->p;
  if (open == '"')
    return string(j, &nothing);
  if (open != '{' && open != '[')
    return word(j, "true") || word(j, "false") || word(j, "null") || number(j);
  j->p++;
  char close = open == '{' ? '}' : ']';
  if (take(j, close))
    return true;
  do {
    if (open == '{' && (blanks(j), !string(j, &nothing) || !take(j, ':')))
      return false;
    if (!skip(j, depth + 1))
      return false;
  } while (take(j, ','));
  return take(j, close);
}

// text reads a string into dst, cut to its size and ended by NUL; one that holds a
// NUL is refused. null leaves dst.
static bool text(json *j, char *dst, size_t size) {
  blanks(j);
  if (word(j, "null"))
    return true;
  out o = {dst, size - 1, 0};
  if (!string(j, &o))
    return false;
  size_t n = o.n < o.room ? o.n : o.room;
  dst[n] = 0;
  return memchr(dst, 0, n) == NULL;
}

static bool count(json *j, uint32_t *v) {
  blanks(j);
  if (word(j, "null"))
    return true;
  const char *from = j->p;
  if (!number(j))
    return false;
  char b[16];
  size_t n = (size_t)(j->p - from);
  uint64_t wide;
  if (n >= sizeof b)
    return false;
  memcpy(b, from, n);
  b[n] = 0;
  if (!lt_parse_u64(b, UINT32_MAX, &wide))
    return false;
  *v = (uint32_t)wide;
  return true;
}

static bool object(json *j, lt_control *c, const char **bad) {
  blanks(j);
  if (word(j, "null"))
    return true;
  if (!take(j, '{'))
    return false;
  if (take(j, '}'))
    return true;
  do {
    char key[32] = "";
    blanks(j);
    out o = {key, sizeof key - 1, 0};
    if (!string(j, &o) || !take(j, ':'))
      return false;
    bool fits = o.n < sizeof key, ok;
    key[fits ? o.n : 0] = 0;
    if (strcasecmp(key, "level") == 0)
      ok = text(j, c->level, sizeof c->level);
    else if (strcasecmp(key, "id") == 0)
      ok = text(j, c->id, sizeof c->id);
    else if (strcasecmp(key, "arm_steps") == 0)
      ok = count(j, &c->arm_steps);
    else
      ok = skip(j, 0);
    if (!ok) {
      *bad = strcasecmp(key, "level") == 0 ? "level is no text" : strcasecmp(key, "id") == 0 ? "id is no text" : strcasecmp(key, "arm_steps") == 0 ? "arm_steps is no whole number" : "not JSON";
      return false;
    }
  } while (take(j, ','));
  return take(j, '}');
}

int lt_control_parse(const char *s, size_t n, lt_control *c, lt_error *err) {
  memset(c, 0, sizeof *c);
  json j = {s, s + n};
  const char *bad = "not JSON";
  if (object(&j, c, &bad)) {
    blanks(&j);
    if (j.p == j.end)
      return LT_CONTROL_READ;
  }
  memset(c, 0, sizeof *c);
  lt_error_set(err, "%s", bad);
  return LT_CONTROL_BAD;
}

int lt_control_read(const lt_ring *r, lt_control *c, lt_error *err) {
  memset(c, 0, sizeof *c);
  if (!lt_ring_ours(r))
    return LT_CONTROL_NONE;
  char path[4096 + 128], b[LT_MAX_CONTROL_BYTES + 1];
  snprintf(path, sizeof path, "%s" LT_CONTROL_SUFFIX, r->path);
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT)
    return LT_CONTROL_NONE;
  if (fd < 0) {
    lt_error_sys(err, errno, "open control file %s", path);
    return LT_CONTROL_BAD;
  }
  struct statx st;
  int rc = LT_CONTROL_BAD;
  ssize_t n;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_TYPE, &st) != 0)
    lt_error_sys(err, errno, "stat control file %s", path);
  else if (!S_ISREG(st.stx_mode))
    lt_error_set(err, "control file %s: not a regular file", path);
  else if ((n = pread(fd, b, sizeof b, 0)) < 0)
    lt_error_sys(err, errno, "read control file %s", path);
  else if (n > LT_MAX_CONTROL_BYTES)
    lt_error_set(err, "control file %s: over %d bytes", path, LT_MAX_CONTROL_BYTES);
  else {
    lt_error why = {""};
    rc = lt_control_parse(b, (size_t)n, c, &why);
    if (rc == LT_CONTROL_BAD)
      lt_error_set(err, "control file %s: %s", path, why.text);
  }
  close(fd);
  return rc;
}
