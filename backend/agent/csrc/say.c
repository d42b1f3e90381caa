// SPDX-License-Identifier: Apache-2.0

#include "say.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
  ssize_t ignored = write(STDERR_FILENO, line, n);
  (void)ignored;
  errno = was;
}
