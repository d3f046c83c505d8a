//! Every number of `enum reason` is reached: by the corpus, or by a test of its own that is named here.

use std::fs;
use std::path::Path;

use weir_abi as abi;
use weir_abi::names::reason_name;

use super::Reached;

/// How a reason is reached where no scenario does it.
enum Elsewhere {
    /// The file and the name of a test that asserts it.
    Test(&'static str, &'static str),
    /// No test can lead there, and why.
    Nothing(#[expect(dead_code, reason = "for people")] &'static str),
}

const ELSEWHERE: &[(u32, Elsewhere)] = &[
    (abi::REASON_NONE, Elsewhere::Nothing("it is no reason, but the number of what is not set")),
    (
        abi::REASON_XDP_DONE,
        Elsewhere::Test(
            "userspace/agent/tests/it/services_attached.rs",
            "tc_leaves_alone_what_xdp_has_translated_for_a_process_of_the_node_or_a_pod",
        ),
    ),
    (
        abi::REASON_TOO_BIG,
        Elsewhere::Test(
            "crates/datapath/tests/it/fragments.rs",
            "a_later_piece_that_is_too_big_for_its_way_and_has_nothing_to_quote_is_dropped",
        ),
    ),
    (
        abi::REASON_UNTOLD,
        Elsewhere::Test(
            "crates/datapath/tests/it/refusals.rs",
            "a_cpu_tells_its_part_of_the_errors_in_a_tick_and_drops_what_more_there_are",
        ),
    ),
];

/// Asserts that no reason is forgotten, and that none is excused for nothing.
pub(super) fn assert_complete(reached: &Reached) {
    let is_reached = |reason: u32| reached.iter().any(|(_, other)| *other == reason);
    for number in 0..abi::REASON_COUNT {
        let (reason, name) = (u32::try_from(number).unwrap(), reason_name(number));
        let elsewhere = ELSEWHERE.iter().find(|(other, _)| *other == reason);
        match (is_reached(reason), elsewhere) {
            (true, None) => assert_ne!(name, "unknown", "{number} has no name"),
            (false, None) => {
                assert_eq!(name, "unknown", "no entry of the corpus reaches {name} ({number}), and no test is named");
            }
            (true, Some(_)) => panic!("the corpus reaches {name}: it needs no excuse"),
            (false, Some((_, Elsewhere::Nothing(_)))) => {}
            (false, Some((_, Elsewhere::Test(file, test)))) => {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
                let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let code = format!("REASON_{}", name.to_uppercase());
                assert!(asserts(&text, test, &code), "{test} of {file} does not assert {code}");
            }
        }
    }
}

/// Whether a test of a file is run always and names a constant.
fn asserts(text: &str, test: &str, constant: &str) -> bool {
    let Some((before, rest)) = text.split_once(&format!("\nfn {test}() {{\n")) else { return false };
    let body = rest.split_once("\n}\n").map_or(rest, |(body, _)| body);
    before.ends_with("#[test]") && body.contains(constant)
}
