/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * ICMP errors about packets of flows: they quote a packet as the one who sends the error saw it, and are told to the one who
 * sent it as that one knows it. Path MTU discovery needs this. For tc; to XDP they are not transport.
 */
#ifndef WEIR_ICMP_H
#define WEIR_ICMP_H

#include "ctx_tc.h"
#include "nat.h"

/* Headers that a quoted packet may have between IP and transport. */
#define QUOTED_EXTENSIONS 4

/* What an error becomes. */
struct error_turn {
	struct addr from;	/* who tells */
	struct addr to;		/* who is told */
	struct addr quoted_src; /* of the packet that is told of */
	struct addr quoted_dst;
	__be16 quoted_sport; /* BE */
	__be16 quoted_dport; /* BE */
	bool forward;	     /* the host's stack would take it for a martian */
	bool untold;	     /* its client does better without */
};

/* Whether a packet is a whole one of ICMP. */
static __always_inline bool is_icmp(const struct packet *p, const bool v6)
{
	return p->proto == (v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP) && !p->piece;
}

static __always_inline bool is_icmp_error(__u8 type, const bool v6)
{
	if (v6)
		return type >= ICMPV6_DEST_UNREACH && type <= ICMPV6_PARAMPROB;
	return type == ICMP_DEST_UNREACH || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETERPROB;
}

/* Whether an error says that nobody is where a packet was sent; with other codes it is somebody's word. */
static __always_inline bool is_nobody_there(const struct icmp_header *icmp, const bool v6)
{
	if (v6)
		return icmp->type == ICMPV6_DEST_UNREACH &&
		       (icmp->code == ICMPV6_NOROUTE || icmp->code == ICMPV6_ADDR_UNREACH);
	return icmp->type == ICMP_DEST_UNREACH && icmp->code <= ICMP_HOST_UNREACH;
}

/* Reads the quoted IP header. Returns the offset behind it, or a negative reason. */
static __always_inline int quoted_ipv4(ctx_t *ctx, struct packet *quoted)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(ctx, quoted->l3, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return -REASON_MALFORMED;
	if (ip.frag_off & bpf_htons(IP_OFFSET_MASK))
		return -REASON_FRAGMENT;
	quoted->src.word[2] = quoted->dst.word[2] = IPV4_MAPPED_PREFIX;
	quoted->src.word[3] = ip.saddr;
	quoted->dst.word[3] = ip.daddr;
	quoted->proto = ip.protocol;
	return quoted->l3 + ip.ihl * 4;
}

/* The same with extension headers. */
static __always_inline int quoted_ipv6(ctx_t *ctx, struct packet *quoted)
{
	struct ipv6hdr ip;
	__u32 at = quoted->l3 + sizeof(ip);

	if (bpf_skb_load_bytes(ctx, quoted->l3, &ip, sizeof(ip)) || ip.version != 6)
		return -REASON_MALFORMED;
	__builtin_memcpy(&quoted->src, &ip.saddr, sizeof(quoted->src));
	__builtin_memcpy(&quoted->dst, &ip.daddr, sizeof(quoted->dst));
	quoted->proto = ip.nexthdr;
	for (int i = 0; i < QUOTED_EXTENSIONS && !is_transport(quoted->proto); i++) {
		struct fragment_header extension;

		if (bpf_skb_load_bytes(ctx, at, &extension, sizeof(extension)))
			return -REASON_MALFORMED;
		switch (quoted->proto) {
		case IPPROTO_FRAGMENT:
			if (extension.offset & bpf_htons(IPV6_OFFSET_MASK))
				return -REASON_FRAGMENT;
			at += sizeof(extension);
			break;
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
			/* The second byte of each is its length. */
			at += (extension.reserved + 1) * 8;
			break;
		default:
			return -REASON_NOT_TRANSPORT;
		}
		quoted->proto = extension.next;
	}
	return at;
}

/* Reads the ends of the packet that an error quotes, and whether nobody is there. Returns 0 or a negative reason. */
static __always_inline int parse_quoted(ctx_t *ctx, const struct packet *p, struct packet *quoted, bool *nobody,
					const bool v6)
{
	struct icmp_header icmp;
	__be16 ports[2];
	int at;

	if (bpf_skb_load_bytes(ctx, p->l4, &icmp, sizeof(icmp)))
		return -REASON_MALFORMED;
	if (!is_icmp_error(icmp.type, v6))
		return -REASON_NOT_TRANSPORT;
	*nobody = is_nobody_there(&icmp, v6);
	quoted->l3 = p->l4 + sizeof(icmp);
	at = v6 ? quoted_ipv6(ctx, quoted) : quoted_ipv4(ctx, quoted);
	if (at < 0)
		return at;
	/* To somebody else than who has sent that: turned, it would get past what filters by whom it is to. */
	if (!is_transport(quoted->proto) || !addr_equal(&p->dst, &quoted->src, v6))
		return -REASON_NOT_TRANSPORT;
	if (bpf_skb_load_bytes(ctx, at, ports, sizeof(ports)))
		return -REASON_MALFORMED;
	quoted->l4 = at;
	quoted->sport = ports[0];
	quoted->dport = ports[1];
	return 0;
}

/*
 * The flow whose answer an error quotes: to be told to the backend, if that is on another node in this one's name. Returns whether there
 * is one.
 */
static __always_inline bool turn_to_backend(const struct packet *p, const struct packet *quoted,
					    struct error_turn *turn, const struct config *config, const bool v6)
{
	const struct flow *flow;
	const struct backend *backend;
	union flow_key key;

	if (!may_be_frontend(&quoted->src, quoted->sport, quoted->proto))
		return false;
	turned_key(&key, quoted, v6);
	flow = flow_at(&key, STAGE_ANY, v6);
	backend = flow ? backend_at(flow->backend, flow->generation) : NULL;
	if (!flow || !backend)
		return false;
	turn->forward = flow->flags & (FLOW_SNAT | FLOW_DIRECT);
	turn->from = turn->forward ? *source_of(config, flow->flags, v6) : p->src;
	turn->to = turn->quoted_src = backend->addr;
	turn->quoted_sport = backend->port;
	turn->quoted_dst = quoted->dst;
	turn->quoted_dport = flow->snat_port ?: quoted->dport;
	if (flow->flags & FLOW_SNAT)
		turn->quoted_dst = turn->from;
	return true;
}

/*
 * Whether a SYN that did not reach its backend goes to another one when it comes again (ADR 21), as far as is known: endpoints may be others than its
 * client's. A client that is told of the first gives up at once (tcp_v4_err() in net/ipv4/tcp_ipv4.c).
 */
static __always_inline bool goes_elsewhere(const struct reply *reply, __u8 proto)
{
	const struct backend *backend = lookup_by(&backends, reply->backend);
	const struct service *service;

	if (proto != IPPROTO_TCP || !reply->asked || reply->flags & FLOW_ALONE || !backend)
		return false;
	service = bpf_map_lookup_elem(&services, &backend->service);
	/* One that is gone is not among them. */
	return service && service->endpoints > (backend->generation == reply->generation);
}

/* The flow of which an error quotes a packet on its way to the backend: to be told to the client. Returns whether there is one. */
static __always_inline bool turn_to_client(const struct packet *quoted, struct error_turn *turn, bool nobody, bool snat,
					   const bool v6)
{
	const struct reply *reply;
	union flow_key key;

	turned_key(&key, quoted, v6);
	reply = reply_at(&key, STAGE_ANY, v6);
	if (!reply || !(reply->flags & FLOW_SNAT) == snat || is_lent(reply))
		return false;
	turn->forward = snat;
	turn->untold = nobody && goes_elsewhere(reply, quoted->proto);
	turn->from = turn->quoted_dst = reply->frontend;
	turn->to = turn->quoted_src = reply->client;
	turn->quoted_sport = reply->client_port;
	turn->quoted_dport = reply->frontend_port;
	return true;
}

/* Replaces an address of the quoted packet. Nothing is covered by two checksums at once but what evens itself out. Returns 0 or an error. */
static __always_inline long requote_addr(ctx_t *ctx, const struct packet *quoted, __u32 check, const bool source,
					 const struct addr *addr, const bool v6)
{
	const struct addr *old = source ? &quoted->src : &quoted->dst;
	long error;

	if (v6) {
		__u32 field = source ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr);
		__s64 diff = bpf_csum_diff((__be32 *)old, sizeof(*old), (__be32 *)addr, sizeof(*addr), 0);

		error = bpf_l4_csum_replace(ctx, check, 0, diff, 0);
		return error ?: bpf_skb_store_bytes(ctx, quoted->l3 + field, addr, sizeof(*addr), 0);
	}
	__u32 field = source ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr);
	__be32 from = old->word[3], to = addr->word[3];

	/* The quoted header's own checksum changes by as much as the address, so that ICMP's stays. */
	error = bpf_l3_csum_replace(ctx, quoted->l3 + offsetof(struct iphdr, check), from, to, sizeof(to));
	return error ?: bpf_skb_store_bytes(ctx, quoted->l3 + field, &to, sizeof(to), 0);
}

/* Replaces a port of the quoted packet, whose own checksum is left alone: nobody can verify it in a packet that was cut. Returns 0 or an error. */
static __always_inline long requote_port(ctx_t *ctx, const struct packet *quoted, __u32 check, const bool source,
					 __be16 port)
{
	__u32 field = quoted->l4 + (source ? offsetof(struct udphdr, source) : offsetof(struct udphdr, dest));
	__be16 old = source ? quoted->sport : quoted->dport;
	long error = bpf_l4_csum_replace(ctx, check, old, port, sizeof(port));

	return error ?: bpf_skb_store_bytes(ctx, field, &port, sizeof(port), 0);
}

/* Writes what the error becomes, one hop older where it leaves again. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int turn_error(ctx_t *ctx, const struct packet *p, const struct packet *quoted,
				      const struct error_turn *turn, const bool v6)
{
	__u32 check = p->l4 + offsetof(struct icmp_header, checksum);
	long error = requote_addr(ctx, quoted, check, true, &turn->quoted_src, v6);

	error = error ?: requote_addr(ctx, quoted, check, false, &turn->quoted_dst, v6);
	error = error ?: requote_port(ctx, quoted, check, true, turn->quoted_sport);
	error = error ?: requote_port(ctx, quoted, check, false, turn->quoted_dport);
	/* Of IPv4 its checksum covers no address. */
	if (v6)
		error = error
				?: bpf_l4_csum_replace(ctx, check, 0, ends_diff(p, &turn->from, &turn->to, v6),
						       BPF_F_PSEUDO_HDR);
	if (error)
		return -REASON_REWRITE_FAILED;
	return v6 ? rewrite_ip6(ctx, p, &turn->from, &turn->to, turn->forward)
		  : rewrite_ip4(ctx, p, &turn->from, &turn->to, turn->forward);
}

/* Sends an error on. Sets p->action if the host's stack must not see it. Returns a reason. */
static __always_inline int tell(ctx_t *ctx, struct packet *p, const struct packet *quoted,
				const struct error_turn *turn, const bool v6)
{
	struct ends to = { .src = turn->from, .dst = turn->to };
	struct bpf_fib_lookup fib = {};
	int error = turn->forward ? route_find(ctx, p, &to, &fib, v6) : 0;

	error = error ?: turn_error(ctx, p, quoted, turn, v6);
	if (error)
		return -error;
	if (!turn->forward)
		return REASON_ERROR_TOLD;
	p->action = bpf_redirect_neigh(fib.ifindex, NULL, 0, 0);
	return REASON_ERROR_TOLD;
}

/*
 * An ICMP packet. in: on its way into the node from an interface; else out of one. Returns a reason; p->action is set if the
 * packet goes elsewhere than up.
 */
static __always_inline int icmp(ctx_t *ctx, struct packet *p, const bool in, const bool v6)
{
	const struct config *config = config_get();
	struct packet quoted = {};
	struct error_turn turn = {};
	bool ours, nobody = false;
	int error = parse_quoted(ctx, p, &quoted, &nobody, v6);

	if (error)
		return -error;
	ours = in ? turn_to_backend(p, &quoted, &turn, config, v6) : turn_to_client(&quoted, &turn, nobody, false, v6);
	/* The node's own ports are looked at last: most errors are about a client's packet or an answer. */
	if (!ours && in)
		ours = turn_to_client(&quoted, &turn, nobody, true, v6);
	if (ours && turn.untold)
		return REASON_STALE;
	return ours ? tell(ctx, p, &quoted, &turn, v6) : REASON_NOT_TRANSPORT;
}

/* Functions of their own: few packets are errors. */
__noinline int icmp4(ctx_t *ctx, struct packet *p, bool in)
{
	return p ? icmp(ctx, p, in, false) : REASON_MALFORMED;
}

__noinline int icmp6(ctx_t *ctx, struct packet *p, bool in)
{
	return p ? icmp(ctx, p, in, true) : REASON_MALFORMED;
}

#endif
