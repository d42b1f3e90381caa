// SPDX-License-Identifier: Apache-2.0
//
// The process's agent: started at the first sign of a CUDA context, off for good
// when something that it needs is missing.
#ifndef LANETRACE_AGENT_AGENT_H
#define LANETRACE_AGENT_AGENT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "driver.h"
#include "hub.h"
#include "ledger.h"
#include "ring.h"

// lt_agent_context takes a context in, and starts the agent if it has not been. NULL
// is the calling thread's current context; with none the agent is not started.
// Returns the context's index in the ring, or -1. For a context that is known it
// costs a call of cuCtxGetCurrent or less.
int lt_agent_context(void *context);

// lt_agent_ledger is the process's ledger, NULL while there is none.
lt_ledger *lt_agent_ledger(void);

// lt_agent_driver is the driver past the hooks, NULL before the agent was started.
const lt_driver *lt_agent_driver(void);

// lt_agent_generation changes in a child of fork: what was learnt in the parent
// about rings and contexts is void there.
unsigned lt_agent_generation(void);

// lt_agent_exiting: exit has begun, or the agent is off. The driver must not be
// called for telemetry's sake any more.
bool lt_agent_exiting(void);

#endif
