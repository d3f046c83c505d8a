/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What is known of a socket whose owner asked for a service: where its datagrams go, and which address it is shown. */
#ifndef WEIR_PEERS_H
#define WEIR_PEERS_H

#include "maps.h"
#include "parse.h"

typedef struct bpf_sock_addr ctx_t;

static __always_inline struct socket_key socket_key_of(ctx_t *ctx, const struct addr *addr, __be16 port)
{
	return (struct socket_key){
		.cookie = bpf_get_socket_cookie(ctx), .addr = *addr, .port = port, .proto = ctx->protocol
	};
}

/*
 * Whom a socket's earlier datagrams to the same frontend were sent to, or NULL if there were none, that backend is gone, or the
 * frontend is another service's by now.
 */
static __always_inline const struct socket_peer *known_peer(const struct socket_key *key,
							    const struct frontend *frontend)
{
	const struct socket_peer *peer = bpf_map_lookup_elem(&socket_peers, key);
	const struct backend *backend;

	if (!peer)
		return NULL;
	backend = backend_at(peer->backend, peer->generation);
	return backend && backend->service == frontend->service ? peer : NULL;
}

/*
 * Forgets what was noted of an address that the socket's owner now talks to itself: what comes from there is shown as it is, and the
 * socket is nobody's business. What an AF_INET6 socket sends to an IPv4 address it may be connected to: it comes by here each time, with
 * the endpoint's address (udpv6_sendmsg() in net/ipv6/udp.c).
 */
static __always_inline void forget_peer(ctx_t *ctx, const struct socket_key *key, const bool connects, const bool v6)
{
	if (key->proto == IPPROTO_TCP) {
		bpf_sk_storage_delete(&connection_peers, ctx->sk);
		return;
	}
	if (!connects && !v6 && ctx->family != AF_INET)
		return;
	if (bpf_map_lookup_elem(&socket_peers, key))
		bpf_map_delete_elem(&socket_peers, key);
}

/* A backend, and its generation when it was chosen: it may have gone away since, and what is remembered must tell. */
struct chosen {
	__u32 backend;
	__u32 generation;
};

/*
 * Remembers which address the owner of a TCP socket believes to be connected to. It is known for as long as the socket is: in a table
 * connections would take the places of datagrams' sockets. Where the kernel has no memory for it, the backend is shown.
 */
static __always_inline void remember_connection(ctx_t *ctx, const struct socket_key *key, const struct backend *backend)
{
	struct connection_peer *peer =
		bpf_sk_storage_get(&connection_peers, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	if (peer)
		*peer = (struct connection_peer){ key->addr, backend->addr, key->port, backend->port };
}

/*
 * Remembers which address the socket's owner believes to talk to. Its datagrams may go to one backend by two frontends: what comes
 * back is most likely an answer to the latest.
 */
static __always_inline void remember_here(ctx_t *ctx, const struct socket_key *key, const struct backend *backend,
					  const struct chosen *chosen)
{
	struct socket_key back = socket_key_of(ctx, &backend->addr, backend->port);
	const struct socket_peer *known = bpf_map_lookup_elem(&socket_peers, &back);
	struct socket_peer here = {
		.addr = key->addr, .port = key->port, .backend = chosen->backend, .generation = chosen->generation
	};

	if (!known || known->port != here.port || !addr_equal(&known->addr, &here.addr, true) ||
	    known->backend != here.backend || known->generation != here.generation)
		bpf_map_update_elem(&socket_peers, &back, &here, BPF_ANY);
}

/* Remembers where the socket's datagrams go. */
static __always_inline void remember_there(const struct socket_key *key, const struct backend *backend,
					   const struct chosen *chosen)
{
	struct socket_peer there = { .addr = backend->addr,
				     .port = backend->port,
				     .backend = chosen->backend,
				     .generation = chosen->generation };

	bpf_map_update_elem(&socket_peers, key, &there, BPF_ANY);
}

#endif
