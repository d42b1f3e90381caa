// SPDX-License-Identifier: Apache-2.0
//
// A thread of the program may have been cancelled, which takes effect at its next
// call that waits. It must not be one of ours, while a lock is held.
#ifndef LANETRACE_AGENT_CANCEL_H
#define LANETRACE_AGENT_CANCEL_H

#include <pthread.h>

// lt_cancel_off puts a cancellation of the calling thread off, until lt_cancel_back.
static inline int lt_cancel_off(void) {
  int was = PTHREAD_CANCEL_ENABLE;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was);
  return was;
}

static inline void lt_cancel_back(int was) { pthread_setcancelstate(was, NULL); }

#endif
