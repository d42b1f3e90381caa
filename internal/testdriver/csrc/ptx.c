// SPDX-License-Identifier: Apache-2.0
//
// As much of PTX as a driver has to understand to load it: the header, entry
// points with their parameter lists, global variables with their first values.
// Function bodies are skipped, but their braces must match.

#include "ptx.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>

struct fninfo *fninfo_ref(struct fninfo *f) {
  f->refs++;
  return f;
}

void fninfo_unref(struct fninfo *f) {
  if (f == NULL || --f->refs > 0)
    return;
  free(f->name);
  free(f->offset);
  free(f->size);
  free(f);
}

struct ptx *ptx_ref(struct ptx *p) {
  p->refs++;
  return p;
}

void ptx_unref(struct ptx *p) {
  if (p == NULL || --p->refs > 0)
    return;
  for (size_t i = 0; i < p->nfns; i++)
    fninfo_unref(p->fns[i]);
  for (size_t i = 0; i < p->nglobals; i++) {
    free(p->globals[i].name);
    free(p->globals[i].init);
  }
  free(p->fns);
  free(p->globals);
  free(p);
}

// Tokens: words (directives with their dots, names, numbers), and single
// characters for everything else.
struct lexer {
  const char *at;
  int line;
  char tok[256];
  bool end;
  char *err;
  size_t errlen;
  bool failed;
};

__attribute__((format(printf, 2, 3))) static void fail(struct lexer *l, const char *fmt, ...) {
  if (l->failed)
    return;
  l->failed = true;
  if (l->err == NULL || l->errlen == 0)
    return;
  int n = snprintf(l->err, l->errlen, "line %d: ", l->line);
  va_list ap;
  va_start(ap, fmt);
  if (n > 0 && (size_t)n < l->errlen)
    vsnprintf(l->err + n, l->errlen - (size_t)n, fmt, ap);
  va_end(ap);
}

static bool wordy(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%'; }

static void skip_blank(struct lexer *l) {
  for (;;) {
    char c = *l->at;
    if (c == '\n') {
      l->line++;
      l->at++;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f') {
      l->at++;
    } else if (c == '/' && l->at[1] == '/') {
      while (*l->at != '\0' && *l->at != '\n')
        l->at++;
    } else if (c == '/' && l->at[1] == '*') {
      l->at += 2;
      while (*l->at != '\0' && !(l->at[0] == '*' && l->at[1] == '/')) {
        if (*l->at == '\n')
          l->line++;
        l->at++;
      }
      if (*l->at == '\0') {
        fail(l, "comment without an end");
        return;
      }
      l->at += 2;
    } else {
      return;
    }
  }
}

static void next(struct lexer *l) {
  skip_blank(l);
  size_t n = 0;
  l->end = *l->at == '\0';
  if (l->end || l->failed) {
    l->end = true;
    l->tok[0] = '\0';
    return;
  }
  if (*l->at == '"') {
    do {
      if (n < sizeof l->tok - 1)
        l->tok[n++] = *l->at;
      l->at++;
    } while (*l->at != '\0' && *l->at != '"' && *l->at != '\n');
    if (*l->at != '"')
      fail(l, "string without an end");
    else
      l->at++;
  } else if (wordy(*l->at)) {
    while (wordy(*l->at)) {
      if (n == sizeof l->tok - 1) {
        fail(l, "word too long");
        break;
      }
      l->tok[n++] = *l->at++;
    }
  } else {
    l->tok[n++] = *l->at++;
  }
  l->tok[n] = '\0';
}

static bool is(const struct lexer *l, const char *what) { return !l->end && strcmp(l->tok, what) == 0; }

static bool name_ok(const char *s) {
  return (isalpha((unsigned char)*s) || *s == '_' || *s == '$' || *s == '%') && strchr(s, '.') == NULL;
}

static size_t number(struct lexer *l) {
  char *end;
  errno = 0;
  unsigned long long v = strtoull(l->tok, &end, 0);
  if (*end == 'U')
    end++;
  if (errno != 0 || *end != '\0' || !isdigit((unsigned char)l->tok[0])) {
    fail(l, "\"%s\" is no number", l->tok);
    return 0;
  }
  return (size_t)v;
}

// Width of a fundamental type in bytes, 0 if it is none.
static size_t type_bytes(const char *t) {
  static const struct {
    const char *name;
    size_t bytes;
  } types[] = {{".b8", 1},  {".u8", 1},  {".s8", 1},  {".b16", 2}, {".u16", 2},  {".s16", 2},  {".f16", 2}, {".bf16", 2},
               {".b32", 4}, {".u32", 4}, {".s32", 4}, {".f32", 4}, {".f16x2", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8},
               {".f64", 8}, {".b128", 16}};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
    if (strcmp(types[i].name, t) == 0)
      return types[i].bytes;
  return 0;
}

static void *grow(void *v, size_t n, size_t size) { return realloc(v, (n + 1) * size); }

// One variable: qualifiers, type, name and dimensions; the current token is
// the first behind .param or .global.
struct var {
  char name[256];
  size_t element, count, align;
};

static void variable(struct lexer *l, struct var *v) {
  *v = (struct var){.count = 1};
  while (!l->end && l->tok[0] == '.') {
    size_t bytes = type_bytes(l->tok);
    if (bytes > 0) {
      v->element = bytes;
    } else if (is(l, ".align")) {
      next(l);
      v->align = number(l);
    }
    // .ptr, .global, .const, .v2 and the like say nothing about the layout of
    // a parameter, except vectors.
    if (is(l, ".v2"))
      v->count *= 2;
    if (is(l, ".v4"))
      v->count *= 4;
    next(l);
  }
  if (v->element == 0) {
    fail(l, "a variable without a type before \"%s\"", l->tok);
    return;
  }
  if (l->end || !name_ok(l->tok)) {
    fail(l, "\"%s\" where a name was expected", l->tok);
    return;
  }
  snprintf(v->name, sizeof v->name, "%s", l->tok);
  next(l);
  while (is(l, "[")) {
    next(l);
    if (is(l, "]")) {
      v->count = 0; // size comes from the initial values
    } else {
      size_t n = number(l);
      if (__builtin_mul_overflow(v->count, n, &v->count) || v->count > (size_t)1 << 30)
        fail(l, "array too large");
      next(l);
    }
    if (!is(l, "]")) {
      fail(l, "\"%s\" where ] was expected", l->tok);
      return;
    }
    next(l);
  }
  if (v->align == 0)
    v->align = v->element;
  if ((v->align & (v->align - 1)) != 0)
    fail(l, "alignment %zu is no power of two", v->align);
}

static void skip_body(struct lexer *l) {
  int depth = 0;
  do {
    if (is(l, "{"))
      depth++;
    if (is(l, "}"))
      depth--;
    next(l);
  } while (depth > 0 && !l->end);
  if (depth > 0)
    fail(l, "a body without an end");
}

// The current token is behind .entry.
static void entry(struct lexer *l, struct ptx *p) {
  if (l->end || !name_ok(l->tok)) {
    fail(l, "\"%s\" where an entry's name was expected", l->tok);
    return;
  }
  for (size_t i = 0; i < p->nfns; i++)
    if (strcmp(p->fns[i]->name, l->tok) == 0) {
      fail(l, "entry %s defined twice", l->tok);
      return;
    }
  struct fninfo *f = calloc(1, sizeof *f);
  struct fninfo **fns = grow(p->fns, p->nfns, sizeof *fns);
  if (fns != NULL)
    p->fns = fns;
  if (f == NULL || fns == NULL) {
    free(f);
    fail(l, "out of memory");
    return;
  }
  f->refs = 1;
  f->name = strdup(l->tok);
  p->fns[p->nfns++] = f;
  next(l);
  if (is(l, "(")) {
    next(l);
    while (!is(l, ")")) {
      if (!is(l, ".param")) {
        fail(l, "\"%s\" in the parameter list of %s", l->tok, f->name);
        return;
      }
      next(l);
      struct var v;
      variable(l, &v);
      if (l->failed)
        return;
      size_t *offset = grow(f->offset, f->nparams, sizeof *offset);
      if (offset != NULL)
        f->offset = offset;
      size_t *size = grow(f->size, f->nparams, sizeof *size);
      if (size != NULL)
        f->size = size;
      if (offset == NULL || size == NULL) {
        fail(l, "out of memory");
        return;
      }
      f->offset[f->nparams] = (f->bytes + v.align - 1) & ~(v.align - 1);
      f->size[f->nparams] = v.element * v.count;
      f->bytes = f->offset[f->nparams] + f->size[f->nparams];
      f->nparams++;
      if (is(l, ","))
        next(l);
      else if (!is(l, ")")) {
        fail(l, "\"%s\" behind a parameter of %s", l->tok, f->name);
        return;
      }
    }
    next(l);
  }
  // Performance directives (.maxntid and so on) stand before the body.
  while (!l->end && !is(l, "{") && !is(l, ";"))
    next(l);
  if (is(l, "{"))
    skip_body(l);
  else
    fail(l, "entry %s has no body", f->name);
}

static void value(struct lexer *l, size_t element, unsigned char *to) {
  bool minus = is(l, "-");
  if (minus)
    next(l);
  uint64_t bits = 0;
  // 0fXXXXXXXX and 0dXXXXXXXXXXXXXXXX are floats by their bits.
  if ((l->tok[0] == '0') && (l->tok[1] == 'f' || l->tok[1] == 'F' || l->tok[1] == 'd' || l->tok[1] == 'D') &&
      (strlen(l->tok) == 10 || strlen(l->tok) == 18)) {
    bits = strtoull(l->tok + 2, NULL, 16);
  } else if (strchr(l->tok, '.') != NULL && isdigit((unsigned char)l->tok[0])) {
    double d = strtod(l->tok, NULL);
    if (element == 4) {
      float f = (float)d;
      memcpy(&bits, &f, 4);
    } else {
      memcpy(&bits, &d, 8);
    }
  } else if (isdigit((unsigned char)l->tok[0])) {
    bits = number(l);
  }
  // Anything else is another variable's address, which stays 0 here.
  if (minus)
    bits = ~bits + 1;
  memcpy(to, &bits, element < 8 ? element : 8);
  next(l);
}

// The current token is behind .global or .const.
static void global(struct lexer *l, struct ptx *p) {
  struct var v;
  variable(l, &v);
  if (l->failed)
    return;
  size_t cap = v.count > 0 ? v.count : 16, n = 0;
  unsigned char *init = calloc(cap, v.element);
  if (init == NULL) {
    fail(l, "out of memory");
    return;
  }
  if (is(l, "=")) {
    next(l);
    bool list = is(l, "{");
    int depth = 0;
    do {
      while (is(l, "{")) {
        depth++;
        next(l);
      }
      if (l->end)
        break;
      if (n == cap) {
        unsigned char *more = v.count > 0 ? NULL : realloc(init, 2 * cap * v.element);
        if (more == NULL) {
          fail(l, "too many values for %s", v.name);
          break;
        }
        memset(more + cap * v.element, 0, cap * v.element);
        init = more;
        cap *= 2;
      }
      if (!is(l, "}"))
        value(l, v.element, init + n++ * v.element);
      while (is(l, "}")) {
        depth--;
        next(l);
      }
      if (is(l, ","))
        next(l);
    } while (list && depth > 0 && !l->end && !l->failed);
    if (depth != 0)
      fail(l, "unbalanced values of %s", v.name);
  }
  if (!is(l, ";"))
    fail(l, "\"%s\" behind variable %s", l->tok, v.name);
  struct ptx_global *globals = l->failed ? NULL : grow(p->globals, p->nglobals, sizeof *globals);
  char *name = strdup(v.name);
  if (globals == NULL || name == NULL) {
    if (globals != NULL)
      p->globals = globals;
    free(name);
    free(init);
    fail(l, "out of memory");
    return;
  }
  p->globals = globals;
  p->globals[p->nglobals++] = (struct ptx_global){.name = name, .bytes = (v.count > 0 ? v.count : n) * v.element, .init = init};
  next(l);
}

struct ptx *ptx_parse(const char *text, CUresult *r, char *err, size_t errlen) {
  *r = CUDA_ERROR_INVALID_PTX;
  struct lexer l = {.at = text, .line = 1, .err = err, .errlen = errlen};
  struct ptx *p = calloc(1, sizeof *p);
  if (p == NULL) {
    *r = CUDA_ERROR_OUT_OF_MEMORY;
    return NULL;
  }
  p->refs = 1;
  next(&l);
  if (!is(&l, ".version")) {
    *r = CUDA_ERROR_INVALID_IMAGE;
    fail(&l, "this is no PTX: no .version at the beginning");
  }
  next(&l);
  if (!l.failed && strtod(l.tok, NULL) > 9.0) {
    *r = CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    fail(&l, ".version %s is newer than this driver", l.tok);
  } else if (!l.failed && strtod(l.tok, NULL) < 1.0) {
    fail(&l, "\"%s\" is no version", l.tok);
  }
  next(&l);
  if (!is(&l, ".target"))
    fail(&l, "no .target behind .version");
  next(&l);
  int sm = 0;
  if (!l.failed && sscanf(l.tok, "sm_%d", &sm) != 1)
    fail(&l, "\"%s\" is no target", l.tok);
  if (!l.failed && sm > 90) {
    fail(&l, ".target %s is newer than this device (sm_90)", l.tok);
  }
  while (!l.end && !l.failed) {
    if (is(&l, ".entry")) {
      next(&l);
      entry(&l, p);
    } else if (is(&l, ".global") || is(&l, ".const")) {
      next(&l);
      global(&l, p);
    } else if (is(&l, ".func")) {
      while (!l.end && !is(&l, "{") && !is(&l, ";"))
        next(&l);
      if (is(&l, "{"))
        skip_body(&l);
    } else if (is(&l, "{") || is(&l, "}") || is(&l, "(") || is(&l, ")")) {
      fail(&l, "\"%s\" outside of anything", l.tok);
    } else {
      next(&l);
    }
  }
  if (l.failed) {
    ptx_unref(p);
    return NULL;
  }
  *r = CUDA_SUCCESS;
  return p;
}
