/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A part of abi.h, which includes it: what the agent tells the programs about the node, and people about names. */
#ifndef WEIR_ABI_CONFIG_H
#define WEIR_ABI_CONFIG_H

/* ---- configuration and names --------------------------------------------------------------------------------- */

enum config_flags {
	CONFIG_RESET_STALE = 1, /* answer TCP packets of vanished backends with a reset; else drop them */
	/* Flow tables are being replaced: until held_until the first packet of a new flow is dropped, to come again. */
	CONFIG_HOLD = 2,
	/* Another proxy serves other services here: a connection that begins in its middle is left to it, not adopted. */
	CONFIG_BESIDE = 4,
	/*
	 * As kube-proxy does it, the node's address is the source towards this node's pods, too: of all that is sent to
	 * external addresses but under policy Local, and of what comes to cluster IPs from outside.
	 */
	CONFIG_MASQUERADE_EXTERNAL = 8,
	/* And of what pods send to cluster IPs: kube-proxy's --masquerade-all. Only with the one above. */
	CONFIG_MASQUERADE_ALL = 16,
	CONFIG_POD_SOCKETS = 32,  /* hooked_pods is in force */
	CONFIG_ECHO = 64,	  /* echo requests to addresses of services are answered */
	CONFIG_HOST_BYPASS = 128, /* shortcuts are in force */
	CONFIG_SETTLE = 256, /* connections that go on stay where they began for the rest of that tick: FLOW_SETTLED */
	CONFIG_UNWRAP = 512, /* what other nodes wrap is opened: direct server return is in use here, or was */
};

/* Addresses that equal addr in the bits of mask. IPv4 networks are v4-mapped, with at least 96 bits of mask. */
struct network {
	struct addr addr;
	struct addr mask;
};

/* A way to other nodes' pods that is not one of the node's interfaces, and has an address of its own: an overlay network's. */
struct tunnel {
	struct addr addr; /* source of SNAT by that way, of flows from before it went, too; zero: there was none */
	__u32 ifindex;	  /* HOST; 0: there is none, so that no new flow takes it */
	__u32 pad;
};

struct config {
	__u64 netns_cookie; /* HOST, network namespace of the node */
	__u64 hash_seed;    /* HOST, drawn once per boot */
	__u64 held_until;   /* HOST, ns of CLOCK_MONOTONIC: CONFIG_HOLD ends then, as its agent may have ended before */
	struct addr node4;  /* source of SNAT; zero: no IPv4 */
	struct addr node6;  /* source of SNAT; zero: no IPv6 */
	struct tunnel tunnel4;
	struct tunnel tunnel6;
	__u32 flags;	/* HOST, enum config_flags */
	__u32 udp_idle; /* HOST, ticks of silence of both sides after which a UDP flow is selected anew */
	__u32 tcp_idle; /* HOST, ticks of silence of both sides after which a connection or association may lose its place to another */
	__u32 abi_version;	/* HOST, ABI_VERSION of the writer */
	__u32 fragment_idle;	/* HOST, ticks after which the pieces of a packet are given up */
	__u32 service_networks; /* HOST, how many of service_network are in use */
	__u32 flood; /* HOST, new flows on a CPU in a tick from which on no SYN is remembered needlessly; 0: never */
	__u32 tcp_half_closed; /* HOST, as tcp_idle, where one side has closed */
	__u32 tcp_linger; /* HOST, ticks of silence after which what is said at an ended flow is of another one; its port yields by over.h */
	__u32 held_pieces; /* HOST, entries of held_pieces in use; below HELD_REGION none is held */
	/* Where cluster IPs come from. Whatever is still on its way there when it leaves the node is nobody's. */
	struct network service_network[SERVICE_NETWORKS];
};

/* Where XDP may redirect to; the kernel's struct bpf_devmap_val. */
struct device {
	__u32 ifindex; /* HOST */
	__u32 program; /* HOST, a file descriptor when written; 0: none runs on the way out */
};

enum shortcut_kind {
	SHORTCUT_NEIGHBOUR = 1, /* to whoever the kernel's neighbour table says: what leads outside, and taps */
	SHORTCUT_PEER = 2,	/* one pod, whose own end can be reached */
	SHORTCUT_BRIDGE = 3,	/* pods, behind its ports */
};

/* An interface that leads to pods or elsewhere: packets may take it past the host's stack, with CONFIG_HOST_BYPASS, and those of a pod's own come by it. */
struct shortcut {
	__u32 kind;   /* HOST, enum shortcut_kind */
	__u32 bridge; /* HOST, index of the bridge that it is a port of; 0: of none */
};

/* Only for people: the kernel never reads these two. */
struct service_name {
	char namespace[NAME_SIZE];
	char name[NAME_SIZE];
	char port_name[NAME_SIZE];
	__u16 port; /* HOST, the service port */
	__u8 proto;
	__u8 family;   /* 4 or 6 */
	__u32 created; /* HOST, seconds since boot */
};

struct node_name {
	char name[NAME_SIZE];
	char zone[NAME_SIZE];
};

#endif
