// SPDX-License-Identifier: Apache-2.0
//
// A driver that has every function that the agent hooks, in every variant, and does
// nothing but say what it was called with. Made from the agent's own table, so that no
// entry of it is left out.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "hooks.h"

// The arguments of a kind, as 64-bit words.
#define W(x) (uint64_t)(uintptr_t)(x)
#define W1(a) W(a)
#define W2(a, ...) W(a), W1(__VA_ARGS__)
#define W3(a, ...) W(a), W2(__VA_ARGS__)
#define W4(a, ...) W(a), W3(__VA_ARGS__)
#define W5(a, ...) W(a), W4(__VA_ARGS__)
#define W6(a, ...) W(a), W5(__VA_ARGS__)
#define W7(a, ...) W(a), W6(__VA_ARGS__)
#define W8(a, ...) W(a), W7(__VA_ARGS__)
#define W9(a, ...) W(a), W8(__VA_ARGS__)
#define W10(a, ...) W(a), W9(__VA_ARGS__)
#define W11(a, ...) W(a), W10(__VA_ARGS__)
#define PICK(a, b, c, d, e, f, g, h, i, j, k, name, ...) name
#define WORDS_(...) PICK(__VA_ARGS__, W11, W10, W9, W8, W7, W6, W5, W4, W3, W2, W1, )(__VA_ARGS__)
#define WORDS(...) WORDS_(__VA_ARGS__)

#define IS_PROC(kind) (strcmp(#kind, "proc") == 0 || strcmp(#kind, "proc_v2") == 0)
