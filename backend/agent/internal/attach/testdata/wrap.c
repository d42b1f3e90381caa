// SPDX-License-Identifier: Apache-2.0
//
// The table of trampolines by itself, with one kind of call that has two of them and
// names of a driver that never was.
#include <stdio.h>
#include <stdlib.h>

#include "interpose.h"

static struct lt_slot_of slots[2];
static int first(void) { return 1; }
static int second(void) { return 2; }
static void *const entries[2] = {(void *)first, (void *)second};
static const struct lt_kind kind = {"call", slots, entries, 2};

const struct lt_symbol lt_symbols[] = {
    {"cuCall", "cuCall", 2000, false, NULL, NULL}, // too old
    {"cuCall_v2", "cuCall", 3000, false, &kind, NULL},
    {"cuCall_v2_ptsz", "cuCall", 3000, true, &kind, NULL},
    {"", "cuCall", 12000, false, NULL, NULL}, // not hooked
};
const unsigned lt_symbol_count = 4;

#define CHECK(what)                             \
  do {                                          \
    if (!(what)) {                              \
      printf("line %d: %s\n", __LINE__, #what); \
      exit(1);                                  \
    }                                           \
  } while (0)

int main(void) {
  // Functions of other libraries stand for the driver's.
  void *a = (void *)malloc, *b = (void *)free, *c = (void *)calloc;
  CHECK(lt_wrap(&kind, NULL, false) == NULL);
  CHECK(lt_wrap(NULL, a, false) == a);
  CHECK(lt_wrap_proc("cuOther", 12000, false, a, NULL) == a);
  CHECK(lt_wrap_proc("cuCall", 2999, false, a, NULL) == a);  // the old variant
  CHECK(lt_wrap_proc("cuCall", 12000, false, a, NULL) == a); // the one not hooked
  CHECK(lt_wrap_proc("cuCall", 3000, false, a, b) == a);     // another than at the version we know
  CHECK(lt_wrap_proc("cuCall", 3000, false, a, a) == (void *)first);
  CHECK(lt_wrap_proc("cuCall", 11999, false, a, NULL) == (void *)first); // the same again
  CHECK(slots[0].real == a && !slots[0].per_thread);
  CHECK(lt_wrap_proc("cuCall", 3000, true, b, NULL) == (void *)second);
  CHECK(slots[1].real == b && slots[1].per_thread);
  CHECK(lt_wrap(&kind, (void *)first, false) == (void *)first); // one of ours
  CHECK(lt_wrap(&kind, c, false) == c);                         // none left, said once
  CHECK(lt_wrap(&kind, c, false) == c);
  CHECK(lt_wrap(&kind, b, true) == (void *)second);
  CHECK(!lt_proc_is_later("cuCall", LT_KNOWN_CUDA) && lt_proc_is_later("cuCall", LT_KNOWN_CUDA + 10));
  CHECK(!lt_proc_is_later("cuOther", LT_KNOWN_CUDA + 10));
  CHECK(lt_libcuda() == NULL && lt_driver_symbol(NULL, "cuInit") == NULL);
  return 0;
}
