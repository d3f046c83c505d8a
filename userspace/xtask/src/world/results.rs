//! Results as they are kept: one JSON file, a record for each number of each repetition.

use std::fs;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::plan::{Block, Case, Figure};
use super::way::{Backend, Family, Proxy, Way};
use crate::benchmark;
use crate::cpu::SATURATED_IDLE;
use crate::origin::Origin;
use crate::spread::Spread;

/// All of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Results {
    #[serde(flatten)]
    pub(super) origin: Origin,
    /// Which programs of Weir's were measured ([`programs`]). Empty in files from before this was kept.
    #[serde(default)]
    pub(super) programs: String,
    /// Parts of it that were measured before, the first one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) earlier: Vec<Part>,
    /// Short connections per second where their number is fixed.
    pub(super) rate: u32,
    pub(super) records: Vec<Record>,
}

/// What was measured up to a time at which somebody else went on.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Part {
    /// The kernel's release.
    pub(super) kernel: String,
    /// As in [`Results`].
    #[serde(default)]
    pub(super) programs: String,
    /// Of its end, in UTC, `2026-11-21`.
    pub(super) date: String,
    /// So many of all records there were by then.
    pub(super) records: usize,
}

/// One number.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Record {
    pub(super) case: Case,
    #[serde(flatten)]
    pub(super) way: Way,
    pub(super) backend: Backend,
    pub(super) family: Family,
    /// The part of connections, where the case has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) quantile: Option<f64>,
    /// From 1.
    pub(super) repetition: u32,
    pub(super) value: f64,
    /// The same in parts of what it is without a service, each round beside its neighbour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) to_direct: Option<f64>,
    pub(super) unit: String,
    /// Connections or requests that failed meanwhile.
    pub(super) failed: u64,
    /// The part of all CPUs that nobody used meanwhile.
    pub(super) idle: f64,
}

impl Record {
    /// Whether a number at a fixed rate is none: there was no room for that rate.
    pub(super) fn is_short(&self) -> bool {
        matches!(self.case, Case::CpuPerConnection | Case::ConnectLatency) && self.idle < SATURATED_IDLE
    }
}

/// What tells builds of the programs in the kernel apart.
pub(super) fn programs() -> String {
    format!("{:016x}", BuildHasherDefault::<DefaultHasher>::default().hash_one(weir_datapath::objects()))
}

impl Results {
    /// These, to be gone on with as `next` does it. What is compared is measured in one block, so that another build of the same kernel, or
    /// of our programs, may go on with the next one; who reads the figures is told of both.
    ///
    /// # Errors
    /// When they were measured in another way, on another machine, or on another version of the kernel.
    pub(super) fn resumed(self, next: Self) -> Result<Self> {
        let way = |results: &Self| {
            let Origin { command, kernel, cpus, model, date: _ } = &results.origin;
            let version = kernel.split('-').next().unwrap_or_default();
            (command.clone(), version.to_owned(), *cpus, model.clone(), results.rate)
        };
        let (before, now) = (way(&self), way(&next));
        ensure!(
            before == now,
            "what was measured before is of {before:?}, now it would be {now:?}: begin anew, without --resume"
        );
        let Self { origin: Origin { kernel, date, .. }, programs, mut earlier, records, .. } = self;
        if (&kernel, &programs, &date) != (&next.origin.kernel, &next.programs, &next.origin.date) {
            earlier.push(Part { kernel, programs, date, records: records.len() });
        }
        Ok(Self { earlier, records, ..next })
    }

    /// Whether a block had its turn in a repetition.
    pub(super) fn has(&self, block: Block, repetition: u32) -> bool {
        let Block { load, backend, family } = block;
        let of = |record: &Record| (record.case.load(), record.backend, record.family, record.repetition);
        self.records.iter().any(|record| of(record) == (load, backend, family, repetition))
    }

    /// Repetitions of every number there is; 0 if there is none.
    pub(super) fn repetitions(&self) -> u32 {
        let mut each: Vec<((Case, Way, Backend, Family), u32)> = Vec::new();
        for Record { case, way, backend, family, repetition, .. } in &self.records {
            let what = (*case, *way, *backend, *family);
            match each.iter_mut().find(|(known, _)| *known == what) {
                Some((_, most)) => *most = *repetition.max(most),
                None => each.push((what, *repetition)),
            }
        }
        each.into_iter().map(|(_, most)| most).min().unwrap_or(0)
    }

    /// Numbers of services, the smallest first.
    pub(super) fn services(&self) -> Vec<u32> {
        let served = self.records.iter().map(|record| record.way).filter(|way| way.proxy != Proxy::None);
        let mut all: Vec<u32> = served.map(|way| way.services).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// What was measured of a figure on one way.
    pub(super) fn at(
        &self,
        figure: Figure,
        way: Way,
        backend: Backend,
        family: Family,
    ) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| {
            (record.case, record.quantile) == (figure.case(), figure.quantile())
                && (record.way, record.backend, record.family) == (way, backend, family)
        })
    }

    /// Median and spread of it; None if it was not measured.
    pub(super) fn spread(&self, figure: Figure, way: Way, backend: Backend, family: Family) -> Option<Spread> {
        Spread::of(self.at(figure, way, backend, family).map(|record| record.value).collect())
    }

    /// Median of it in parts of what it is without a service; None if it was not measured.
    pub(super) fn to_direct(&self, figure: Figure, way: Way, backend: Backend, family: Family) -> Option<f64> {
        Spread::of(self.at(figure, way, backend, family).filter_map(|record| record.to_direct).collect())
            .map(|spread| spread.median)
    }

    /// Keeps them in a file, in which there is always all that was kept before or all that is now.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let next = path.with_extension("next");
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        fs::write(&next, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("cannot write {}", next.display()))?;
        fs::rename(&next, path).with_context(|| format!("cannot replace {}", path.display()))
    }

    /// Those of an earlier run.
    ///
    /// # Errors
    /// When there is no such file, or it is of another version of this program.
    pub(super) fn load(path: &Path) -> Result<Self> {
        benchmark::kept(path)?.with_context(|| format!("there is no {}: measure first", path.display()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::super::plan::Load;
    use super::super::way::Path;
    use super::*;

    /// A number that somebody measured over IPv4, where it is 100 without a service.
    pub(in super::super) fn record(figure: Figure, way: Way, backend: Backend, value: f64) -> Record {
        Record {
            case: figure.case(),
            way,
            backend,
            family: Family::V4,
            quantile: figure.quantile(),
            repetition: 1,
            value,
            to_direct: (way != Way::DIRECT).then_some(value / 100.0),
            unit: figure.unit().into(),
            failed: 0,
            idle: 0.5,
        }
    }

    pub(in super::super) fn results(records: Vec<Record>) -> Results {
        Results { origin: Origin::default(), programs: "a".into(), earlier: Vec::new(), rate: 1000, records }
    }

    #[test]
    fn a_record_has_the_names_that_readers_of_the_file_know() {
        let way = Way { path: Path::ClusterIp, services: 10_000, proxy: Proxy::Nftables };
        let record = record(Figure::Connect99, way, Backend::Remote, 250.0);
        let text = serde_json::to_value(&record).unwrap();
        let wanted = json!({
            "case": "connect_latency", "path": "clusterip", "services": 10_000, "proxy": "kube-proxy nftables",
            "backend": "remote", "family": "IPv4", "quantile": 0.99, "repetition": 1, "value": 250.0,
            "to_direct": 2.5, "unit": "us", "failed": 0, "idle": 0.5,
        });
        assert_eq!(text, wanted);
        assert_eq!(serde_json::from_value::<Record>(text).unwrap(), record);
        let direct = serde_json::to_value(Way::DIRECT).unwrap();
        assert_eq!(direct, json!({"path": "direct", "services": 0, "proxy": "none"}));
    }

    #[test]
    fn a_run_goes_on_where_another_has_ended() {
        let way = Way { path: Path::NodePort, services: 10, proxy: Proxy::Weir };
        let block = |load| Block { load, backend: Backend::Local, family: Family::V4 };
        let before = results(vec![record(Figure::Connect99, way, Backend::Local, 3.0)]);
        let resumed = before.clone().resumed(results(Vec::new())).unwrap();
        assert!(resumed.has(block(Load::Paced), 1));
        assert!(!resumed.has(block(Load::Paced), 2) && !resumed.has(block(Load::Bulk), 1));
        let changes: [fn(&mut Origin); 2] =
            [|origin| origin.kernel = "another".into(), |origin| origin.model = "another".into()];
        for change in changes {
            let mut elsewhere = results(Vec::new());
            change(&mut elsewhere.origin);
            assert!(before.clone().resumed(elsewhere).unwrap_err().to_string().contains("another"));
        }
    }

    #[test]
    fn another_build_of_the_same_kernel_or_of_our_programs_goes_on_and_is_named_beside_the_first() {
        let of = |kernel: &str, date: &str, records| {
            let origin = Origin { kernel: kernel.into(), date: date.into(), ..Origin::default() };
            Results { origin, ..results(records) }
        };
        let measured = vec![record(Figure::Bulk, Way::DIRECT, Backend::Local, 1.0)];
        let first = of("6.18.44-1", "2026-11-25", measured.clone());
        let same = first.clone().resumed(of("6.18.44-1", "2026-11-25", Vec::new())).unwrap();
        assert_eq!((same.earlier, same.records), (Vec::new(), measured));
        let second = first.clone().resumed(of("6.18.44-2", "2026-11-25", Vec::new())).unwrap();
        let part = |kernel: &str, date: &str| Part {
            kernel: kernel.into(),
            programs: "a".into(),
            date: date.into(),
            records: 1,
        };
        assert_eq!(second.earlier, [part("6.18.44-1", "2026-11-25")]);
        let third = second.resumed(of("6.18.44-2", "2026-11-26", Vec::new())).unwrap();
        assert_eq!(third.earlier, [part("6.18.44-1", "2026-11-25"), part("6.18.44-2", "2026-11-25")]);
        let others = Results { programs: "b".into(), ..of("6.18.44-1", "2026-11-25", Vec::new()) };
        let third = first.clone().resumed(others).unwrap();
        assert_eq!((third.programs.as_str(), third.earlier), ("b", vec![part("6.18.44-1", "2026-11-25")]));
        assert!(first.resumed(of("6.18.45-1", "2026-11-25", Vec::new())).unwrap_err().to_string().contains("6.18.45"));
    }

    #[test]
    fn what_is_kept_is_there_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bench").join("world.json");
        for value in [1.0, 2.0] {
            let kept = results(vec![record(Figure::Bulk, Way::DIRECT, Backend::Local, value)]);
            kept.write(&path).unwrap();
            assert_eq!(Results::load(&path).unwrap().records, kept.records);
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing but the file");
    }

    #[test]
    fn a_repetition_counts_when_every_number_has_it() {
        let way = Way { path: Path::NodePort, services: 10, proxy: Proxy::Weir };
        let of = |figure, repetition| Record { repetition, ..record(figure, way, Backend::Local, 1.0) };
        let mut all = results(vec![of(Figure::Burst, 1), of(Figure::Burst, 2), of(Figure::Bulk, 1)]);
        assert_eq!(all.repetitions(), 1);
        all.records.push(of(Figure::Bulk, 2));
        assert_eq!(all.repetitions(), 2);
        all.records.push(record(Figure::Bulk, Way::DIRECT, Backend::Local, 1.0));
        assert_eq!(all.repetitions(), 1, "one way still lacks the second one");
    }

    #[test]
    fn medians_are_of_the_same_figure_on_the_same_way() {
        let way = Way { path: Path::NodePort, services: 10, proxy: Proxy::Weir };
        let of = |figure, value| record(figure, way, Backend::Local, value);
        let mut other = of(Figure::ConnectMedian, 7.0);
        other.family = Family::V6;
        let records =
            vec![of(Figure::ConnectMedian, 3.0), of(Figure::Connect99, 9.0), of(Figure::ConnectMedian, 5.0), other];
        let results = results(records);
        let median = |figure| results.spread(figure, way, Backend::Local, Family::V4).map(|spread| spread.median);
        assert_eq!([Figure::ConnectMedian, Figure::Connect99, Figure::Cpu].map(median), [Some(4.0), Some(9.0), None]);
        let ratio = |figure| results.to_direct(figure, way, Backend::Local, Family::V4);
        assert_eq!([Figure::ConnectMedian, Figure::Connect99, Figure::Cpu].map(ratio), [Some(0.04), Some(0.09), None]);
        assert_eq!((results.services(), results.repetitions()), (vec![10], 1));
    }
}
