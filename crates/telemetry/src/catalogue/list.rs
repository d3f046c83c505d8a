//! The list itself.

use super::Kind::{Counter, Gauge, Histogram, Info};
use super::Series::{Most, PerService};
use super::{Definition, Label};

/// Hooks, the numbers that exits have, and those of them that are drops: `weir_abi` has them, and the agent's tests compare
/// these numbers and those below with what it tells.
const HOOKS: u32 = 6;
const REASONS: u32 = 40;
const DROP_REASONS: u32 = 16;
/// Maps, and those that the agent fills.
const MAPS: u32 = 42;
const FILLED: u32 = 7;
/// Pairs of a map and what is done to it.
const OPS: u32 = 18;
/// Programs: of XDP, of tc at interfaces with and without link headers, of sockets.
const PROGRAMS: u32 = 15;
/// Places where they are attached.
const LINKS: u32 = 13;
/// Nodes that have series of their own, and one for all others.
const NODES: u32 = 33;
/// Signals of a node, the sources that they come from, and how those fail.
const SIGNALS: u32 = 4;
const SOURCES: u32 = 6;
const FAILURES: u32 = 5;
/// Why packets of the mesh are dropped.
const REFUSALS: u32 = 15;
/// IPv4 and IPv6.
const FAMILIES: u32 = 2;
/// What is watched of the cluster.
const KINDS: u32 = 4;
/// What an event of a watch may do.
const CHANGES: u32 = 3;
/// Answers of a health server, by status code.
const CODES: u32 = 2;

/// What may become of a question to an endpoint.
const CHECK_RESULTS: u32 = 5;

/// Defines metrics by section, and the list of all of them. What has no labels has one series.
macro_rules! metrics {
    ($($section:literal { $($kind:ident $id:ident = $name:literal $([$($label:literal),*] $series:expr)?, $help:literal;)* })*) => {
        $($(
            #[doc = concat!($help, ".")]
            pub const $id: Definition = Definition::new($kind, $name, $help)$(.with(&[$($label),*], $series))?;
        )*)*

        /// All metrics, in the order of the documentation.
        pub const SECTIONS: &[(&str, &[Definition])] = &[$(($section, &[$($id),*])),*];
    };
}

/// What the labels tell.
pub const LABELS: &[Label] = &[
    Label {
        key: "abi_version",
        meaning: "version of the layout of the maps; agents of another one begin with maps of their own",
    },
    Label { key: "code", meaning: "status code of an answer: 200 or 503" },
    Label {
        key: "hook",
        meaning: "where packets are seen: `xdp`, `nic_ingress`, `nic_egress`, `pod_ingress`, `pod_egress`, `socket`; of `weir_attached_links` the program's name without `weir_`",
    },
    Label { key: "ip_family", meaning: "`IPv4` or `IPv6`, as kube-proxy spells it" },
    Label {
        key: "kind",
        meaning: "of watches the resource, of the mesh what became of a packet, of failures how a reading failed",
    },
    Label { key: "map", meaning: "name of the BPF map, as in bpffs" },
    Label { key: "op", meaning: "what was done to a map: `put`, `delete`, `reset`, `forget`" },
    Label {
        key: "peer",
        meaning: "name of a node, as this agent sees it: itself and the 31 nearest that are probed have series of their own, the rest are `other`",
    },
    Label { key: "program", meaning: "name of the BPF program, as `bpftool prog` shows it" },
    Label { key: "reason", meaning: "why a packet left the programs: [reasons](reasons.md)" },
    Label {
        key: "result",
        meaning: "of a health check: `passed`, `unreachable`, `timeout`, `status` (a wrong one), `broken` (no HTTP)",
    },
    Label {
        key: "service_name",
        meaning: "name of a Service; `other` with an empty namespace are all that have no series of their own",
    },
    Label { key: "service_namespace", meaning: "its namespace" },
    Label { key: "signal", meaning: "`cpu`, `memory`, `network`, `pressure`; of readings the source" },
    Label { key: "state", meaning: "`open`, or `over`: the entry's place is free" },
    Label {
        key: "tier",
        meaning: "how far a flow went: `node` is this node, `zone` another one of the same zone, `other` farther or unknown",
    },
    Label { key: "traffic_policy", meaning: "`internal` or `external`" },
    Label {
        key: "type",
        meaning: "what an event of a watch did: `applied` (an object is new or has changed), `deleted` (it is gone, or no longer one that is served), `relisted` (all of them came anew)",
    },
    Label {
        key: "verdict",
        meaning: "what became of a packet: `untouched`, `translated`, `answered`, `dropped`; it follows from the reason",
    },
    Label { key: "version", meaning: "version of the agent" },
];

metrics! {
    "The agent" {
        Info BUILD = "weir_build_info" ["version", "abi_version"] Most(1), "Version of the agent";
        Gauge CONFIG_GOOD = "weir_config_good", "Whether the configuration file is in force as it stands (1) or refused (0), so that what it said before is; 1 without a file";
        Gauge ATTACHED_INTERFACES = "weir_attached_interfaces", "Interfaces with programs attached";
        Gauge UNATTACHED_INTERFACES = "weir_unattached_interfaces", "Interfaces that programs could not be attached to: their clients are not served";
        Gauge ATTACHED_LINKS = "weir_attached_links" ["hook"] Most(LINKS), "Links of programs; without those of kernels before 6.6, whose tc has filters in their place";
        Counter PROGRAM_RUN_SECONDS = "weir_program_run_seconds_total" ["program"] Most(PROGRAMS), "Time in which a program ran since it was loaded, which may have been by an agent before, while the kernel measures it: `sysctl kernel.bpf_stats_enabled=1`";
        Counter PROGRAM_RUNS = "weir_program_runs_total" ["program"] Most(PROGRAMS), "How often it ran meanwhile";
        Counter EVENTS_DROPPED = "weir_events_dropped_total", "Kubernetes events that were lost because too many waited";
        Counter SOCKETS_DESTROYED = "weir_sockets_destroyed_total", "Connected UDP sockets of processes on the host that were destroyed: their endpoint was gone, or they had none";
        Counter SOCKET_SWEEP_FAILURES = "weir_socket_sweep_failures_total", "Searches for such sockets that failed, so that some stay with an endpoint that is gone";
    }
    "Packets and flows" {
        Counter PACKETS = "weir_packets_total" ["hook", "verdict", "reason"] Most(HOOKS * REASONS), "Packets by hook and by the reason why they left it; told once there was one";
        Counter BYTES = "weir_bytes_total" ["hook", "verdict", "reason"] Most(HOOKS * REASONS), "Bytes of those packets";
        Counter DROPS = "weir_drops_total" ["hook", "reason"] Most(HOOKS * DROP_REASONS), "Those of the packets that were dropped; told from the start";
        Counter SELECTIONS = "weir_selections_total" ["tier"] Most(3), "New flows by how far they went, each time that an endpoint was asked, be it in vain or in another's name";
        Gauge FLOW_ENTRIES = "weir_flow_entries" ["map", "state"] Most(8), "Entries of the flow tables, counted every 30 s to 5 min: open flows, and those that are over, whose place is free; weir_map_max_entries is the room";
        Gauge AFFINITY_ENTRIES = "weir_affinity_entries" ["state"] Most(2), "Entries of session affinity, counted every 30 s to 5 min: clients that keep an endpoint (open), and those whose time or endpoint is gone (over); weir_map_max_entries of affinities is the room for both, in which those go first whose last new flow was longest ago";
        Counter FLOW_EVICTIONS_SEEN = "weir_flow_evictions_seen_total", "Entries for answers of open flows that a full table had evicted and a client's packet brought back: for want of room, of which weir_flow_entries tells";
        Counter OPENING_EVICTIONS = "weir_opening_evictions_total" ["map"] Most(4), "Entries of flows that begin, and of the answers that they await, that lost their place to others within 8 ticks of their last packet, counted every 30 s to 5 min: in a flood its own, as a rule";
        Counter FLOWS_ADOPTED = "weir_flows_adopted_total", "Connections that were met in their middle, of which no table knew, and got an endpoint by their hash, or by what a flood had left of them: another one than before resets them. In a flood of SYNs, for which no flow is written, all that begin";
        Gauge FLOODED_CPUS = "weir_flooded_cpus", "CPUs that within the last 8 ticks had more new flows in one than `--flood-rate` allows: no flow is written there for a SYN whose client keeps its address";
        Gauge SOURCE_PORTS = "weir_source_ports", "Ports that new connections to an endpoint on another node may take as their source";
        Counter SERVICE_FLOWS = "weir_service_flows_total" ["service_namespace", "service_name"] PerService, "New flows of a Service from clients of this node, wherever they went; connections count when the client goes on after the answer, so no forged ones";
        Gauge SERVICE_OPEN_FLOWS = "weir_service_open_flows" ["service_namespace", "service_name"] PerService, "Flows of a Service that clients of this node have open, counted every 5 s to 30 s; connections as in weir_service_flows_total";
    }
    "Maps and what is written" {
        Gauge MAP_ENTRIES = "weir_map_entries" ["map"] Most(FILLED), "Entries of a map that the agent fills; slots that rest before somebody else may have them count";
        Gauge MAP_MAX_ENTRIES = "weir_map_max_entries" ["map"] Most(MAPS), "Entries that a map can hold";
        Counter MAP_OPS = "weir_map_ops_total" ["map", "op"] Most(OPS), "Operations on maps; one that fails ends the agent, and the next one starts over from the maps";
        Histogram PROGRAMMING_DURATION = "weir_programming_duration_seconds" [] Most(19), "From an event's turn to the last map operation that it caused; how long it waited for others' is not in it";
        Gauge FULL_SYNC = "weir_full_sync_seconds", "What the first full sync took";
        Counter SERVICES_PROGRAMMED = "weir_services_programmed_total", "Services planned and written";
        Gauge UNWRITTEN_SERVICES = "weir_unwritten_services", "Services that could not be written as planned, most often since a map is full: what was served before goes on";
        Gauge REFUSED_PORTS = "weir_refused_ports", "Ports of services that cannot be served as asked";
        Gauge UNSTEERED_PORTS = "weir_unsteered_ports", "Service ports whose new shares could not be written: their last ones stay in force";
        Gauge LAST_RESORT_PORTS = "weir_last_resort_ports", "Service ports in a family that have no ready endpoint and are served by those that are going";
    }
    "The cluster" {
        Gauge WATCH_SYNCED = "weir_watch_synced", "Whether every kind was listed";
        Gauge WATCH_CONNECTED = "weir_watch_connected" ["kind"] Most(KINDS), "Whether the source of a kind can be reached";
        Counter WATCH_EVENTS = "weir_watch_events_total" ["kind", "type"] Most(KINDS * CHANGES), "Events of a kind, by what they did";
    }
    "Decisions" {
        Gauge STEERED_PORTS = "weir_steered_ports", "Service ports whose shares follow the load";
        Gauge WEIGHT = "weir_weight" ["peer"] Most(NODES), "Part of the new flows of steered services that is to go to a node; nothing as long as there are none";
        Counter WEIGHT_UPDATES = "weir_weight_updates_total", "Decisions that moved shares";
        Gauge WEIGHT_STALENESS = "weir_weight_staleness_seconds", "Age of what is known of this node's own load: of its signals the one whose last good reading is longest ago; not told while nothing is steered";
        Gauge WEIGHT_INPUTS = "weir_weight_inputs" ["peer", "signal"] Most(NODES * SIGNALS), "How busy a node is, of what it has, as this agent knows it: 0 to 1; of `other` the mean";
        Gauge LEVEL = "weir_level_ratio" ["peer"] Most(NODES), "How full a node is: the highest of its CPU, memory and network in use; of `other` the mean";
        Gauge SPILL = "weir_spill_ratio", "Part of the new flows of steered services that is to leave the node, by the last decision";
        Gauge SPILLING_SERVICES = "weir_spilling_services", "Services with endpoints here whose flows leave all the same, since the node has no room for them";
        Counter SPILLS = "weir_spills_total", "Times that a Service began to spill";
        Gauge EJECTED_ENDPOINTS = "weir_ejected_endpoints", "Endpoints that failed, or whose node is silent, and get no new flows";
        Counter EJECTIONS = "weir_ejections_total", "Times that an endpoint was ejected";
        Gauge SIGNAL_AGE = "weir_signal_age_seconds" ["signal"] Most(SIGNALS), "Age of the last good reading of this node's load, which from 10 s on is not used any more; not told if there was none, or while nobody needs it";
        Counter SIGNAL_READS = "weir_signal_reads_total" ["signal"] Most(SOURCES), "Readings of a source";
        Counter SIGNAL_FAILURES = "weir_signal_failures_total" ["signal", "kind"] Most(SOURCES * FAILURES), "Readings of a source that failed, and how";
    }
    "The mesh" {
        Gauge PROBE_RTT = "weir_probe_rtt_seconds" ["peer"] Most(NODES), "Round-trip time to a node; not told if it does not answer";
        Gauge REPORT_AGE = "weir_report_age_seconds" ["peer"] Most(NODES), "Age of what a node told last";
        Gauge MESH_PEERS = "weir_mesh_peers", "Nodes that may be probed";
        Gauge MESH_SILENT_PEERS = "weir_mesh_silent_peers", "Those of them that were heard once and do not answer any more, until they do or leave the cluster; also those whose agent was taken away";
        Counter MESH_PACKETS = "weir_mesh_packets_total" ["kind"] Most(7), "Packets of the mesh, by what became of them";
        Counter MESH_SENT_BYTES = "weir_mesh_sent_bytes_total", "Bytes sent to other nodes";
        Counter MESH_REFUSED = "weir_mesh_refused_total" ["kind"] Most(REFUSALS), "Packets of the mesh that were dropped, and why";
    }
    "Health checks of a static file" {
        Counter ENDPOINT_CHECKS = "weir_endpoint_checks_total" ["result"] Most(CHECK_RESULTS), "Questions to endpoints of services with a health check, by what became of them";
        Histogram ENDPOINT_CHECK_DURATION = "weir_endpoint_check_duration_seconds" [] Most(17), "From a question to its answer or failure";
        Gauge CHECKED_ENDPOINTS = "weir_checked_endpoints", "Endpoints that are asked";
        Gauge FAILING_ENDPOINTS = "weir_failing_endpoints", "Those of them that fail, and get no new flows unless all of their service do";
        Gauge ALL_FAILING_SERVICES = "weir_all_failing_services", "Services, each family counted, of which every endpoint fails";
    }
    "Under kube-proxy's names" {
        Histogram NETWORK_PROGRAMMING_DURATION = "kubeproxy_network_programming_duration_seconds" ["ip_family"] Most(83 * FAMILIES), "In Cluster Network Programming Latency in seconds";
        Histogram SYNC_DURATION = "kubeproxy_sync_proxy_rules_duration_seconds" ["ip_family"] Most(18 * FAMILIES), "SyncProxyRules latency in seconds";
        Gauge LAST_SYNC = "kubeproxy_sync_proxy_rules_last_timestamp_seconds" ["ip_family"] Most(FAMILIES), "The last time proxy rules were successfully synced";
        Gauge LAST_QUEUED = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds" ["ip_family"] Most(FAMILIES), "The last time a sync of proxy rules was queued";
        Counter ENDPOINT_CHANGES = "kubeproxy_sync_proxy_rules_endpoint_changes_total", "Cumulative proxy rules Endpoint changes";
        Gauge ENDPOINT_CHANGES_PENDING = "kubeproxy_sync_proxy_rules_endpoint_changes_pending", "Pending proxy rules Endpoint changes";
        Counter SERVICE_CHANGES = "kubeproxy_sync_proxy_rules_service_changes_total", "Cumulative proxy rules Service changes";
        Gauge SERVICE_CHANGES_PENDING = "kubeproxy_sync_proxy_rules_service_changes_pending", "Pending proxy rules Service changes";
        Gauge NO_LOCAL_ENDPOINTS = "kubeproxy_sync_proxy_rules_no_local_endpoints_total" ["traffic_policy", "ip_family"] Most(2 * FAMILIES), "Number of services with a Local traffic policy and no endpoints; a gauge, whatever its name says";
        Counter PROXY_HEALTHZ = "kubeproxy_proxy_healthz_total" ["code"] Most(CODES), "Answers to /healthz by status code";
        Counter PROXY_LIVEZ = "kubeproxy_proxy_livez_total" ["code"] Most(CODES), "Answers to /livez by status code";
    }
}
