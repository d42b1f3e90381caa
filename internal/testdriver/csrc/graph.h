// SPDX-License-Identifier: Apache-2.0
//
// What captures and graphs share.
#ifndef LT_GRAPH_H
#define LT_GRAPH_H

#include "internal.h"

struct node {
  struct obj o;
  struct graph *graph;
  int type;
  struct work w;
  struct nodeset deps;
  void **params; // of a kernel node, pointing into w's block; made when asked for
};

struct graph {
  struct obj o;
  struct nodeset nodes; // in an order in which they may run
  bool capturing;       // belongs to a capture: nobody else may end it
};

bool nodeset_union(struct nodeset *to, const struct nodeset *from);
struct graph *graph_new(void);
void graph_free(struct graph *g);
// node_new takes over w if it succeeds.
struct node *node_new(struct graph *g, int type, struct work *w, const struct nodeset *deps);

#endif
