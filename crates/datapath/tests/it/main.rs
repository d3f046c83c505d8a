//! The programs and maps in the running kernel. All of it needs root and skips loudly without.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod affinity;
mod backends;
mod beside;
mod case;
mod entries;
mod failover;
mod forget;
mod forward;
mod fragments;
mod headers;
mod icmp;
mod masquerade;
mod model;
mod node;
mod openings;
mod pins;
mod pod_sockets;
mod pods;
mod refusals;
mod sctp;
mod selectors;
mod service_networks;
mod signals;
mod snat;
mod sockets;
mod source_ports;
mod source_ranges;
mod store;
mod talk;
mod untouched;
mod unused_ports;
mod ways_back;
