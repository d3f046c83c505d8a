//! The programs of an agent with another ABI version, which serve the connections that they know for a minute more.

use weir_abi::{ABI_VERSION, CONFIG_BESIDE};
use weir_testbed::wait;

use crate::another_version::{Connection, OLDER, connections, former_links, rename, streams};
use crate::harness::SOON;
use crate::harness::standalone::{self, Standalone, Web, yaml};

#[test]
fn after_a_minute_connections_of_another_version_go_on_by_the_new_programs_where_there_is_one_endpoint() {
    if !standalone::can_run("the end of another version's programs") {
        return;
    }
    let service = Web::new("web", 1, &[2]);
    let mut node = Standalone::start(2, &yaml(std::slice::from_ref(&service)), &[]);
    let mut open = connections(&node, &service);
    node.agent.stop();
    rename(&node.agent, ABI_VERSION, OLDER);
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
    // The next agent goes on with what this one keeps.
    node.agent.kill();
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
    let beside = |node: &Standalone| node.agent.view().config().unwrap().flags & CONFIG_BESIDE != 0;
    assert!(beside(&node) && former_links(&node.agent, ABI_VERSION).exists());
    let traffic = streams(&node, &service);
    let gone = || {
        open.iter_mut().for_each(Connection::assert_goes_on);
        !former_links(&node.agent, ABI_VERSION).exists()
    };
    wait::until("the former programs' end", 8 * SOON, gone).unwrap();
    assert!(!beside(&node));
    open.iter_mut().for_each(Connection::assert_goes_on);
    traffic.streams_go_on();
    traffic.unharmed_by("the end of another ABI version's programs");
}
