//! The machine's CPUs.

use weir_signals::cpu::{CpuTimes, MachineCpu, parse};
use weir_signals::{FailureKind, Source};

use crate::build::{Tree, at, failure, kind, near, value};

/// /proc/stat of two CPUs with so much time busy, idle and waiting for disks.
fn stat(busy: u64, idle: u64, iowait: u64) -> String {
    let each = "cpu0 1 0 0 1 0 0 0 0 0 0\ncpu1 1 0 0 1 0 0 0 0 0 0\n";
    format!("cpu  {busy} 0 0 {idle} {iowait} 0 0 0 0 0\n{each}intr 20495489 0 0\n")
}

fn machine(text: &str) -> (Tree, MachineCpu) {
    let tree = Tree::with(&[("stat", text)]);
    let cpu = MachineCpu::new(tree.root());
    (tree, cpu)
}

#[test]
fn the_share_is_that_of_busy_time_between_two_readings() {
    let (tree, mut cpu) = machine(&stat(1000, 5000, 0));
    assert!(cpu.read(at(0)).unwrap().is_none(), "one reading of a counter says nothing");
    tree.write("stat", stat(1030, 5070, 0));
    let used = value(&mut cpu, at(500));
    assert!(near(used.share.get(), 0.3));
    assert!(near(used.capacity, 2.0));
}

#[test]
fn time_that_the_hypervisor_took_is_busy_and_that_of_guests_is_not_counted_twice() {
    let text = b"cpu  10 20 30 400 50 6 7 8 9 10\ncpu0 10 20 30 400 50 6 7 8 9 10\nintr 1\n";
    assert_eq!(parse(text), Some(CpuTimes { busy: 10 + 20 + 30 + 6 + 7 + 8, idle: 400, iowait: 50, cores: 1 }));
}

#[test]
fn iowait_that_goes_back_is_no_reset() {
    let (tree, mut cpu) = machine(&stat(1000, 5000, 500));
    cpu.read(at(0)).unwrap();
    tree.write("stat", stat(1050, 5050, 400));
    assert!(near(value(&mut cpu, at(500)).share.get(), 0.5));
}

#[test]
fn a_reading_too_soon_is_taken_together_with_the_next() {
    let (tree, mut cpu) = machine(&stat(1000, 5000, 0));
    cpu.read(at(0)).unwrap();
    tree.write("stat", stat(1001, 5000, 0));
    assert!(cpu.read(at(10)).unwrap().is_none(), "a single tick would be 100 %");
    tree.write("stat", stat(1010, 5090, 0));
    assert!(near(value(&mut cpu, at(500)).share.get(), 0.1));
}

#[test]
fn counters_that_go_back_are_measured_anew() {
    let (tree, mut cpu) = machine(&stat(1000, 5000, 700));
    cpu.read(at(0)).unwrap();
    tree.write("stat", stat(10, 20, 3));
    assert_eq!(kind(&mut cpu, at(500)), FailureKind::Reset);
    tree.write("stat", stat(30, 100, 3));
    assert!(near(value(&mut cpu, at(1000)).share.get(), 0.2));
}

#[test]
fn counters_that_stand_still_are_stalled_and_not_idle() {
    let (_tree, mut cpu) = machine(&stat(1000, 5000, 0));
    cpu.read(at(0)).unwrap();
    assert_eq!(kind(&mut cpu, at(500)), FailureKind::Stalled);
}

#[test]
fn a_mean_over_a_long_pause_is_not_what_is_so_now() {
    let (tree, mut cpu) = machine(&stat(1000, 5000, 0));
    cpu.read(at(0)).unwrap();
    tree.write("stat", stat(1000, 9000, 0));
    assert_eq!(kind(&mut cpu, at(20_000)), FailureKind::Stalled);
    tree.write("stat", stat(1050, 9050, 0));
    assert!(near(value(&mut cpu, at(20_500)).share.get(), 0.5));
}

#[test]
fn a_file_that_was_cut_anywhere_before_its_third_line_but_one_is_malformed() {
    let whole = stat(1000, 5000, 0);
    let enough = whole.find("intr").unwrap() + 1;
    for length in 0..enough {
        assert_eq!(parse(&whole.as_bytes()[..length]), None, "{:?}", &whole[..length]);
    }
    assert!(parse(whole.as_bytes()).is_some());
}

#[test]
fn numbers_that_are_none_or_too_large_are_malformed() {
    for field in ["-1", "NaN", "1e3", "18446744073709551616", "18446744073709551615"] {
        let (_tree, mut cpu) = machine(&stat(1, 1, 1).replacen("cpu  1 0", &format!("cpu  {field} 1"), 1));
        assert_eq!(kind(&mut cpu, at(0)), FailureKind::Malformed, "{field}");
    }
}

#[test]
fn what_is_missing_is_named_with_what_becomes_of_it() {
    let tree = Tree::new();
    let text = failure(&mut MachineCpu::new(tree.root()), at(0)).to_string();
    let path = tree.path("stat");
    assert!(text.starts_with(&format!("cannot read {}: No such file", path.display())), "{text}");
    assert!(text.ends_with("unknown until it can be read"), "{text}");
}

#[test]
fn what_may_not_be_read_is_missing() {
    let (tree, mut cpu) = machine(&stat(1, 1, 1));
    let path = tree.path("stat");
    let mut mode = std::fs::metadata(&path).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0);
    std::fs::set_permissions(&path, mode).unwrap();
    // Root reads everything, unless its thread is somebody else to the file system.
    let text = std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
            failure(&mut cpu, at(0))
        });
        read.join().unwrap()
    });
    assert_eq!(text.kind(), FailureKind::Missing);
    assert!(text.to_string().contains("Permission denied"), "{text}");
}

#[test]
fn a_directory_or_a_file_without_end_is_refused() {
    let tree = Tree::with(&[("stat/file", "")]);
    assert_eq!(kind(&mut MachineCpu::new(tree.root()), at(0)), FailureKind::Missing);
    let (_tree, mut cpu) = machine(&"x".repeat(2 << 20));
    assert_eq!(kind(&mut cpu, at(0)), FailureKind::Malformed);
}
