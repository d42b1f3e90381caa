// SPDX-License-Identifier: Apache-2.0
#ifndef LT_PTX_H
#define LT_PTX_H

#include "internal.h"

// A global variable of a PTX text.
struct ptx_global {
  char *name;
  size_t bytes;
  unsigned char *init; // bytes long
};

struct ptx {
  struct fninfo **fns;
  size_t nfns;
  struct ptx_global *globals;
  size_t nglobals;
  unsigned refs;
};

// ptx_parse reads entries and globals from a PTX text. On failure it returns
// NULL, sets *r and says what is wrong in err.
struct ptx *ptx_parse(const char *text, CUresult *r, char *err, size_t errlen);
struct ptx *ptx_ref(struct ptx *p);
void ptx_unref(struct ptx *p);

#endif
