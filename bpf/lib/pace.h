/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a CPU has done in this tick. */
#ifndef WEIR_PACE_H
#define WEIR_PACE_H

#include "config.h"

/* This CPU's numbers, from zero on with each tick; NULL only to the verifier. */
static __always_inline struct pace *pace_now(void)
{
	__u32 first = 0, now = now_ticks();
	struct pace *pace = bpf_map_lookup_elem(&paces, &first);

	if (pace && pace->tick != now) {
		pace->tick = now;
		pace->flows = 0;
		pace->told = 0;
	}
	return pace;
}

#endif
