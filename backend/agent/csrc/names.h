// SPDX-License-Identifier: Apache-2.0
//
// What functions and executable graphs are called. A function's name is learnt when
// the program looks it up by it; of one that was never looked up the driver is asked,
// once. Names go to the ring only when a launch of theirs is timed.
#ifndef LANETRACE_AGENT_NAMES_H
#define LANETRACE_AGENT_NAMES_H

#include <stdint.h>

// lt_function_learn: the program was given this function, or kernel handle, of a
// module or library by this name. Takes a lock.
void lt_function_learn(void *function, void *owner, const char *name);
// lt_function_same: function is the one behind kernel, and called the same.
void lt_function_same(void *function, void *kernel);
// lt_functions_forget: the module or library is about to go, and its handles may
// come again as others.
void lt_functions_forget(void *owner);

// lt_function_name is the function's name in the ring's table, 0 when nobody knows
// it. The first time it takes a lock and may ask the driver, then it is a search.
uint32_t lt_function_name(void *function);

// lt_graph_made: exec was instantiated from graph. Asks the driver how many nodes
// the graph has. lt_graph_gone: exec is about to be destroyed.
void lt_graph_made(void *exec, void *graph);
void lt_graph_gone(void *exec);

// lt_graph_name is exec's name in the ring's table, with its number and its count of
// nodes; 0 of one that was not seen being made.
uint32_t lt_graph_name(void *exec);

#endif
