//! The parsers on random files: procfs's say the same of good ones, and nothing makes ours panic.

use procfs_core::net::InterfaceDeviceStatus;
use procfs_core::prelude::*;
use procfs_core::{CpuPressure, ExplicitSystemInfo, KernelStats, Meminfo};
use proptest::array::{uniform10, uniform16};
use proptest::collection::vec;
use proptest::prelude::*;
use weir_core::quantity;
use weir_signals::{cpu, memory, network, pressure};

/// Counters below this do not overflow when they are added.
const COUNTER: std::ops::Range<u64> = 0..1 << 60;

fn stat(cpus: &[[u64; 10]]) -> String {
    let line = |name: &str, times: &[u64; 10]| {
        let times = times.map(|time| time.to_string()).join(" ");
        format!("{name} {times}\n")
    };
    let total = line("cpu ", &cpus[0]);
    let each: String = cpus.iter().enumerate().map(|(index, times)| line(&format!("cpu{index}"), times)).collect();
    format!("{total}{each}intr 5 0 0\nctxt 1\nbtime 1700000000\nprocesses 3\nprocs_running 1\nprocs_blocked 0\n")
}

/// What the files hold, and what they should not.
const WORDS: [&str; 12] =
    ["cpu", "cpu0", "some", "avg10=", "MemTotal:", "MemAvailable:", "eth0:", "\n", " ", "-1", "NaN", "intr"];

fn word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::sample::select(&WORDS[..]).prop_map(|word| word.as_bytes().to_vec()),
        any::<u64>().prop_map(|number| number.to_string().into_bytes()),
        vec(any::<u8>(), 0..8),
    ]
}

proptest! {
    #[test]
    fn times_of_cpus_are_those_that_procfs_reads(cpus in vec(uniform10(COUNTER), 1..9)) {
        let text = stat(&cpus);
        let (ticks_per_second, page_size) = (100, 4096);
        let info = ExplicitSystemInfo { boot_time_secs: 0, ticks_per_second, page_size, is_little_endian: true };
        let theirs = KernelStats::from_read(text.as_bytes(), &info).unwrap();
        let ours = cpu::parse(text.as_bytes()).unwrap();
        let total = theirs.total;
        let busy = total.user + total.nice + total.system
            + [total.irq, total.softirq, total.steal].into_iter().flatten().sum::<u64>();
        prop_assert_eq!(ours.busy, busy);
        prop_assert_eq!((ours.idle, Some(ours.iowait)), (total.idle, total.iowait));
        prop_assert_eq!(ours.cores as usize, theirs.cpu_time.len());
    }

    #[test]
    fn memory_is_that_which_procfs_reads(total in 1..1_u64 << 40, available in 0..1_u64 << 40, free in 0..1_u64 << 40) {
        let rest: String = ["Buffers", "Cached", "SwapCached", "Active", "Inactive", "SwapTotal", "SwapFree", "Dirty",
            "Writeback", "Mapped", "Slab", "Committed_AS", "VmallocTotal", "VmallocUsed", "VmallocChunk"]
            .map(|name| format!("{name}: 1 kB\n")).concat();
        let text = format!("MemTotal: {total:8} kB\nMemFree: {free:8} kB\nMemAvailable: {available:8} kB\n{rest}");
        let theirs = Meminfo::from_read(text.as_bytes()).unwrap();
        let ours = memory::parse(text.as_bytes()).unwrap();
        prop_assert_eq!((ours.total * 1024, Some(ours.available * 1024)), (theirs.mem_total, theirs.mem_available));
    }

    #[test]
    fn pressure_is_that_which_procfs_reads(hundredths in 0..=10_000_u32, total in COUNTER) {
        let (whole, part) = (hundredths / 100, hundredths % 100);
        let some = format!("some avg10={whole}.{part:02} avg60=1.00 avg300=2.00 total={total}");
        let text = format!("{some}\nfull avg10=3.00 avg60=0.00 avg300=0.00 total=0\n");
        let theirs = CpuPressure::from_read(text.as_bytes()).unwrap();
        let ours = pressure::parse(text.as_bytes()).unwrap();
        prop_assert!((ours - f64::from(theirs.some.avg10)).abs() < 1e-4);
    }

    #[test]
    fn bytes_of_links_are_those_that_procfs_reads(links in vec(uniform16(COUNTER), 1..6)) {
        let line = |(index, fields): (usize, &[u64; 16])| format!("{:>6}: {:7}{}\n", format!("eth{index}"), fields[0],
            fields[1..].iter().map(|field| format!(" {field:4}")).collect::<String>());
        let text: String = ["head\n".to_owned(), "head\n".to_owned()].into_iter()
            .chain(links.iter().enumerate().map(line)).collect();
        let theirs = InterfaceDeviceStatus::from_read(text.as_bytes()).unwrap();
        prop_assert_eq!(theirs.0.len(), links.len());
        for (name, link) in theirs.0 {
            let ours = network::parse(text.as_bytes(), &name).unwrap();
            prop_assert_eq!((ours.received, ours.sent), (link.recv_bytes, link.sent_bytes));
        }
    }

    #[test]
    fn nothing_makes_them_panic(words in vec(word(), 0..60)) {
        let text = words.join(&b' ');
        let _any = (cpu::parse(&text), memory::parse(&text), pressure::parse(&text), network::parse(&text, "eth0"));
        let _any = quantity::parse(&String::from_utf8_lossy(&text));
    }

    #[test]
    fn a_file_that_was_cut_says_the_same_or_nothing(cpus in vec(uniform10(COUNTER), 1..5), length in any::<usize>()) {
        let text = stat(&cpus);
        let whole = cpu::parse(text.as_bytes());
        let cut = cpu::parse(&text.as_bytes()[..length % text.len()]);
        prop_assert!(cut.is_none() || cut == whole);
    }

    #[test]
    fn a_quantity_is_a_finite_number_or_none(text in "[-+]?[0-9]{0,30}\\.?[0-9]{0,5}([numkMGTPE]i?|e-?[0-9]{1,4})?") {
        prop_assert!(quantity::parse(&text).is_none_or(f64::is_finite));
    }
}
