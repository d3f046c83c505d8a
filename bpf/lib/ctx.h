/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the contexts of XDP and tc have in common. Included by ctx_xdp.h and ctx_tc.h, which say what a ctx_t is. */
#ifndef WEIR_CTX_H
#define WEIR_CTX_H

/* In front of a packet that XDP translated and passed up: tc leaves it alone. */
struct handover {
	__u32 magic;
};
#define HANDOVER_MAGIC 0x77656972

static __always_inline struct cursor ctx_cursor(const ctx_t *ctx)
{
	void *data = (void *)(long)ctx->data;

	return (struct cursor){ .start = data, .pos = data, .end = (void *)(long)ctx->data_end };
}

#endif
