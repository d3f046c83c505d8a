//! What short connections at a fixed rate tell.

use std::net::SocketAddr;
use std::time::Duration;

use weir_testbed::paced::{Failure, Paced, Report};
use weir_testbed::{Result, World, require_root, serve};

const PORT: u16 = 8080;
/// Where nobody listens.
const CLOSED: u16 = 8081;
const ROUND_TRIP: Duration = Duration::from_millis(10);

fn connect_for_a_second(world: &World, port: u16, per_second: u32) -> Result<Report> {
    let (client, server) = (world.node(1).pod(1), world.node(2).pod(1));
    let target = SocketAddr::new(server.address().v4.into(), port);
    Paced { target, per_second, time: Duration::from_secs(1) }.start(client.netns())?.finish()
}

#[test]
fn connections_keep_the_rate_however_far_the_server_is_and_connecting_takes_a_round_trip_at_least() {
    if !require_root("connections at a fixed rate") {
        return;
    }
    let world = World::builder().delay(ROUND_TRIP).build().unwrap();
    let _server = serve::http(world.node(2).pod(1).netns(), "pod", PORT).unwrap();
    let report = connect_for_a_second(&world, PORT, 300).unwrap();
    assert_eq!((report.opened, report.answered, report.failed()), (300, 300, 0));
    assert_eq!(report.connect.len(), 300);
    // The histogram has three digits.
    let first = report.connect_quantile(0.0);
    assert!(first >= ROUND_TRIP.mul_f64(0.99), "{first:?}");
}

#[test]
fn connections_that_are_refused_have_failed_and_tell_no_time() {
    if !require_root("refused connections") {
        return;
    }
    let world = World::builder().build().unwrap();
    let report = connect_for_a_second(&world, CLOSED, 100).unwrap();
    assert_eq!((report.opened, report.failed(), report.connect.len()), (100, 100, 0));
    let refused = |failure: &Failure| failure.connected.is_none() && failure.reason.contains("refused");
    assert_eq!(report.failures.iter().filter(|failure| refused(failure)).count(), 100, "{:?}", report.failures[0]);
}
