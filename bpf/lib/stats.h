/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counters by hook and reason, per CPU. */
#ifndef WEIR_STATS_H
#define WEIR_STATS_H

#include "maps.h"

static __always_inline void count(enum hook hook, enum reason reason, __u64 bytes)
{
	__u32 index = hook * REASON_COUNT + reason;
	struct counter *counter = bpf_map_lookup_elem(&counters, &index);

	if (counter) {
		counter->packets++;
		counter->bytes += bytes;
	}
}

#endif
