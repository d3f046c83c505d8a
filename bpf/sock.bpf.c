/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * cgroup hooks for the sockets of processes on the host, and for the TCP of pods that the agent names: a connection is
 * translated once, when it is made. All others are let through; the interface that they are behind serves them.
 */
#include <linux/bpf.h>
#include <linux/in.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/choose.h"
#include "lib/peers.h"
#include "lib/stats.h"

/* Verdicts, and what of those that lead to one says that there is none yet. */
#define ALLOW 1
#define REFUSE 0
#define UNDECIDED (-1)
#define ERROR_CONNECTION_REFUSED (-111)
#define ERROR_HOST_UNREACHABLE (-113)

/* Levels below the root of cgroups where a pod's may be: a node's, kubelet's, kubepods, a class, the pod, and spare. */
#define POD_LEVELS 8
/*
 * Levels below a pod's where its processes are: a container's, and one that it divides itself into. What is deeper may be a container in a
 * container, with a network of its own.
 */
#define CONTAINER_LEVELS 2

/* The address that the caller gave; of an AF_INET6 socket it may be a v4-mapped one. */
static __always_inline struct addr user_addr(const ctx_t *ctx, const bool v6)
{
	if (v6)
		return (struct addr){ { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] } };
	return (struct addr){ { 0, 0, IPV4_MAPPED_PREFIX, ctx->user_ip4 } };
}

static __always_inline void set_user_addr(ctx_t *ctx, const struct addr *addr, __be16 port, const bool v6)
{
	if (v6) {
		ctx->user_ip6[0] = addr->word[0];
		ctx->user_ip6[1] = addr->word[1];
		ctx->user_ip6[2] = addr->word[2];
		ctx->user_ip6[3] = addr->word[3];
	} else {
		ctx->user_ip4 = addr->word[3];
	}
	ctx->user_port = port;
}

/* The pod that the calling process is in, if its sockets are translated, else NULL. Its containers are groups below. */
static __always_inline const struct hooked_pod *calling_pod(void)
{
#pragma unroll
	for (int level = 1; level <= POD_LEVELS; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);
		const struct hooked_pod *pod;

		if (!id)
			return NULL;
		pod = bpf_map_lookup_elem(&hooked_pods, &id);
		if (pod)
			return bpf_get_current_ancestor_cgroup_id(level + CONTAINER_LEVELS + 1) ? NULL : pod;
	}
	return NULL;
}

/* Whose socket it is, and what for. */
struct caller {
	const struct addr *client; /* NULL: packets are translated, if anything is */
	bool is_pod;
	bool connects; /* or sends */
};

/*
 * On the host the client is the node. A pod's own address is what its packets would come from; without one of the family
 * they reach no service. Its loopback is not the node's, and its datagrams need no hook.
 */
static __always_inline struct caller caller_of(ctx_t *ctx, const struct config *config, const struct addr *to,
					       const bool connects, const bool v6)
{
	struct caller caller = { .client = v6 ? &config->node6 : &config->node4, .connects = connects };
	const struct hooked_pod *pod;

	if (bpf_get_netns_cookie(ctx) == config->netns_cookie)
		return caller;
	caller.is_pod = true;
	caller.client = NULL;
	if (!connects || ctx->protocol != IPPROTO_TCP || !(config->flags & CONFIG_POD_SOCKETS) || is_loopback(to, v6))
		return caller;
	if (!may_be_frontend(to, ctx->user_port, IPPROTO_TCP) && !may_be_frontend(to, 0, 0))
		return caller;
	pod = calling_pod();
	if (pod && is_set(v6 ? &pod->addr6 : &pod->addr4))
		caller.client = v6 ? &pod->addr6 : &pod->addr4;
	return caller;
}

/*
 * The hash of what a socket asks for. Its number stands in for the address and port that it does not have yet. One whose connection was refused
 * may be connected again, as a flow of its own: it is not to be refused by the same endpoint each time.
 */
static __always_inline __u64 socket_hash(const struct socket_key *key, const struct config *config, const bool v6)
{
	struct packet p = { .src.word = { key->cookie >> 32, key->cookie, key->cookie >> 32, key->cookie },
			    .dst = key->addr,
			    .dport = key->port,
			    .proto = key->proto };

	if (key->proto == IPPROTO_TCP)
		return random_hash();
	return flow_hash(config->hash_seed, &p, v6);
}

/* What a socket asks for. */
static __always_inline struct request request_of(const struct frontend *frontend, const struct socket_key *key,
						 const struct addr *client, const struct config *config, const bool v6)
{
	return (struct request){
		.client = *client,
		.hash = socket_hash(key, config, v6),
		.service = frontend->service,
		.kind = frontend->kind,
		.class = traffic_class_of(frontend, false),
	};
}

/* Counts a reason for which a socket is refused. Returns REFUSE with an errno set. */
static __always_inline int refuse(int reason)
{
	count(HOOK_SOCKET, reason, 0);
	if (reason == REASON_NO_ENDPOINTS || reason == REASON_UNUSED_PORT)
		bpf_set_retval(ERROR_CONNECTION_REFUSED);
	else
		bpf_set_retval(ERROR_HOST_UNREACHABLE);
	return REFUSE;
}

/*
 * Chooses a backend for a socket. Returns UNDECIDED with the one that was chosen, ALLOW if its packets are to be translated or its address is no
 * frontend any more, or REFUSE with an errno set.
 */
static __always_inline int socket_choose(const struct config *config, const struct socket_key *key,
					 const struct caller *caller, const struct frontend *frontend,
					 struct chosen *chosen, const bool service_v6)
{
	struct request request = request_of(frontend, key, caller->client, config, service_v6);
	int error;

	/* A socket keeps its pod's address; a packet can be given the node's. */
	if (caller->is_pod && masquerades(config, &request, false, service_v6))
		return ALLOW;
	error = choose(&request);
	if (!error) {
		*chosen = (struct chosen){ request.backend, request.generation };
		return UNDECIDED;
	}
	/* Nobody asks again for a socket: whoever serves the address by now has it. */
	if (!frontend_lookup(&key->addr, key->port, key->proto, service_v6))
		return ALLOW;
	count_refusal(request.service, -error);
	return refuse(-error);
}

/* Notes which backend a socket has got, or had already, and counts it if it is new. */
static __always_inline void remember(ctx_t *ctx, const struct socket_key *key, __u32 service,
				     const struct backend *backend, const struct chosen *chosen, bool is_new)
{
	if (is_new) {
		count_selection(service, backend, true);
		count_flow(chosen->backend, backend, true);
	}
	if (key->proto == IPPROTO_TCP) {
		remember_connection(ctx, key, backend);
		return;
	}
	remember_here(ctx, key, backend, chosen);
	if (is_new)
		remember_there(key, backend, chosen);
}

/*
 * Where a socket connects or sends to. service_v6 is the family of the frontend, v6 that of the socket. Returns ALLOW, or REFUSE with an errno set.
 */
static __always_inline int translate(ctx_t *ctx, const struct config *config, const struct socket_key *key,
				     const struct caller *caller, const bool service_v6, const bool v6)
{
	const struct frontend *frontend = frontend_lookup(&key->addr, key->port, key->proto, service_v6);
	const struct socket_peer *known;
	const struct backend *backend;
	struct chosen chosen = {};
	int verdict;

	if (!frontend && is_cluster_ip(&key->addr, service_v6)) {
		/* A Service's ports are written before its address as such: this one may have come between the two looks. */
		frontend = frontend_lookup(&key->addr, key->port, key->proto, service_v6);
		if (!frontend)
			return refuse(REASON_UNUSED_PORT);
	}
	if (!frontend) {
		forget_peer(ctx, key, caller->connects, v6);
		count(HOOK_SOCKET, REASON_NO_FRONTEND, 0);
		return ALLOW;
	}
	known = key->proto == IPPROTO_UDP ? known_peer(key, frontend) : NULL;
	if (known) {
		chosen = (struct chosen){ known->backend, known->generation };
	} else {
		verdict = socket_choose(config, key, caller, frontend, &chosen, service_v6);
		if (verdict != UNDECIDED)
			return verdict;
	}
	backend = bpf_map_lookup_elem(&backends, &chosen.backend);
	if (!backend)
		return refuse(REASON_BROKEN_TABLE);
	remember(ctx, key, frontend->service, backend, &chosen, !known);
	set_user_addr(ctx, &backend->addr, backend->port, v6);
	count(HOOK_SOCKET, backend->flags & BACKEND_LOCAL ? REASON_TO_LOCAL : REASON_TO_REMOTE, 0);
	return ALLOW;
}

/* forward_socket() to an address of either family, of the same socket. */
static __always_inline int forward_family(ctx_t *ctx, struct addr *to, const bool connects, const bool service_v6,
					  const bool v6)
{
	const struct config *config = config_get();
	struct socket_key key;
	struct caller caller;

	any_to_loopback(to, service_v6);
	caller = caller_of(ctx, config, to, connects, service_v6);
	if (!caller.client)
		return ALLOW;
	key = socket_key_of(ctx, to, ctx->user_port);
	return translate(ctx, config, &key, &caller, service_v6, v6);
}

/* connect() and sendto(). Returns ALLOW, or REFUSE with an errno set. */
static __always_inline int forward_socket(ctx_t *ctx, const bool connects, const bool v6)
{
	struct addr to;

	if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP)
		return ALLOW;
	to = user_addr(ctx, v6);
	if (v6 && !is_mapped(&to))
		return forward_family(ctx, &to, connects, true, v6);
	return forward_family(ctx, &to, connects, false, v6);
}

/* Shows a frontend to the caller. Returns ALLOW. */
static __always_inline int show(ctx_t *ctx, const struct addr *addr, __be16 port, const bool v6)
{
	set_user_addr(ctx, addr, port, v6);
	count(HOOK_SOCKET, REASON_BACK, 0);
	return ALLOW;
}

/* recvfrom() and getpeername() of a socket that sends datagrams: shows the frontend that the caller knows. Always ALLOW. */
static __always_inline int back_socket(ctx_t *ctx, const bool v6)
{
	struct addr addr = user_addr(ctx, v6);
	struct socket_key key = socket_key_of(ctx, &addr, ctx->user_port);
	const struct socket_peer *peer = bpf_map_lookup_elem(&socket_peers, &key);

	return peer ? show(ctx, &peer->addr, peer->port, v6) : ALLOW;
}

/* The same of any socket: getpeername(). Always ALLOW. */
static __always_inline int peer_name(ctx_t *ctx, const bool v6)
{
	const struct connection_peer *peer;
	struct addr addr;

	if (ctx->protocol != IPPROTO_TCP)
		return back_socket(ctx, v6);
	addr = user_addr(ctx, v6);
	peer = bpf_sk_storage_get(&connection_peers, ctx->sk, NULL, 0);
	/* It may have been connected elsewhere while nobody attended to it. */
	if (!peer || peer->backend_port != (__be16)ctx->user_port || !addr_equal(&peer->backend, &addr, true))
		return ALLOW;
	return show(ctx, &peer->frontend, peer->frontend_port, v6);
}

SEC("cgroup/connect4")
int weir_connect4(ctx_t *ctx)
{
	return forward_socket(ctx, true, false);
}

SEC("cgroup/connect6")
int weir_connect6(ctx_t *ctx)
{
	return forward_socket(ctx, true, true);
}

SEC("cgroup/sendmsg4")
int weir_sendmsg4(ctx_t *ctx)
{
	return forward_socket(ctx, false, false);
}

SEC("cgroup/sendmsg6")
int weir_sendmsg6(ctx_t *ctx)
{
	return forward_socket(ctx, false, true);
}

SEC("cgroup/recvmsg4")
int weir_recvmsg4(ctx_t *ctx)
{
	return back_socket(ctx, false);
}

SEC("cgroup/recvmsg6")
int weir_recvmsg6(ctx_t *ctx)
{
	return back_socket(ctx, true);
}

SEC("cgroup/getpeername4")
int weir_peername4(ctx_t *ctx)
{
	return peer_name(ctx, false);
}

SEC("cgroup/getpeername6")
int weir_peername6(ctx_t *ctx)
{
	return peer_name(ctx, true);
}

char LICENSE[] SEC("license") = "GPL";
