//! Names of the numbers that people see: metric labels, columns of the command line. They are user interface.

use crate::enums::{
    HOOK_NIC_EGRESS, HOOK_NIC_INGRESS, HOOK_POD_EGRESS, HOOK_POD_INGRESS, HOOK_SOCKET, HOOK_XDP, KIND_ADDRESS,
    KIND_CLUSTER_IP, KIND_EXTERNAL_IP, KIND_LOAD_BALANCER, KIND_NODE_PORT, KIND_UNUSED_PORT,
};

/// Name of a `REASON_*`, in snake case without the prefix; `unknown` for numbers that are not given out.
#[must_use]
pub const fn reason_name(reason: usize) -> &'static str {
    match reason {
        0 => "none",
        1 => "not_ip",
        2 => "not_transport",
        3 => "fragment",
        4 => "malformed",
        5 => "no_frontend",
        6 => "no_reply",
        7 => "left_to_tc",
        8 => "xdp_done",
        9 => "mid_flow",
        10 => "other_host",
        16 => "to_local",
        17 => "to_remote",
        18 => "back",
        19 => "hairpin",
        20 => "error_told",
        21 => "direct",
        32 => "no_endpoints",
        33 => "stale_reset",
        34 => "unused_port",
        35 => "unanswered",
        36 => "too_big_told",
        37 => "echo",
        38 => "ttl_told",
        48 => "no_local_endpoints",
        49 => "stale",
        50 => "snat_exhausted",
        51 => "no_route",
        52 => "ttl_exceeded",
        53 => "broken_table",
        54 => "rewrite_failed",
        55 => "flow_table",
        56 => "too_big",
        57 => "held",
        58 => "source_range",
        59 => "no_service",
        60 => "fragment_lost",
        61 => "fragment_held",
        62 => "first_syn",
        63 => "untold",
        _ => "unknown",
    }
}

/// What happened to a packet that left for a `REASON_*`: `untouched`, `translated`, `answered` or `dropped`. The ranges
/// of the numbers say it.
#[must_use]
pub const fn verdict_name(reason: usize) -> &'static str {
    match reason {
        0..=15 => "untouched",
        16..=31 => "translated",
        32..=47 => "answered",
        _ => "dropped",
    }
}

/// Name of a `HOOK_*`, in snake case without the prefix; `unknown` for numbers that are not given out.
#[must_use]
pub const fn hook_name(hook: u32) -> &'static str {
    match hook {
        HOOK_XDP => "xdp",
        HOOK_NIC_INGRESS => "nic_ingress",
        HOOK_NIC_EGRESS => "nic_egress",
        HOOK_POD_INGRESS => "pod_ingress",
        HOOK_POD_EGRESS => "pod_egress",
        HOOK_SOCKET => "socket",
        _ => "unknown",
    }
}

/// Name of a `KIND_*`, as Kubernetes spells it; `unknown` for numbers that are not given out.
#[must_use]
pub const fn kind_name(kind: u32) -> &'static str {
    match kind {
        KIND_CLUSTER_IP => "ClusterIP",
        KIND_NODE_PORT => "NodePort",
        KIND_LOAD_BALANCER => "LoadBalancer",
        KIND_EXTERNAL_IP => "ExternalIP",
        KIND_UNUSED_PORT => "UnusedPort",
        KIND_ADDRESS => "Address",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    /// Names and numbers of an enumeration, read from the source of `enums.rs`.
    fn constants(prefix: &str) -> Vec<(String, usize)> {
        let start = format!("pub const {prefix}");
        let lines = include_str!("enums.rs").lines().filter_map(|line| line.strip_prefix(&start));
        let pairs = lines.filter_map(|line| {
            let (name, rest) = line.split_once(": ")?;
            let number = rest.split_once("= ")?.1.trim_end_matches(';').parse().ok()?;
            Some((name.to_lowercase(), number))
        });
        pairs.filter(|(name, _)| name != "count").collect()
    }

    #[test]
    fn every_reason_is_called_as_in_the_abi() {
        let reasons = constants("REASON_");
        assert!(reasons.len() > 20, "{reasons:?}");
        for (name, number) in reasons {
            assert_eq!(reason_name(number), name);
        }
    }

    #[test]
    fn every_hook_is_called_as_in_the_abi() {
        let hooks = constants("HOOK_");
        assert_eq!(hooks.len(), crate::HOOK_COUNT);
        for (name, number) in hooks {
            assert_eq!(hook_name(u32::try_from(number).unwrap()), name);
        }
    }

    #[test]
    fn every_kind_of_frontend_has_the_name_that_kubernetes_gives_it() {
        let kinds = constants("KIND_");
        assert_eq!(kinds.len(), 6);
        for (name, number) in kinds {
            let kubernetes = kind_name(u32::try_from(number).unwrap());
            assert_eq!(kubernetes.to_lowercase(), name.replace('_', ""));
        }
    }

    #[test]
    fn numbers_that_are_not_given_out_are_unknown() {
        assert_eq!((reason_name(47), hook_name(9), kind_name(0)), ("unknown", "unknown", "unknown"));
    }
}
