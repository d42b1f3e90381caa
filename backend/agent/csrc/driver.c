// SPDX-License-Identifier: Apache-2.0

#include "driver.h"

#include <string.h>

const char *lt_driver_resolve(lt_driver *d, lt_lookup find, void *user) {
  const char *missing = NULL;
  void *p;
  memset(d, 0, sizeof *d);
#define X(name, params)              \
  p = find(user, #name);             \
  memcpy(&d->name, &p, sizeof p);    \
  if (p == NULL && missing == NULL)  \
    missing = #name;
  LT_DRIVER_REQUIRED(X)
#undef X
#define X(name, params)  \
  p = find(user, #name); \
  memcpy(&d->name, &p, sizeof p);
  LT_DRIVER_OPTIONAL(X)
#undef X
  d->elapsed = d->cuEventElapsedTime_v2 != NULL ? d->cuEventElapsedTime_v2 : d->cuEventElapsedTime;
  return missing;
}
