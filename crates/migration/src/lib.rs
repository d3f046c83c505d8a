//! The way of a node from kube-proxy to Weir and back, as plain functions: what kube-proxy serves by its rules
//! ([`iptables`], [`nftables`], [`ipvs`]), whether Weir's maps say the same ([`compare`]), what removes its rules and nothing else, and
//! which step comes next ([`plan`]).
//!
//! No I/O and no clock: the command line reads and writes. See docs/adr/0036-migration-of-a-node.md.
#![forbid(unsafe_code)]

pub mod compare;
pub mod connections;
pub mod iptables;
pub mod ipvs;
pub mod nftables;
pub mod plan;
pub mod served;
