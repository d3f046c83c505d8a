/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the contexts of XDP and tc have in common. Included by ctx_xdp.h and ctx_tc.h, which say what a ctx_t is. */
#ifndef WEIR_CTX_H
#define WEIR_CTX_H

enum handover_kind {
	HANDOVER_NONE = 0,
	HANDOVER_DONE = 1,   /* its new destination may be a frontend itself, which tc must not translate again */
	HANDOVER_TO_POD = 2, /* tc sends it on to the pod, past the host's stack */
};

/* A packet's two ends after translation. */
struct ends {
	struct addr src;
	struct addr dst;
	__be16 sport;
	__be16 dport;
};

/* In front of a packet that XDP translated and passed up. */
struct handover {
	__u32 magic;
	__u32 kind; /* enum handover_kind */
};
#define HANDOVER_MAGIC 0x77656972

/* Where parsing begins. */
static __always_inline struct cursor ctx_cursor(const ctx_t *ctx)
{
	void *data = (void *)(long)ctx->data;

	return (struct cursor){ .start = data, .pos = data, .end = (void *)(long)ctx->data_end };
}

/* The link header, or NULL: it is not there. */
static __always_inline struct ethhdr *ctx_eth(const ctx_t *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	return (void *)(eth + 1) > (void *)(long)ctx->data_end ? NULL : eth;
}

#endif
