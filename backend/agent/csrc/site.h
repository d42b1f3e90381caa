// SPDX-License-Identifier: Apache-2.0
//
// Where in the program an allocation comes from: the first frame of the stack that
// is neither the agent nor CUDA nor a known allocator, as module, symbol, offset
// and build id. Under a caching allocator, whose frames all look alike, the innermost
// range of the thread is a part of the site.
#ifndef LANETRACE_AGENT_SITE_H
#define LANETRACE_AGENT_SITE_H

#include <stdint.h>

// lt_site is the calling site's name in the ring's table, 0 when it cannot be told.
// It walks at most 48 frames with the unwinder of libgcc_s.so.1, which is opened at
// the first allocation and not linked (frame pointers cannot be relied on; without
// that library there are no sites, said once), and stops at the site. A text is
// resolved once for each site.
uint32_t lt_site(void);

#endif
