/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A part of abi.h, which includes it: where and why packets are counted. */
#ifndef WEIR_ABI_REASONS_H
#define WEIR_ABI_REASONS_H

/* ---- counters ------------------------------------------------------------------------------------------------ */

enum hook {
	HOOK_XDP = 0,
	HOOK_NIC_INGRESS = 1,
	HOOK_NIC_EGRESS = 2,
	HOOK_POD_INGRESS = 3,
	HOOK_POD_EGRESS = 4,
	HOOK_SOCKET = 5,
	HOOK_COUNT = 6,
};

/* Why a packet left the program. Numbers are never reused: they are counter indexes and metric labels. */
enum reason {
	REASON_NONE = 0,
	/* passed untouched */
	REASON_NOT_IP = 1,
	REASON_NOT_TRANSPORT = 2, /* neither TCP nor UDP nor SCTP */
	REASON_FRAGMENT = 3,	  /* no ports: the first one was not seen, or is too short */
	REASON_MALFORMED = 4,	  /* shorter than its headers say */
	REASON_NO_FRONTEND = 5,
	REASON_NO_REPLY = 6,	/* on egress: not an answer to a flow of ours */
	REASON_LEFT_TO_TC = 7,	/* XDP cannot do it: no neighbour, VLAN tag, other device */
	REASON_XDP_DONE = 8,	/* tc: XDP translated it already */
	REASON_MID_FLOW = 9,	/* of a connection that another proxy has begun */
	REASON_OTHER_HOST = 10, /* in a frame to another machine, or to several */
	/* translated */
	REASON_TO_LOCAL = 16,
	REASON_TO_REMOTE = 17,
	REASON_BACK = 18,
	REASON_HAIRPIN = 19,
	REASON_ERROR_TOLD = 20, /* an ICMP error about a packet of a flow */
	REASON_DIRECT = 21,	/* wrapped for another node, which answers the client itself */
	/* answered by us */
	REASON_NO_ENDPOINTS = 32,
	REASON_STALE_RESET = 33,
	REASON_UNUSED_PORT = 34,  /* a cluster IP's, but no service's */
	REASON_UNANSWERED = 35,	  /* no backend answered the SYN that came again */
	REASON_TOO_BIG_TOLD = 36, /* as REASON_TOO_BIG, and its sender knows by now */
	REASON_ECHO = 37,	  /* an echo request to an address of a service */
	REASON_TTL_TOLD = 38,	  /* as REASON_TTL_EXCEEDED, and its sender knows by now */
	/* dropped */
	REASON_NO_LOCAL_ENDPOINTS = 48,
	REASON_STALE = 49,
	REASON_SNAT_EXHAUSTED = 50,
	REASON_NO_ROUTE = 51,
	REASON_TTL_EXCEEDED = 52,
	REASON_BROKEN_TABLE = 53, /* a reference led nowhere: a bug, or a map of another writer */
	REASON_REWRITE_FAILED = 54,
	REASON_FLOW_TABLE = 55,	   /* the flow could not be stored */
	REASON_TOO_BIG = 56,	   /* for the MTU of the way to the other node */
	REASON_HELD = 57,	   /* a new flow while the flow tables are being replaced */
	REASON_SOURCE_RANGE = 58,  /* from outside of loadBalancerSourceRanges */
	REASON_NO_SERVICE = 59,	   /* to a cluster IP that no service has, or back out to a port that none has */
	REASON_FRAGMENT_LOST = 60, /* to a cluster IP, as REASON_FRAGMENT */
	REASON_FRAGMENT_HELD = 61, /* to a cluster IP: it comes again, behind the first one, and is counted then */
	REASON_FIRST_SYN = 62,	   /* in a flood for an endpoint on another node: its flow begins with the next one */
	REASON_UNTOLD = 63,	   /* as REASON_NO_ENDPOINTS and the like, and its sender is one too many to be told */
	REASON_COUNT = 64,
};

struct counter {
	__u64 packets; /* HOST */
	__u64 bytes;   /* HOST */
};

#endif
