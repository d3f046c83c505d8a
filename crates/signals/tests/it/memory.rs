//! The machine's memory.

use weir_signals::FailureKind;
use weir_signals::memory::MachineMemory;

use crate::build::{Tree, at, kind, near, value};

fn read(text: &str) -> (Tree, MachineMemory) {
    let tree = Tree::with(&[("meminfo", text)]);
    let memory = MachineMemory::new(tree.root());
    (tree, memory)
}

#[test]
fn what_is_not_available_is_in_use() {
    let (_tree, mut memory) = read("MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n");
    assert!(near(value(&mut memory, at(0)).get(), 0.6));
}

#[test]
fn more_available_than_there_is_is_a_lie() {
    let (_tree, mut memory) = read("MemTotal: 1000 kB\nMemAvailable: 1200 kB\n");
    assert_eq!(kind(&mut memory, at(0)), FailureKind::Lie);
}

#[test]
fn a_machine_without_memory_is_a_lie() {
    let (_tree, mut memory) = read("MemTotal: 0 kB\nMemAvailable: 0 kB\n");
    assert_eq!(kind(&mut memory, at(0)), FailureKind::Lie);
}

#[test]
fn without_one_of_the_lines_or_with_one_cut_the_file_is_malformed() {
    for text in ["", "MemTotal: 1000 kB\n", "MemAvailable: 400 kB\n", "MemTotal: 1000 kB\nMemAvailable: 4"] {
        let (_tree, mut memory) = read(text);
        assert_eq!(kind(&mut memory, at(0)), FailureKind::Malformed, "{text:?}");
    }
}
