// SPDX-License-Identifier: Apache-2.0
//
// Patterns of ranges, by themselves: reads lines "pattern|text" and prints whether they
// match and what the first * stood for.
#include "steps.c"

#include <stdio.h>

int main(void) {
  char line[4096];
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    char *text = strchr(line, '|');
    if (text == NULL)
      return 1;
    *text++ = '\0';
    size_t from, to;
    if (match(line, strlen(line), text, strlen(text), &from, &to))
      printf("yes %.*s\n", (int)(to - from), text + from);
    else
      printf("no\n");
  }
  return 0;
}
