//! Programs on interfaces: what they were attached for, and what is in their way.

use aya::programs::ProgramInfo;
use weir_core::ops::Capacity;
use weir_datapath::{AttachOptions, Attachment, attached_programs};
use weir_testbed::Accept;

use crate::node::Node;
use crate::pins::SMALL;

const OPTIONS: AttachOptions = AttachOptions { xdp: false, tcx: true, headerless: false, redirects: true };

impl Node {
    fn index_of(&self, interface: &str) -> u32 {
        self.netns.enter(|| nix::net::if_::if_nametoindex(interface)).unwrap()
    }

    fn tc(&self, arguments: &str) -> String {
        let output = self.netns.command("tc").args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "tc {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn what_is_pinned_tells_for_whom_an_interface_was_attached() {
    let Some(mut node) = Node::new("roles of interfaces") else { return };
    let [eth0, eth1, pod1] = ["eth0", "eth1", "pod1"].map(|name| node.index_of(name));
    node.netns.enter(|| node.datapath.attach_interface(eth1, "eth1", Attachment::Tunnel, OPTIONS)).unwrap();
    let roles = node.datapath.attachments().unwrap();
    if node.datapath.lacks_tcx() {
        assert!(roles.is_empty(), "filters in place of links tell of none: {roles:?}");
        return;
    }
    assert_eq!(roles, [(eth0, Attachment::Nic), (eth1, Attachment::Tunnel), (pod1, Attachment::Pod)].into());
}

/// What a CNI's program accepts for good nobody behind it sees.
#[test]
fn programs_run_before_those_of_others_whoever_came_first() {
    let what = "programs before those of others";
    let Some(mut node) = Node::new(what) else { return };
    let eth2 = node.index_of("eth2");
    let Some(_before) = Accept::last(what, &node.netns, "eth2").unwrap() else { return };
    node.netns.enter(|| node.datapath.attach_interface(eth2, "eth2", Attachment::Pod, OPTIONS)).unwrap();
    let _behind = Accept::last(what, &node.netns, "eth2").unwrap();
    let listed = node.netns.enter(|| attached_programs("eth2")).unwrap();
    let expected = |ours: &str| [ours, Accept::PROGRAM, Accept::PROGRAM].map(str::to_owned).to_vec();
    assert_eq!((listed.ingress, listed.egress), (expected("weir_pod_in"), expected("weir_pod_out")));
}

/// As of a CNI that limits what pods may send. All filters there are of what comes in, whatever they are said to be.
#[test]
fn a_qdisc_of_what_comes_in_alone_is_told_of_where_there_are_no_links_and_no_answer_is_taken_for_a_question() {
    let Some(mut node) = Node::new("an interface with a qdisc `ingress`") else { return };
    let eth2 = node.index_of("eth2");
    let options = AttachOptions { tcx: false, ..OPTIONS };
    node.tc("qdisc add dev eth2 ingress");
    let told = node.netns.enter(|| node.datapath.attach_interface(eth2, "eth2", Attachment::Pod, options));
    let told = told.unwrap_err().to_string();
    assert!(told.contains("weir_pod_out") && told.contains("tc qdisc del dev eth2 ingress"), "{told}");
    assert_eq!(node.tc("filter show dev eth2 ingress"), "");

    node.tc("qdisc del dev eth2 ingress");
    node.netns.enter(|| node.datapath.attach_interface(eth2, "eth2", Attachment::Pod, options)).unwrap();
    for (direction, program) in [("ingress", "weir_pod_in"), ("egress", "weir_pod_out")] {
        let filters = node.tc(&format!("filter show dev eth2 {direction}"));
        assert!(filters.contains(program), "{direction}: {filters}");
    }
}

/// What it cannot take it would lose, and nobody would count that.
#[test]
fn xdp_of_other_interfaces_sends_by_one_only_where_that_may_take_it() {
    let Some(mut node) = Node::new("interfaces that XDP sends by") else { return };
    let eth1 = node.index_of("eth1");
    let is_device = |node: &Node| {
        let devices = node.view.raw("devices").unwrap().unwrap();
        devices.iter().any(|(index, _)| index[..] == eth1.to_ne_bytes())
    };
    assert!(is_device(&node));
    for redirects in [false, true] {
        let options = AttachOptions { xdp: true, redirects, ..OPTIONS };
        node.netns.enter(|| node.datapath.attach_interface(eth1, "eth1", Attachment::Nic, options)).unwrap();
        assert_eq!(is_device(&node), redirects);
    }
}

/// Few nodes have such interfaces, and the verifier walks a third more for them.
#[test]
fn programs_for_frames_without_link_headers_come_with_the_first_such_interface_and_stay() {
    const NAMES: [&str; 2] = ["weir_l3_in", "weir_l3_out"];
    let larger = |times| Capacity { services: SMALL.services * times, ..SMALL };
    let loaded = |node: &Node| NAMES.map(|name| node.datapath.program(name).is_some());
    let attach = |node: &mut Node| {
        let (eth2, options) = (node.index_of("eth2"), AttachOptions { headerless: true, ..OPTIONS });
        node.netns.enter(|| node.datapath.attach_interface(eth2, "eth2", Attachment::Nic, options)).unwrap();
    };
    let Some(mut node) = Node::with_capacity("programs for frames without link headers", larger(2)) else { return };
    assert_eq!(loaded(&node), [false; 2]);
    let configured = node.datapath.config().unwrap();
    attach(&mut node);
    assert_eq!(loaded(&node), [true; 2]);
    // The loader writes to the map of a variable what that begins with.
    assert_eq!(node.datapath.config().unwrap(), configured);
    if !node.datapath.lacks_tcx() {
        let listed = node.netns.enter(|| attached_programs("eth2")).unwrap();
        assert_eq!([listed.ingress, listed.egress].concat(), NAMES);
    }
    let uses = node.datapath.programs().uses().unwrap();
    assert!(NAMES.iter().all(|name| uses.iter().any(|used| used.name == *name)), "{uses:?}");

    // On other maps they are loaded before the first link changes, which is no time to wait for the verifier.
    let node = node.resized(larger(4));
    assert_eq!(loaded(&node), [true; 2]);

    // An agent that died while it pinned them: the others are taken as they are.
    let nic_in = |node: &Node| ProgramInfo::from_pin(node.datapath.program_pin("weir_nic_in")).unwrap().id();
    let before = nic_in(&node);
    std::fs::remove_file(node.datapath.program_pin(NAMES[1])).unwrap();
    let mut node = node.resized(larger(4));
    assert_eq!((loaded(&node), nic_in(&node)), ([true, false], before));
    attach(&mut node);
    assert_eq!((loaded(&node), nic_in(&node)), ([true; 2], before));
}
