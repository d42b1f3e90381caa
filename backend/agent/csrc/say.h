// SPDX-License-Identifier: Apache-2.0
//
// The agent's own words: one line on standard error for each thing that went
// wrong, said once. Nothing else of the agent writes to the program's streams.
#ifndef LANETRACE_AGENT_SAY_H
#define LANETRACE_AGENT_SAY_H

#include <stdatomic.h>

// lt_say writes "lanetrace: " and the text as one line of at most 500 bytes, in
// one write(2), of which no signal comes. It takes no lock, does not allocate, keeps
// errno and is no cancellation point.
__attribute__((format(printf, 1, 2))) void lt_say(const char *format, ...);

// lt_say_once is lt_say the first time that it is called with this flag.
#define lt_say_once(flag, ...)                                             \
  do {                                                                     \
    if (!atomic_exchange_explicit((flag), 1, memory_order_relaxed))        \
      lt_say(__VA_ARGS__);                                                 \
  } while (0)

#endif
