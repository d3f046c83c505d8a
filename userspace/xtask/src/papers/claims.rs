//! What must hold of the papers' figures, and whether it does.

use super::experiments::{Contender, Figure};
use super::results::{Record, Results};
use crate::claim::{Bound, Claim};
use weir_testbed::kube_proxy::Mode;

const WEIR: Contender = Contender::Weir("waterfill");
const RAP: Contender = Contender::Weir("rap");
const NEAREST_HALF: Contender = Contender::Weir("nearest-half");
const IPTABLES: Contender = Contender::KubeProxy(Mode::Iptables);

/// All claims about a figure whose points were measured.
pub(super) fn of(figure: Figure, results: &Results) -> Vec<Claim> {
    let points: Vec<String> = figure.points().into_iter().map(|point| point.x).collect();
    let median = |x: &str, contender, of| results.summary(x, contender, of).map(|spread| spread.median);
    let rps = |x: &str, contender| median(x, contender, |record: &Record| record.rps);
    let mean = |x: &str, contender| median(x, contender, |record: &Record| record.mean_ms);
    let ratio = |x: &str, to| Some(rps(x, WEIR)? / rps(x, to)?);
    let faster = |x: &str, than| Some(mean(x, than)? / mean(x, WEIR)?);
    let worst = |of: &dyn Fn(&str) -> Option<f64>, at: &[&str]| {
        at.iter().map(|x| of(x)).collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::min)
    };
    let all: Vec<&str> = points.iter().map(String::as_str).collect();
    let claim = |text: &str, seen: Option<f64>, least| {
        seen.map(|seen| Claim { text: text.to_owned(), seen, bound: Bound::AtLeast(least) })
    };
    let claims = match figure {
        Figure::Threshold => vec![],
        Figure::Delay => vec![
            claim("requests/s at 18 ms / at 3 ms", (|| Some(rps("18", WEIR)? / rps("3", WEIR)?))(), 0.95),
            claim("requests/s / iptables, at 18 ms", ratio("18", IPTABLES), 4.0),
        ],
        Figure::Concentrated => vec![
            claim("requests/s / iptables, 32 concurrent", ratio("32", IPTABLES), 1.5),
            claim(
                "mean latency of iptables / ours, 1 to 4 concurrent",
                worst(&|x| faster(x, IPTABLES), &all[..3]),
                5.0,
            ),
        ],
        Figure::Distributed => vec![
            claim("requests/s / iptables, worst ratio", worst(&|x| ratio(x, IPTABLES), &all), 0.97),
            claim("requests/s / `rap`, worst ratio", worst(&|x| ratio(x, RAP), &all), 0.97),
            claim("requests/s / `rap`, 32:2:1:1", ratio("32:2:1:1", RAP), 1.15),
            claim("requests/s / `rap`, 16:4:4:4", ratio("16:4:4:4", RAP), 1.15),
        ],
        Figure::EdgeMesh => vec![
            claim("requests/s / random, worst step", worst(&|x| ratio(x, IPTABLES), &all), 1.0),
            claim("requests/s / `nearest-half`, worst step", worst(&|x| ratio(x, NEAREST_HALF), &all), 1.0),
            claim("mean response of random / ours, worst step", worst(&|x| faster(x, IPTABLES), &all), 1.0),
            claim("mean response of `nearest-half` / ours, worst step", worst(&|x| faster(x, NEAREST_HALF), &all), 1.0),
        ],
    };
    claims.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::super::slice::Calibration;
    use super::*;
    use crate::origin::Origin;

    fn results(rows: &[(&str, Contender, f64, f64)]) -> Results {
        let records = rows.iter().map(|(x, contender, rps, mean_ms)| Record {
            figure: String::new(),
            x: (*x).into(),
            proxy: contender.proxy().into(),
            policy: contender.policy().into(),
            repetition: 1,
            rps: *rps,
            mean_ms: *mean_ms,
            p99_ms: 0.0,
            failed: 0,
            generator: 0.0,
            idle: 1.0,
        });
        let calibration = Calibration { cores: 0.25, rps: 0.0, server_us: 0.0, client_us: 0.0 };
        Results { figure: String::new(), origin: Origin::default(), calibration, records: records.collect() }
    }

    #[test]
    fn delay_must_cost_weir_nearly_nothing_and_kube_proxy_much() {
        let good = results(&[("3", WEIR, 6000.0, 1.0), ("18", WEIR, 5900.0, 1.0), ("18", IPTABLES, 1000.0, 27.0)]);
        assert!(of(Figure::Delay, &good).iter().all(Claim::holds));
        let bad = results(&[("3", WEIR, 6000.0, 1.0), ("18", WEIR, 5000.0, 1.0), ("18", IPTABLES, 1000.0, 27.0)]);
        let held: Vec<bool> = of(Figure::Delay, &bad).iter().map(Claim::holds).collect();
        assert_eq!(held, [false, true]);
    }

    #[test]
    fn what_was_not_measured_is_not_claimed() {
        assert_eq!(of(Figure::Distributed, &results(&[("2:2:2:2", WEIR, 1.0, 1.0)])), []);
    }
}
