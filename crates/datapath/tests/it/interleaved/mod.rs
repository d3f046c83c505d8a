//! Two CPUs at once, one between the steps of the other: `two_cpus.c`, with the path compiled for this machine. What no
//! test in the kernel could lead to at will; what it does not see is the order in which a CPU shows its stores.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use weir_abi as abi;

/// The program, compiled once for all tests.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (new, program) = (directory.join(format!("new-{}", std::process::id())), directory.join("interleaved"));
    let mut command = Command::new(env::var("WEIR_CLANG").unwrap_or_else(|_| "clang-19".to_owned()));
    command.args(["-O1", "-g", "-Wall", "-Wno-unused", "-Ibpf"]);
    command.args(["-fsanitize-coverage=func,trace-pc,trace-loads,trace-stores", "-fno-sanitize-link-runtime"]);
    command.args(["crates/datapath/tests/it/interleaved/two_cpus.c", "-o"]);
    let output = command.arg(&new).current_dir(&root).output().expect("clang, which has compiled the objects");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Another run of the tests may be using it.
    fs::rename(new, &program).unwrap();
    program
});

#[track_caller]
fn holds(scenario: &str) {
    let output = Command::new(&*PROGRAM).arg(scenario).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Keys of either family, as the programs hash them and as Rust does, for which the agent finds what they have written.
#[test]
fn the_programs_hash_a_key_as_everybody_else() {
    let mut rng = fastrand::Rng::with_seed(0x5eed);
    for _ in 0..20 {
        for size in [size_of::<abi::FlowKey4>(), size_of::<abi::FlowKey6>()] {
            let key: Vec<_> = (0..size / size_of::<u32>()).map(|_| rng.u32(..)).collect();
            let (seed, step) = (rng.u64(..), abi::opening_step(rng.u32(1..=100_000)));
            let arguments = [seed, step.into()].into_iter().chain(key.iter().map(|word| (*word).into()));
            let output =
                Command::new(&*PROGRAM).arg("hash").args(arguments.map(|number: u64| number.to_string())).output();
            let hash = String::from_utf8(output.unwrap().stdout).unwrap().trim().parse();
            assert_eq!(hash, Ok(abi::opening_hash(&key, seed, step)), "{key:?} with {seed} and {step}");
        }
    }
}

#[test]
fn while_a_flow_moves_neither_its_packets_nor_its_answers_miss_it() {
    holds("moves");
}

#[test]
fn what_a_backend_says_of_a_connections_end_is_not_lost_while_its_flow_moves() {
    holds("closes");
}

#[test]
fn a_connection_that_both_sides_close_at_the_same_time_has_ended() {
    holds("both close");
}

#[test]
fn a_connection_that_goes_on_after_a_reset_in_its_clients_name_counts_once_and_ends_when_its_backend_says_so() {
    holds("revives");
}

#[test]
fn while_a_flow_moves_no_other_one_gets_its_source_port() {
    holds("ports");
}

#[test]
fn of_two_one_keeps_a_source_port_and_the_other_takes_its_turn_but_not_the_same_one() {
    holds("keeps");
}

#[test]
fn while_the_agent_finds_out_what_goes_on_a_flow_that_moves_there_is_not_missed() {
    holds("filter");
}

#[test]
fn while_a_flow_that_has_ended_moves_back_its_clients_packets_do_not_miss_it() {
    holds("ends");
}

#[test]
fn a_first_packet_that_comes_twice_at_once_begins_one_flow() {
    holds("begins");
}

#[test]
fn a_syn_that_leaves_a_backend_and_that_backends_answer_do_not_pass_each_other() {
    holds("leaves");
}

#[test]
fn of_two_that_add_the_same_key_at_once_one_gets_it_or_neither() {
    holds("adds");
}

#[test]
fn two_that_need_places_of_a_full_set_at_once_get_one_each() {
    holds("needs");
}

#[test]
fn of_two_that_need_places_at_once_one_gets_that_of_a_flow_which_has_ended_and_the_other_another() {
    holds("ended");
}

#[test]
fn two_that_need_places_at_once_leave_connections_theirs_that_have_settled() {
    holds("settled");
}

#[test]
fn what_is_being_written_is_found_whole_or_not_at_all() {
    holds("looks");
}
