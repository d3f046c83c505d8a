//! What users of kube-proxy rely on, kind by kind, against the real API server. One binary: a cluster takes seconds.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../harness/mod.rs"]
mod harness;

mod admin_socket;
mod affinity;
mod catalogue;
mod dead_pods;
mod endpoints;
mod flood_metrics;
mod headerless;
mod health;
mod host_bypass;
mod icmp_errors;
mod masquerade;
mod metrics;
mod metrics_server;
mod network_policies;
mod news;
mod node_ports;
mod other_programs;
mod out_of_window;
mod overlay;
mod page;
mod path_mtu;
mod pieces;
mod ping;
mod pod_sockets;
mod priority_tags;
mod sctp;
mod service_networks;
mod settings;
mod single_stack;
mod socket_moves;
mod sockets;
mod source_ports;
mod source_ranges;
mod tcp_ends;
mod time_wait;
mod tunnels;
mod udp;
mod unhealthy;
mod unused_ports;

use harness::shared::Shared;

/// Two nodes with two pods each. Names of Services and numbers of external addresses are each test's own.
static CLUSTER: Shared = Shared::new(&[]);
