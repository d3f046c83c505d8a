/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * From a frontend to the backend of a new flow, the same for packets and sockets: who may, who keeps what it has, and a
 * selection for everybody else.
 */
#ifndef WEIR_CHOOSE_H
#define WEIR_CHOOSE_H

#include "affinity.h"
#include "select.h"
#include "service.h"

/*
 * A backend may go away while it is selected. Its reference has changed by then: the second attempt finds another. Where one
 * is to be avoided, each attempt is a new draw, of the tier as always and of the other one in turns.
 */
#define SELECT_ATTEMPTS 32

/* What a new flow asks for, and what it gets. */
struct request {
	struct addr client; /* zero, if the node has no address of the family: no affinity, and in no source range */
	__u64 hash;	    /* of the flow */
	__u32 service;	    /* index into services */
	__u32 backend;	    /* index into backends, in: one that does not answer, or 0; out: what it gets */
	__u32 generation;   /* of the backend */
	__u8 kind;	    /* enum frontend_kind */
	__u8 class;	    /* enum traffic_class */
	__u8 unsure;	    /* enum unsure */
};

/* Of a flow that no table may know when its next packet comes, or may have known when an earlier one came. */
enum unsure {
	UNSURE_BY_HASH = 1,	 /* nothing but the hash decides, which is the same for both packets */
	UNSURE_KEEP_NOTHING = 2, /* its client may not be there: what it keeps is noted when the flow goes on */
};

/* Whether a flow of a backend counts among those that have gone on as soon as it begins: no packet will tell that it does. */
static __always_inline bool goes_on_at_once(const struct backend *backend, bool by_socket)
{
	return backend->proto == IPPROTO_UDP || by_socket;
}

/* Counts a new flow of a backend. Of one that begins at a socket no packet will tell that it ends. */
static __always_inline void count_flow(__u32 id, const struct backend *backend, bool by_socket)
{
	struct backend_counters *counters = bpf_map_lookup_elem(&backend_counters, &id);

	if (!counters)
		return;
	__sync_fetch_and_add(&counters->flows, 1);
	if (goes_on_at_once(backend, by_socket))
		__sync_fetch_and_add(&counters->gone_on, 1);
	else
		__sync_fetch_and_add(&counters->balance, 1);
}

/* Counts a new flow of a service. */
static __always_inline void count_selection(__u32 service, const struct backend *backend, bool by_socket)
{
	struct service_counters *counters = bpf_map_lookup_elem(&service_counters, &service);
	const bool local = backend->flags & BACKEND_LOCAL;

	if (!counters)
		return;
	__sync_fetch_and_add(local ? &counters->local : &counters->remote, 1);
	if (goes_on_at_once(backend, by_socket))
		__sync_fetch_and_add(local ? &counters->local_gone_on : &counters->remote_gone_on, 1);
}

/* Counts a connection that goes on, of its service if that is asked for. One whose backend is gone by now was another's. */
static __always_inline void count_gone_on(const struct flow *flow, bool of_service)
{
	const struct backend *backend = backend_at(flow->backend, flow->generation);
	struct backend_counters *counters;
	struct service_counters *service;

	if (!backend || backend->proto == IPPROTO_UDP)
		return;
	counters = lookup_by(&backend_counters, flow->backend);
	if (counters) {
		__sync_fetch_and_add(&counters->gone_on, 1);
		__sync_fetch_and_add(&counters->going, 1);
	}
	service = of_service ? lookup_by(&service_counters, flow->service) : NULL;
	if (service)
		__sync_fetch_and_add(
			backend->flags & BACKEND_LOCAL ? &service->local_gone_on : &service->remote_gone_on, 1);
}

/* Not counted by choose(): XDP leaves some refusals to tc. */
static __always_inline void count_refusal(__u32 service, enum reason reason)
{
	struct service_counters *counters = bpf_map_lookup_elem(&service_counters, &service);

	if (counters)
		__sync_fetch_and_add(reason == REASON_NO_ENDPOINTS ? &counters->rejected : &counters->dropped, 1);
}

/*
 * Whether a client gets the node's address where its own would do, because kube-proxy would have it so. The node must have
 * one of the family.
 */
static __always_inline bool masquerades(const struct config *config, const struct request *request, bool from_outside,
					const bool v6)
{
	const struct service *service;

	if (!is_set(v6 ? &config->node6 : &config->node4))
		return false;
	if (request->kind == KIND_CLUSTER_IP)
		return config->flags & (from_outside ? CONFIG_MASQUERADE_EXTERNAL : CONFIG_MASQUERADE_ALL);
	if (!(config->flags & CONFIG_MASQUERADE_EXTERNAL))
		return false;
	service = lookup_by(&services, request->service);
	return service && !(service->flags & SERVICE_EXTERNAL_LOCAL);
}

/* Nodes that share a service's flows hash them alike. All others have a seed each, which no client can guess. */
static __always_inline __u64 flow_seed(const struct config *config, const struct frontend *frontend)
{
	const struct service *service = bpf_map_lookup_elem(&services, &frontend->service);

	return service && service->flags & SERVICE_MAGLEV ? MAGLEV_SEED : config->hash_seed;
}

/*
 * Whether a client may ask a service at a frontend of a kind: it is in one of the service's loadBalancerSourceRanges, if they are for those and it has
 * any. A function of its own, for the stack's sake.
 */
__noinline int is_in_ranges(__u32 kind, __u32 index, const struct addr *client)
{
	const struct service *service;
	struct source_range_key key;

	if (!client || kind != KIND_LOAD_BALANCER)
		return client != NULL;
	service = lookup_by(&services, index);
	if (!service || !(service->flags & SERVICE_SOURCE_RANGES))
		return service != NULL;
	key = (struct source_range_key){ .prefixlen = 160, .service = index, .client = *client };
	return bpf_map_lookup_elem(&source_ranges, &key) != NULL;
}

/*
 * Whether a backend is there for a new flow, and its generation. Of one that goes the flags change before the generation, which would be that of
 * nobody otherwise.
 */
static __always_inline bool is_there(const struct backend *backend, __u32 *generation)
{
	*generation = *(const volatile __u32 *)&backend->generation;
	return *(const volatile __u8 *)&backend->flags & BACKEND_USED;
}

/* Gives a backend to the request. Returns whether it is there. */
static __always_inline bool take(struct request *request, __u32 id)
{
	const struct backend *backend = bpf_map_lookup_elem(&backends, &id);

	if (!backend || !is_there(backend, &request->generation))
		return false;
	request->backend = id;
	return true;
}

/*
 * To avoid a backend it draws anew each time, and either tier has its chance; open flows do not count then, as who answers nobody has the fewest. A
 * function of its own, which the verifier walks once for all attempts. Returns as select_backend.
 */
__noinline int select_again(const struct request *request, __u32 attempt)
{
	const struct service *service;
	__u32 class;
	__u64 hash;
	bool other = false, by_hash;

	if (!request)
		return -REASON_BROKEN_TABLE;
	class = request->class;
	hash = request->hash;
	by_hash = request->unsure & UNSURE_BY_HASH;
	service = lookup_by(&services, request->service);
	if (!service || class >= CLASS_COUNT)
		return -REASON_BROKEN_TABLE;
	if (request->backend) {
		hash = random_hash();
		other = (attempt ^ request->hash >> 20 ^ request->backend) & 1;
		by_hash = true;
	}
	return select_backend(service, class, hash, other, by_hash);
}

/*
 * The hash by which a client with affinity is selected for. Where nodes share its flows it is the same at all of them; where no table
 * may tell what it got, its other flows that begin now must get the same. past: affinity_past().
 */
static __always_inline __u64 hash_of_client(const struct request *request, const struct service *service, __u32 past)
{
	const struct config *config = config_get();

	if (service->flags & SERVICE_MAGLEV)
		return client_hash(MAGLEV_SEED, &request->client);
	if (request->unsure & UNSURE_BY_HASH)
		return client_hash(config->hash_seed ^ past ^ (__u64)request->service << 32, &request->client);
	return request->hash;
}

/*
 * Chooses a backend for a new flow, the one to avoid only if there is no other. A function of its own, for the stack's sake.
 * Returns 0, -REASON_SOURCE_RANGE, -REASON_NO_ENDPOINTS, -REASON_NO_LOCAL_ENDPOINTS or -REASON_BROKEN_TABLE.
 */
__noinline int choose(struct request *request)
{
	const struct service *service;
	struct affinity_key key;
	__u32 class, kept;
	bool keeps;

	if (!request)
		return -REASON_BROKEN_TABLE;
	class = request->class;
	service = lookup_by(&services, request->service);
	if (!service)
		return -REASON_BROKEN_TABLE;
	if (!is_in_ranges(request->kind, request->service, &request->client))
		return -REASON_SOURCE_RANGE;
	keeps = service->affinity && is_set(&request->client);
	key = (struct affinity_key){ .client = request->client, .service = request->service };
	if (keeps) {
		kept = affinity_find(&key, class, service->affinity);
		/* Who is silent may be the one that is kept, and may have been left before the one that is now. */
		if (kept && !request->backend && take(request, kept))
			return 0;
		/* Until that is noted nothing else tells what the client's other flows got. */
		if (request->unsure & UNSURE_KEEP_NOTHING)
			request->unsure |= UNSURE_BY_HASH;
		request->hash = hash_of_client(request, service, affinity_past(&key, service->affinity));
		/* A SYN may have been lost on its way: the client keeps what it has. */
		keeps = !request->backend && !(request->unsure & UNSURE_KEEP_NOTHING);
	}
	for (__u32 attempt = 0; attempt < SELECT_ATTEMPTS; attempt++) {
		int selected = select_again(request, attempt);

		if (selected < 0)
			return selected;
		if ((__u32)selected == request->backend && attempt < SELECT_ATTEMPTS - 1)
			continue;
		if (take(request, selected)) {
			if (keeps)
				affinity_store(&key, request->backend, request->generation, now_ticks());
			return 0;
		}
	}
	return -REASON_BROKEN_TABLE;
}

#endif
