//! Pressure stall information.

use weir_signals::FailureKind;
use weir_signals::pressure::Pressure;

use crate::build::{Tree, at, kind, near, value};

const FULL: &str = "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";

fn pressure(some: &str) -> (Tree, Pressure) {
    let tree = Tree::with(&[("cpu", &format!("{some}{FULL}"))]);
    let pressure = Pressure::new(tree.path("cpu"));
    (tree, pressure)
}

#[test]
fn it_is_the_mean_of_ten_seconds_in_which_some_task_waited() {
    let (_tree, mut pressure) = pressure("some avg10=27.06 avg60=27.13 avg300=19.40 total=2509864255\n");
    assert!(near(value(&mut pressure, at(0)).get(), 0.2706));
}

#[test]
fn more_than_all_the_time_less_than_none_and_no_number_are_lies() {
    for claim in ["100.5", "-1.00", "NaN", "inf"] {
        let (_tree, mut pressure) = pressure(&format!("some avg10={claim} avg60=0.00 avg300=0.00 total=0\n"));
        assert_eq!(kind(&mut pressure, at(0)), FailureKind::Lie, "{claim}");
    }
}

#[test]
fn without_the_number_the_file_is_malformed() {
    for some in ["", "some avg60=1.00\n", "some avg10=\n", "some avg10=much\n"] {
        let (_tree, mut pressure) = pressure(some);
        assert_eq!(kind(&mut pressure, at(0)), FailureKind::Malformed, "{some:?}");
    }
}

#[test]
fn a_line_that_was_cut_is_no_smaller_number() {
    let tree = Tree::with(&[("cpu", "some avg10=27")]);
    assert_eq!(kind(&mut Pressure::new(tree.path("cpu")), at(0)), FailureKind::Malformed);
}

#[test]
fn a_kernel_without_it_has_no_file() {
    assert_eq!(kind(&mut Pressure::new(Tree::new().path("cpu")), at(0)), FailureKind::Missing);
}
