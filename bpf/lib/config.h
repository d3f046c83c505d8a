/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The node's configuration, and the clock. */
#ifndef WEIR_CONFIG_H
#define WEIR_CONFIG_H

#include "maps.h"

/* The configuration. The compiler does not know that it can always be read: it would read ahead, for what few packets need. */
static __always_inline const struct config *config_get(void)
{
	const struct config *config = &config_value;

	barrier_var(config);
	return config;
}

/* The seed of this node's hashes. */
static __always_inline __u64 hash_seed(void)
{
	return config_get()->hash_seed;
}

/* Whether cluster IPs come from where an address lies. */
static __always_inline bool in_service_network(const struct config *config, const struct addr *addr)
{
	for (__u32 i = 0; i < SERVICE_NETWORKS && i < config->service_networks; i++) {
		const struct network *network = &config->service_network[i];
		__be32 differs = 0;

		for (int word = 0; word < 4; word++)
			differs |= (addr->word[word] ^ network->addr.word[word]) & network->mask.word[word];
		if (!differs)
			return true;
	}
	return false;
}

/* A tick is so many jiffies, as a power of two: nearly a second. The loader says how many, as it knows how long a jiffy is. */
const volatile __u32 tick_shift = 8;

/* The tick that it is. The verifier makes a load of the kernel's jiffies; reading a clock costs 15 ns. */
static __always_inline __u32 now_ticks(void)
{
	return bpf_jiffies64() >> tick_shift;
}

/* Whether something that was last seen then has been idle for longer. Another CPU may have seen it a tick after now. */
static __always_inline bool is_idle(__u32 now, __u32 last_seen, __u32 limit)
{
	return (__s32)(now - last_seen) > (__s32)limit;
}

#endif
