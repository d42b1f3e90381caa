// SPDX-License-Identifier: Apache-2.0

#include "say.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cancel.h"

// put writes to standard error. Where nobody reads that any more, the signal that would
// end the program is taken back: the program may never write there itself.
static void put(const char *line, size_t n) {
  const struct timespec at_once = {0};
  sigset_t broken, was, pending;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken, &was);
  const bool had = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
  if (write(STDERR_FILENO, line, n) < 0 && errno == EPIPE && !had)
    sigtimedwait(&broken, NULL, &at_once);
  pthread_sigmask(SIG_SETMASK, &was, NULL);
}

void lt_say(const char *format, ...) {
  int was = errno;
  char line[512] = "lanetrace: ";
  size_t n = strlen(line);
  va_list args;
  va_start(args, format);
  int m = vsnprintf(line + n, sizeof line - n - 1, format, args);
  va_end(args);
  if (m > 0)
    n += (size_t)m < sizeof line - n - 1 ? (size_t)m : sizeof line - n - 2;
  // A setting or a request may hold anything; what is said is one line.
  for (size_t i = 0; i < n; i++)
    if ((unsigned char)line[i] < ' ' || line[i] == '\x7f')
      line[i] = '?';
  line[n++] = '\n';
  // One that cannot be said is not said: there is nobody else to tell.
  int cancel = lt_cancel_off();
  put(line, n);
  lt_cancel_back(cancel);
  errno = was;
}
