//! The network's links.

use weir_core::load::Share;
use weir_signals::network::{Link, LinkBytes, Network, parse};
use weir_signals::{FailureKind, Source};

use crate::build::{Tree, at, failure, kind, near, value};

/// Headers are not read, so they may be shorter than the kernel's.
const HEADER: &str = "Inter-|   Receive        |  Transmit
 face |bytes    packets  |bytes    packets
    lo: 61579997  231875 0 0 0 0 0 0 61579997  231875 0 0 0 0 0 0
";

fn line(link: &str, received: u64, sent: u64) -> String {
    format!("{link:>6}: {received:7} 1 2 3 4 5 6 7 {sent:8} 8 9 10 11 12 13 14\n")
}

fn dev(links: &[(&str, u64, u64)]) -> String {
    links.iter().fold(HEADER.to_owned(), |text, (link, received, sent)| text + &line(link, *received, *sent))
}

/// A machine with a link of 1 Gbit/s.
fn gigabit(text: &str) -> (Tree, Network) {
    let tree = Tree::with(&[("proc/net/dev", text), ("sys/class/net/eth0/speed", "1000\n")]);
    tree.write("sys/class/net/eth0/device/vendor", "");
    tree.write("sys/class/net/veth1/speed", "10000\n");
    let network = network(&tree, &[]);
    (tree, network)
}

fn network(tree: &Tree, links: &[(&str, Option<f64>)]) -> Network {
    let links = links.iter().map(|(name, rate)| Link { name: (*name).to_owned(), rate: *rate });
    Network::new(&tree.path("proc"), &tree.path("sys"), links.collect())
}

#[test]
fn a_link_is_as_busy_as_its_busier_direction() {
    let (tree, mut network) = gigabit(&dev(&[("eth0", 1000, 1000)]));
    assert!(network.read(at(0)).unwrap().is_none());
    // 25 MB and 50 MB in two seconds: 100 and 200 Mbit/s.
    tree.write("proc/net/dev", dev(&[("eth0", 25_001_000, 50_001_000)]));
    assert!(near(value(&mut network, at(2000)).get(), 0.2));
}

#[test]
fn links_without_hardware_do_not_count() {
    let (tree, mut network) = gigabit(&dev(&[("eth0", 0, 0), ("veth1", 0, 0)]));
    network.read(at(0)).unwrap();
    tree.write("proc/net/dev", dev(&[("eth0", 0, 0), ("veth1", 1 << 40, 1 << 40)]));
    assert_eq!(value(&mut network, at(1000)), Share::NONE);
}

#[test]
fn of_several_links_the_busiest_counts_with_the_rates_that_were_named() {
    let tree = Tree::with(&[("proc/net/dev", &dev(&[("slow", 0, 0), ("fast", 0, 0)]))]);
    let mut network = network(&tree, &[("slow", Some(1e6)), ("fast", Some(1e8))]);
    network.read(at(0)).unwrap();
    tree.write("proc/net/dev", dev(&[("slow", 25_000, 0), ("fast", 0, 125_000)]));
    assert!(near(value(&mut network, at(1000)).get(), 0.2), "200 kbit/s of 1 Mbit/s, against 1 of 100 Mbit/s");
    assert!(near(network.rate(), 1e6), "the share is of that link");
}

#[test]
fn within_a_second_nothing_is_told_since_some_hardware_counts_so_seldom() {
    let (tree, mut network) = gigabit(&dev(&[("eth0", 0, 0)]));
    network.read(at(0)).unwrap();
    assert!(network.read(at(250)).unwrap().is_none());
    tree.write("proc/net/dev", dev(&[("eth0", 62_500_000, 0)]));
    assert!(near(value(&mut network, at(1000)).get(), 0.5));
}

#[test]
fn twice_the_rate_is_a_late_counter_and_more_is_a_wrong_rate() {
    let (tree, mut network) = gigabit(&dev(&[("eth0", 0, 0)]));
    network.read(at(0)).unwrap();
    tree.write("proc/net/dev", dev(&[("eth0", 225_000_000, 0)]));
    assert_eq!(value(&mut network, at(1000)), Share::ALL);
    tree.write("proc/net/dev", dev(&[("eth0", 600_000_000, 0)]));
    assert_eq!(kind(&mut network, at(2000)), FailureKind::Lie);
}

#[test]
fn counters_that_go_back_are_measured_anew() {
    let (tree, mut network) = gigabit(&dev(&[("eth0", 1 << 32, 5)]));
    network.read(at(0)).unwrap();
    tree.write("proc/net/dev", dev(&[("eth0", 10, 5)]));
    assert_eq!(kind(&mut network, at(1000)), FailureKind::Reset);
    tree.write("proc/net/dev", dev(&[("eth0", 12_500_010, 5)]));
    assert!(near(value(&mut network, at(2000)).get(), 0.1));
}

#[test]
fn a_link_that_vanishes_is_no_idle_link() {
    let (tree, mut network) = gigabit(&dev(&[("eth0", 0, 0)]));
    network.read(at(0)).unwrap();
    tree.write("proc/net/dev", HEADER);
    let text = failure(&mut network, at(1000)).to_string();
    assert_eq!(text, "link eth0 has no line in /proc/net/dev; it is ignored until it has");
}

#[test]
fn a_link_that_does_not_know_its_speed_is_unknown() {
    for speed in ["-1\n", "4294967295\n", "0\n", "", "fast\n"] {
        let (tree, mut network) = gigabit(&dev(&[("eth0", 0, 0)]));
        tree.write("sys/class/net/eth0/speed", speed);
        let text = failure(&mut network, at(0)).to_string();
        assert!(text.contains("no link with a known speed (name links with their rates)"), "{speed:?}: {text}");
    }
}

#[test]
fn a_rate_that_cannot_be_is_refused() {
    for rate in [0.0, -1e9, f64::NAN, f64::INFINITY] {
        let tree = Tree::with(&[("proc/net/dev", &dev(&[("eth0", 0, 0)]))]);
        assert_eq!(kind(&mut network(&tree, &[("eth0", Some(rate))]), at(0)), FailureKind::Lie, "{rate}");
    }
}

#[test]
fn names_are_not_taken_for_others_that_begin_alike() {
    let text = dev(&[("eth0.100", 1, 2), ("eth0:1", 3, 4), ("veth0", 5, 6), ("eth0", 7, 8)]);
    assert_eq!(parse(text.as_bytes(), "eth0"), Some(LinkBytes { received: 7, sent: 8 }));
    assert_eq!(parse(text.as_bytes(), "eth0:1"), Some(LinkBytes { received: 3, sent: 4 }));
    assert_eq!(parse(text.as_bytes(), "eth"), None);
}

#[test]
fn a_line_that_was_cut_says_nothing() {
    let whole = line("eth0", 1234, 5678);
    for length in 0..whole.len() {
        assert_eq!(parse(&whole.as_bytes()[..length], "eth0"), None, "{:?}", &whole[..length]);
    }
    assert!(parse(whole.as_bytes(), "eth0").is_some());
}

#[test]
fn a_large_number_follows_the_name_without_a_blank() {
    let text = "eth0:3148788000000 1 0 0 0 0 0 0 794204691 1 0 0 0 0 0 0\n";
    let expected = LinkBytes { received: 3_148_788_000_000, sent: 794_204_691 };
    assert_eq!(parse(text.as_bytes(), "eth0"), Some(expected));
}
