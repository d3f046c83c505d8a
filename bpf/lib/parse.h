/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * From bytes to a struct packet. Pointers into a packet are compared with its end in this file, in ctx*.h and in rewrite.h; tc asks in addition whether
 * all headers are there.
 *
 * Parsers move a cursor, check their own bounds and return what follows: a protocol number, or a negative reason.
 */
#ifndef WEIR_PARSE_H
#define WEIR_PARSE_H

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

/* Address families, as the kernel's calls have them. */
#define AF_INET 2
#define AF_INET6 10
/* Two tags: what a provider bridge puts around a customer's. */
#define VLAN_DEPTH 2
/* RFC 8200 names six kinds of extension headers; each may come once, destination options twice. */
#define EXTENSION_DEPTH 7
/* Types of SCTP chunks (RFC 9260, 3.2). */
#define SCTP_INIT 1
#define SCTP_INIT_ACK 2
#define SCTP_ABORT 6
#define SCTP_SHUTDOWN_ACK 8
#define SCTP_SHUTDOWN_COMPLETE 14
/* Of an ABORT: who sends it knows no association, and its tag is that of what it answers (T, RFC 9260, 3.3.7). */
#define SCTP_REFLECTED 1
/* Offsets stay below this, so that the verifier can bound pointers made from them. */
#define HEADERS_MAX 512

#define IP_OFFSET_MASK 0x1fff
#define IP_MORE_FRAGMENTS 0x2000
#define IP_DONT_FRAGMENT 0x4000
#define IPV6_OFFSET_MASK 0xfff8
#define IPV6_MORE_FRAGMENTS 0x0001
#define IPV4_MAPPED_PREFIX bpf_htonl(0xffff)

struct vlan_header {
	__be16 tci;
	__be16 next;
};

/* What the options, routing and authentication headers have in common. */
struct extension_header {
	__u8 next;
	__u8 length;
};

struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset; /* BE */
	__be32 id;     /* BE */
};

/* Every SCTP packet has a chunk (RFC 9260, 3); here with the header of the first one. */
struct sctp_header {
	__be16 source; /* BE */
	__be16 dest;   /* BE */
	__be32 tag;
	__be32 check; /* CRC32c of the SCTP packet alone: no address is in it */
	__u8 chunk;   /* type of the first one */
	__u8 flags;
	__be16 length; /* BE */
};

/* Types of ICMP errors (RFC 792, RFC 4443), by the names of linux/icmp.h and linux/icmpv6.h, which include the C library, */
#define ICMP_DEST_UNREACH 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMPV6_DEST_UNREACH 1
#define ICMPV6_PKT_TOOBIG 2
#define ICMPV6_TIME_EXCEED 3
#define ICMPV6_PARAMPROB 4
/* and codes: of ICMP_DEST_UNREACH, */
#define ICMP_HOST_UNREACH 1
#define ICMP_PORT_UNREACH 3
#define ICMP_FRAG_NEEDED 4
/* of ICMPV6_DEST_UNREACH. */
#define ICMPV6_NOROUTE 0
#define ICMPV6_ADDR_UNREACH 3
#define ICMPV6_PORT_UNREACH 4

/* Of both families. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__be32 rest; /* BE, depends on the type: of a packet that is too big, the MTU */
};

enum piece {
	PIECE_WHOLE = 0,
	PIECE_FIRST = 1, /* of a fragmented packet, with the transport header */
	PIECE_LATER = 2, /* without */
};

/* What sent a packet past the host's stack may note of it: it was its flow's last. */
enum ending {
	ENDING_LAST4 = 2, /* of IPv4 */
	ENDING_LAST6 = 3, /* of IPv6 */
};

/* How a packet ends a connection for both sides. */
enum reset {
	RESET_NO = 0,
	RESET_LATER = 1, /* of one that there is, or of what looks like its middle */
	/*
	 * It may answer the packet that was to begin one: RST with ACK (RFC 9293, 3.10.7.1), ABORT with a tag of its receiver's (RFC 9260, 8.4).
	 * What answers a forged middle has neither.
	 */
	RESET_FIRST = 2,
};

struct packet {
	struct addr src;
	struct addr dst;
	__be16 sport;	     /* BE */
	__be16 dport;	     /* BE */
	__u16 l3;	     /* offset of the IP header */
	__u16 l4;	     /* offset of the transport header */
	__u8 proto;	     /* of what is behind the IP headers; it has ports where is_transport() */
	__u8 ttl;	     /* or hop limit */
	__u8 tos;	     /* or traffic class */
	__u8 syn;	     /* opens a connection: SYN without ACK and FIN, INIT */
	__u8 syn_ack;	     /* agrees to one: SYN with ACK, INIT ACK */
	__u8 ending;	     /* ends it: FIN, RST; ABORT, the end of a shutdown; enum ending once it was sent on */
	__u8 reset;	     /* ends it for both: RST; ABORT, the last packet of a shutdown; enum reset */
	__u8 vlan;	     /* the frame carries a tag */
	__u8 hand_over;	     /* enum handover_kind: what XDP tells tc of it, or has told */
	__u8 piece;	     /* enum piece */
	__u16 length;	     /* of the IP packet */
	__u16 heard;	     /* of TCP: what it acknowledges, a SYN-ACK what its ACK will, an end its own; enum heard */
	__u8 addresses_only; /* no port and no checksum may change: SCTP, or there is no transport header */
	__u8 may_be_cut;     /* on its way, by routers: IPv4 without "do not fragment" */
	__be32 fragment_id;  /* BE; of IPv4 the lower half */
	__u32 frame;	     /* bytes of the whole frame */
	__u32 mtu;	     /* of the way, where the packet is too big for it */
	__u32 backend;	     /* of a packet that another node had wrapped: its endpoint, index into backends; else 0 */
	int action;	     /* verdict of the hook, where it is not the one that the reason implies */
};

/* Whether the frame begins with the IP header: WireGuard, IP in IP, tun and PPP have no link header. To XDP none is so. */
static __always_inline bool is_headerless(const struct packet *p)
{
	return !p->l3;
}

static __always_inline bool addr_equal(const struct addr *a, const struct addr *b, const bool v6)
{
	if (v6 && (a->word[0] != b->word[0] || a->word[1] != b->word[1] || a->word[2] != b->word[2]))
		return false;
	return a->word[3] == b->word[3];
}

struct cursor {
	void *start;
	void *pos;
	void *end;
};

#define TAKE(cursor, type)                                                                                             \
	({                                                                                                             \
		struct type *taken_ = (cursor)->pos;                                                                   \
		if ((void *)(taken_ + 1) > (cursor)->end)                                                              \
			return -REASON_MALFORMED;                                                                      \
		(cursor)->pos = taken_ + 1;                                                                            \
		taken_;                                                                                                \
	})

/* Returns the ethertype (BE) of what is inside, or -REASON_MALFORMED. */
static __always_inline int parse_ethernet(struct cursor *cursor, struct packet *p)
{
	__be16 next = TAKE(cursor, ethhdr)->h_proto;

#pragma unroll
	for (int i = 0; i < VLAN_DEPTH; i++) {
		if (next != bpf_htons(ETH_P_8021Q) && next != bpf_htons(ETH_P_8021AD))
			break;
		next = TAKE(cursor, vlan_header)->next;
		p->vlan = 1;
	}
	return next;
}

static __always_inline void mark_piece(struct packet *p, bool is_first, __be32 id)
{
	p->piece = is_first ? PIECE_FIRST : PIECE_LATER;
	p->fragment_id = id;
}

/* Returns the protocol number or -REASON_MALFORMED. */
static __always_inline int parse_ipv4(struct cursor *cursor, struct packet *p)
{
	struct iphdr *ip = TAKE(cursor, iphdr);
	__u32 options = ip->ihl * 4 - sizeof(*ip);

	if (ip->version != 4 || ip->ihl < 5)
		return -REASON_MALFORMED;
	if (ip->frag_off & bpf_htons(IP_OFFSET_MASK | IP_MORE_FRAGMENTS))
		mark_piece(p, !(ip->frag_off & bpf_htons(IP_OFFSET_MASK)), bpf_htonl(bpf_ntohs(ip->id)));
	p->may_be_cut = !(ip->frag_off & bpf_htons(IP_DONT_FRAGMENT));
	cursor->pos += options & 0x3f;
	if (cursor->pos > cursor->end)
		return -REASON_MALFORMED;
	p->src.word[2] = IPV4_MAPPED_PREFIX;
	p->dst.word[2] = IPV4_MAPPED_PREFIX;
	p->src.word[3] = ip->saddr;
	p->dst.word[3] = ip->daddr;
	p->ttl = ip->ttl;
	p->tos = ip->tos;
	p->length = bpf_ntohs(ip->tot_len);
	return ip->protocol;
}

/* Returns the protocol number of what is in pieces, or -REASON_MALFORMED. */
static __always_inline int parse_fragment(struct cursor *cursor, struct packet *p)
{
	struct fragment_header *fragment = TAKE(cursor, fragment_header);

	if (fragment->offset & bpf_htons(IPV6_OFFSET_MASK | IPV6_MORE_FRAGMENTS))
		mark_piece(p, !(fragment->offset & bpf_htons(IPV6_OFFSET_MASK)), fragment->id);
	return fragment->next;
}

/* Returns the protocol number behind all extension headers, -REASON_NOT_TRANSPORT or -REASON_MALFORMED. */
static __always_inline int parse_extensions(struct cursor *cursor, struct packet *p, __u8 next)
{
#pragma unroll
	for (int i = 0; i < EXTENSION_DEPTH; i++) {
		struct extension_header *extension;
		__u32 length;

		switch (next) {
		case IPPROTO_TCP:
		case IPPROTO_UDP:
		case IPPROTO_SCTP:
		case IPPROTO_ICMPV6:
		case IPPROTO_IPV6:
			return next;
		case IPPROTO_FRAGMENT:
			/* What may still follow is for the receiver alone, and missing in the later pieces. */
			return parse_fragment(cursor, p);
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
			extension = TAKE(cursor, extension_header);
			length = (extension->length + 1) * 8 - sizeof(*extension);
			break;
		case IPPROTO_AH:
			extension = TAKE(cursor, extension_header);
			length = (extension->length + 2) * 4 - sizeof(*extension);
			break;
		default:
			return -REASON_NOT_TRANSPORT;
		}
		next = extension->next;
		cursor->pos += length & 0x7ff;
		if (cursor->pos > cursor->end || cursor->pos - cursor->start > HEADERS_MAX)
			return -REASON_MALFORMED;
	}
	return -REASON_NOT_TRANSPORT;
}

/* Returns as parse_extensions. */
static __always_inline int parse_ipv6(struct cursor *cursor, struct packet *p)
{
	struct ipv6hdr *ip = TAKE(cursor, ipv6hdr);

	if (ip->version != 6)
		return -REASON_MALFORMED;
	__builtin_memcpy(&p->src, &ip->saddr, sizeof(p->src));
	__builtin_memcpy(&p->dst, &ip->daddr, sizeof(p->dst));
	p->ttl = ip->hop_limit;
	p->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
	p->length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	return parse_extensions(cursor, p, ip->nexthdr);
}

/* Returns 0, -REASON_NOT_TRANSPORT or -REASON_MALFORMED. */
static __always_inline int parse_transport(struct cursor *cursor, struct packet *p)
{
	if (p->proto == IPPROTO_TCP) {
		struct tcphdr *tcp = TAKE(cursor, tcphdr);
		__u32 number;

		p->sport = tcp->source;
		p->dport = tcp->dest;
		/* To a SYN with FIN Linux' listeners say nothing (tcp_rcv_state_process). */
		p->syn = tcp->syn && !tcp->ack && !tcp->fin;
		p->syn_ack = tcp->syn && tcp->ack;
		p->ending = tcp->fin | tcp->rst;
		p->reset = tcp->rst ? (tcp->ack ? RESET_FIRST : RESET_LATER) : RESET_NO;
		number = bpf_ntohl(p->syn_ack || p->ending ? tcp->seq : tcp->ack_seq) + p->syn_ack;
		p->heard = HEARD_KNOWN | number >> HEARD_SHIFT;
		return 0;
	}
	if (p->proto == IPPROTO_UDP) {
		struct udphdr *udp = TAKE(cursor, udphdr);

		p->sport = udp->source;
		p->dport = udp->dest;
		return 0;
	}
	if (p->proto == IPPROTO_SCTP) {
		struct sctp_header *sctp = TAKE(cursor, sctp_header);

		p->sport = sctp->source;
		p->dport = sctp->dest;
		p->syn = sctp->chunk == SCTP_INIT;
		p->syn_ack = sctp->chunk == SCTP_INIT_ACK;
		if (sctp->chunk == SCTP_ABORT)
			p->reset = sctp->flags & SCTP_REFLECTED ? RESET_LATER : RESET_FIRST;
		else
			p->reset = sctp->chunk == SCTP_SHUTDOWN_COMPLETE ? RESET_LATER : RESET_NO;
		p->ending = p->reset || sctp->chunk == SCTP_SHUTDOWN_ACK;
		p->addresses_only = 1;
		return 0;
	}
	return -REASON_NOT_TRANSPORT;
}

static __always_inline bool is_transport(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_SCTP;
}

/* Parses one IP packet of the family. A later piece is left without ports. Returns 0 or a negative reason. */
static __always_inline int parse_ip(struct cursor *cursor, struct packet *p, const bool v6)
{
	int proto, error;

	p->l3 = cursor->pos - cursor->start;
	proto = v6 ? parse_ipv6(cursor, p) : parse_ipv4(cursor, p);
	if (proto < 0)
		return proto;
	p->proto = proto;
	p->l4 = cursor->pos - cursor->start;
	if (p->piece == PIECE_LATER) {
		p->addresses_only = 1;
		return is_transport(p->proto) ? 0 : -REASON_NOT_TRANSPORT;
	}
	error = parse_transport(cursor, p);
	return error == -REASON_MALFORMED && p->piece ? -REASON_FRAGMENT : error;
}

#endif
