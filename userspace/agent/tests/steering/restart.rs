//! An agent that starts again finds its shares in the maps and goes on from them.

use weir_testbed::load::Load;

use crate::bed::{Bed, SETTLED, Web};

#[test]
fn an_agent_that_starts_again_keeps_the_shares() {
    let web = Web::new("web", 1);
    let Some(mut bed) = Bed::start("a restart while spilling", std::slice::from_ref(&web), &[]) else { return };
    let load = Load::http(web.http()).concurrency(16).rate(80);
    let asked = load.start(bed.world.node(1).pod(1).netns()).unwrap();
    bed.machines[0].work();
    bed.await_that("half of it to leave", SETTLED, || {
        let spill = bed.slot(1, "web").0.tiers[0].spill;
        if spill > 0x6000 { Ok(()) } else { Err(format!("{spill:#x}")) }
    });
    bed.agents[0].kill();
    let held = bed.slot(1, "web").0.tiers[0].spill;
    let Bed { agents, world, .. } = &mut bed;
    agents[0].start_again(world);
    agents[0].await_ready(world);
    let mut least = held;
    bed.await_that("a decision of the new agent", SETTLED, || {
        least = least.min(bed.slot(1, "web").0.tiers[0].spill);
        let decided = bed.agents[0].metric(&bed.world, "weir_weight_updates_total");
        if decided > 0.0 { Ok(()) } else { Err(format!("{least:#x}")) }
    });
    assert!(least > held / 2, "{held:#x} of new flows left, then {least:#x}");
    drop(asked);
}
