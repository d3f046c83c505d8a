//! Active checks: who is asked when, and which endpoints may be used by what they answer.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use weir_core::endpoint_checks::{
    AllFail, Asked, AskedPort, Check, Counts, EndpointChecks, MOST_AT_ONCE, Question, Standing, Turn,
};
use weir_core::model::{Endpoint, Family, ObjectName, Protocol, Slice, SlicePort};

use crate::build::ip;

const SECOND: Duration = Duration::from_secs(1);
/// The moment at which a test begins.
const START: Duration = Duration::ZERO;

fn check() -> Check {
    Check {
        question: Question::Connect,
        port: AskedPort::Named("http".into()),
        interval: 2 * SECOND,
        timeout: SECOND,
        rise: 2,
        fall: 3,
        all_fail: AllFail::UseAll,
    }
}

fn web() -> ObjectName {
    ObjectName::new("shop", "web")
}

/// A slice of `web` whose endpoints serve its port `http` here.
fn slice(number: u8, port: u16, addresses: &[&str]) -> Slice {
    let endpoints: Vec<_> = addresses.iter().map(|address| Endpoint::new(ip(address))).collect();
    Slice {
        name: ObjectName::new("shop", format!("web-{number}")),
        service: web(),
        family: Family::of(endpoints[0].address),
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port }],
        endpoints,
        triggered: None,
    }
}

/// Checks of `web`, and what its endpoints do.
struct Bed {
    checks: EndpointChecks,
    dead: BTreeSet<SocketAddr>,
    asked: Vec<(Duration, SocketAddr)>,
    turns: Vec<Turn>,
}

impl Bed {
    fn new(check: Check, slices: Vec<Slice>) -> Self {
        let mut checks = EndpointChecks::new(7);
        checks.replace(vec![(web(), check)], slices, START);
        Self { checks, dead: BTreeSet::new(), asked: Vec::new(), turns: Vec::new() }
    }

    /// Lets an endpoint die, or live again.
    fn set(&mut self, endpoint: &str, alive: bool) {
        let endpoint = endpoint.parse().unwrap();
        if alive {
            self.dead.remove(&endpoint)
        } else {
            self.dead.insert(endpoint)
        };
    }

    /// Asks and answers at once whatever is due until `end`; returns when it is done with the last of it.
    fn run(&mut self, end: Duration) {
        while let Some(now) = self.checks.next().filter(|now| *now <= end) {
            for Asked { id, endpoint, check: _ } in self.checks.due(now) {
                self.asked.push((now, endpoint));
                self.turns.extend(self.checks.answered(id, !self.dead.contains(&endpoint)));
            }
        }
    }

    /// The endpoints that are ready.
    fn ready(&self) -> Vec<String> {
        let slices = self.checks.slices();
        let ready = slices.iter().flat_map(|slice| slice.endpoints.iter().map(move |e| (slice, e)));
        let ready = ready.filter(|(_, endpoint)| endpoint.ready);
        ready.map(|(slice, endpoint)| SocketAddr::new(endpoint.address, slice.ports[0].port).to_string()).collect()
    }
}

#[test]
fn an_endpoint_falls_and_rises_after_as_many_answers_in_a_row_as_were_asked_for() {
    let after =
        |answers: &str| answers.chars().fold(Standing::Untried, |standing, answer| standing.after(answer == '+', 2, 3));
    assert_eq!(after("+"), Standing::Passing { failures: 0 });
    assert_eq!(after("-"), Standing::Failing { passes: 0 }, "nothing is known that would speak for it");
    assert_eq!(after("+--"), Standing::Passing { failures: 2 });
    assert_eq!(after("+--+--"), Standing::Passing { failures: 2 }, "an answer makes up for all failures before");
    assert_eq!(after("+---"), Standing::Failing { passes: 0 });
    assert_eq!(after("+---+"), Standing::Failing { passes: 1 });
    assert_eq!(after("+---+-+"), Standing::Failing { passes: 1 });
    assert_eq!(after("+---++"), Standing::Passing { failures: 0 });
    let never = [Standing::Untried, after("-"), after("+---")].map(Standing::passes);
    assert_eq!(never, [false; 3]);
}

#[test]
fn an_endpoint_that_fails_is_not_ready_until_it_works_again() {
    let mut bed = Bed::new(check(), vec![slice(1, 8080, &["10.0.0.1", "10.0.0.2"])]);
    bed.run(START);
    assert_eq!(bed.ready(), ["10.0.0.1:8080", "10.0.0.2:8080"]);
    bed.set("10.0.0.1:8080", false);
    bed.run(20 * SECOND);
    assert_eq!(bed.ready(), ["10.0.0.2:8080"]);
    let failed = bed.turns.last().unwrap();
    let endpoint: SocketAddr = "10.0.0.1:8080".parse().unwrap();
    assert_eq!((failed.endpoint, failed.passes, failed.passing), (endpoint, false, 1));
    let [first, second] = &failed.slices[0].endpoints[..] else { panic!("{failed:?}") };
    assert_eq!((first.ready, first.serving, first.terminating), (false, false, false));
    assert!(second.ready && second.serving);
    bed.set("10.0.0.1:8080", true);
    bed.run(40 * SECOND);
    assert_eq!(bed.ready(), ["10.0.0.1:8080", "10.0.0.2:8080"]);
}

#[test]
fn a_dead_endpoint_is_out_within_the_time_that_its_check_says() {
    for seed in 0..200 {
        let mut bed = Bed::new(check(), vec![slice(1, 80, &["10.0.0.1", "10.0.0.2"])]);
        bed.checks = EndpointChecks::new(seed);
        bed.checks.replace(vec![(web(), check())], vec![slice(1, 80, &["10.0.0.1", "10.0.0.2"])], START);
        let dies = SECOND.mul_f64(10.0 + 2.0 * f64::from(u32::try_from(seed).unwrap()) / 200.0);
        bed.run(dies);
        bed.set("10.0.0.1:80", false);
        bed.run(dies + check().longest_until_out() - check().timeout);
        assert_eq!(bed.ready(), ["10.0.0.2:80"], "seed {seed}");
    }
}

#[test]
fn questions_come_once_an_interval_and_up_to_a_tenth_earlier() {
    let mut bed = Bed::new(check(), vec![slice(1, 80, &["10.0.0.1"])]);
    bed.run(1000 * SECOND);
    let times: Vec<_> = bed.asked.iter().map(|(at, _)| at.as_secs_f64()).collect();
    assert_eq!(times[0], 0.0, "the first one at once");
    assert!(times[1] <= 2.0, "the second one any time within the interval: {}", times[1]);
    let gaps: Vec<_> = times[1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| (1.8..=2.0).contains(gap)), "{gaps:?}");
    let (least, most) = gaps.iter().fold((f64::MAX, 0.0_f64), |(a, b), gap| (a.min(*gap), b.max(*gap)));
    assert!(most - least > 0.1, "they differ: {least} to {most}");
}

#[test]
fn a_service_of_which_nothing_works_is_used_as_a_whole_unless_it_is_to_refuse() {
    for (all_fail, expected) in [(AllFail::UseAll, &["10.0.0.1:80", "10.0.0.2:80"][..]), (AllFail::Refuse, &[][..])] {
        let mut bed = Bed::new(Check { all_fail, ..check() }, vec![slice(1, 80, &["10.0.0.1", "10.0.0.2"])]);
        bed.run(10 * SECOND);
        bed.set("10.0.0.1:80", false);
        bed.run(20 * SECOND);
        assert_eq!(bed.ready(), ["10.0.0.2:80"]);
        bed.set("10.0.0.2:80", false);
        bed.run(30 * SECOND);
        assert_eq!(bed.ready(), expected, "{all_fail:?}");
        assert_eq!(bed.turns.last().unwrap().passing, 0);
        assert_eq!(bed.checks.counts(), Counts { checked: 2, failing: 2, all_failing: 1 });
        bed.set("10.0.0.1:80", true);
        bed.run(40 * SECOND);
        assert_eq!(bed.ready(), ["10.0.0.1:80"], "{all_fail:?}");
    }
}

#[test]
fn each_family_of_a_service_stands_for_itself() {
    let slices = vec![slice(1, 80, &["10.0.0.1"]), slice(2, 80, &["fd00::1", "fd00::2"])];
    let mut bed = Bed::new(check(), slices);
    bed.run(SECOND);
    bed.set("[fd00::1]:80", false);
    bed.set("10.0.0.1:80", false);
    bed.run(20 * SECOND);
    assert_eq!(bed.ready(), ["10.0.0.1:80", "[fd00::2]:80"], "of IPv4 nothing works, so all of it is used");
}

#[test]
fn a_new_endpoint_is_used_when_it_has_answered_and_not_before() {
    let mut bed = Bed::new(check(), vec![slice(1, 80, &["10.0.0.1"])]);
    bed.run(SECOND);
    let both = vec![slice(1, 80, &["10.0.0.1", "10.0.0.2"])];
    bed.checks.replace(vec![(web(), check())], both, 2 * SECOND);
    assert_eq!(bed.ready(), ["10.0.0.1:80"]);
    assert!(!bed.checks.is_settled());
    bed.run(2 * SECOND);
    assert_eq!(bed.ready(), ["10.0.0.1:80", "10.0.0.2:80"], "one answer is enough, and it is asked at once");
    assert!(bed.checks.is_settled());
}

#[test]
fn endpoints_that_stay_stand_where_they_stood_whatever_slice_they_are_in() {
    let mut bed = Bed::new(check(), vec![slice(1, 80, &["10.0.0.1", "10.0.0.2"])]);
    bed.set("10.0.0.1:80", false);
    bed.run(SECOND);
    assert_eq!(bed.ready(), ["10.0.0.2:80"]);
    let moved = vec![slice(1, 81, &["10.0.0.3"]), slice(2, 80, &["10.0.0.1", "10.0.0.2"])];
    bed.checks.replace(vec![(web(), check())], moved, 2 * SECOND);
    assert_eq!(bed.ready(), ["10.0.0.2:80"]);
}

#[test]
fn two_processes_at_one_address_are_two_endpoints() {
    let mut bed = Bed::new(check(), vec![slice(1, 8080, &["10.0.0.1"]), slice(2, 8081, &["10.0.0.1"])]);
    bed.set("10.0.0.1:8081", false);
    bed.run(SECOND);
    assert_eq!(bed.ready(), ["10.0.0.1:8080"]);
}

#[test]
fn a_port_of_the_checks_own_is_asked_in_place_of_the_one_that_is_served() {
    let mut bed =
        Bed::new(Check { port: AskedPort::Number(9000), ..check() }, vec![slice(1, 80, &["10.0.0.1", "10.0.0.2"])]);
    bed.set("10.0.0.1:9000", false);
    bed.run(START);
    let asked: BTreeSet<_> = bed.asked.iter().map(|(_, endpoint)| endpoint.to_string()).collect();
    assert_eq!(asked, BTreeSet::from(["10.0.0.1:9000".to_owned(), "10.0.0.2:9000".to_owned()]));
    assert_eq!(bed.ready(), ["10.0.0.2:80"]);
}

#[test]
fn services_without_a_check_and_endpoints_that_are_not_ready_are_left_alone() {
    let mut draining = slice(1, 80, &["10.0.0.1", "10.0.0.2"]);
    draining.endpoints[0].ready = false;
    draining.endpoints[0].terminating = true;
    let other = Slice { service: ObjectName::new("shop", "other"), ..slice(2, 80, &["10.0.0.9"]) };
    let mut bed = Bed::new(check(), vec![draining.clone(), other.clone()]);
    bed.run(START);
    let asked: Vec<IpAddr> = bed.asked.iter().map(|(_, endpoint)| endpoint.ip()).collect();
    assert_eq!(asked, [ip("10.0.0.2")]);
    assert_eq!(bed.checks.slices(), [other, draining]);
}

#[test]
fn a_service_that_loses_its_check_is_what_the_file_says() {
    let mut bed = Bed::new(check(), vec![slice(1, 80, &["10.0.0.1", "10.0.0.2"])]);
    bed.set("10.0.0.1:80", false);
    bed.run(START);
    bed.checks.replace(Vec::new(), vec![slice(1, 80, &["10.0.0.1", "10.0.0.2"])], SECOND);
    assert_eq!(bed.ready(), ["10.0.0.1:80", "10.0.0.2:80"]);
    assert_eq!((bed.checks.next(), bed.checks.counts()), (None, Counts::default()));
}

#[test]
fn a_changed_check_is_in_force_at_once_and_endpoints_stand_where_they_stood() {
    let slices = || vec![slice(1, 80, &["10.0.0.1", "10.0.0.2"])];
    let mut bed = Bed::new(check(), slices());
    bed.set("10.0.0.1:80", false);
    bed.run(3 * SECOND);
    let asked = bed.asked.len();
    let rare = Check { interval: 3600 * SECOND, ..check() };
    bed.checks.replace(vec![(web(), rare)], slices(), 4 * SECOND);
    assert_eq!(bed.ready(), ["10.0.0.2:80"]);
    bed.run(100 * SECOND);
    let since: Vec<_> = bed.asked[asked..].iter().map(|(at, _)| *at).collect();
    assert_eq!(since, [4 * SECOND, 4 * SECOND]);
}

#[test]
fn no_more_is_asked_at_once_than_there_is_room_for_and_nobody_is_forgotten() {
    let addresses: Vec<String> = (0..1000).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let mut checks = EndpointChecks::new(1);
    checks.replace(vec![(web(), check())], vec![slice(1, 80, &addresses)], START);
    let mut asked = BTreeSet::new();
    let mut under_way = checks.due(START);
    while !under_way.is_empty() {
        assert!(under_way.len() <= MOST_AT_ONCE);
        assert!(checks.due(START).is_empty(), "there is no room before an answer comes");
        assert!(under_way.len() < MOST_AT_ONCE || checks.next().is_none());
        for Asked { id, endpoint, .. } in under_way {
            assert!(asked.insert(endpoint), "{endpoint} is asked twice");
            checks.answered(id, true);
        }
        under_way = checks.due(START);
    }
    assert_eq!(asked.len(), 1000);
}

#[test]
fn an_answer_of_an_endpoint_that_is_gone_says_nothing() {
    let mut bed = Bed::new(check(), vec![slice(1, 80, &["10.0.0.1", "10.0.0.2"])]);
    let under_way = bed.checks.due(START);
    bed.checks.replace(vec![(web(), check())], vec![slice(1, 80, &["10.0.0.2"])], SECOND);
    let turns: Vec<_> = under_way.iter().filter_map(|asked| bed.checks.answered(asked.id, false)).collect();
    let turned: Vec<_> = turns.iter().map(|turn| turn.endpoint.to_string()).collect();
    assert_eq!(turned, ["10.0.0.2:80"]);
    assert_eq!(bed.checks.counts().checked, 1);
}

#[test]
fn random_answers_and_changes_never_leave_a_service_that_has_endpoints_without_one() {
    /// Addresses that come and go.
    const ADDRESSES: RangeInclusive<u8> = 1..=5;
    let seed = 0x5eed;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut checks = EndpointChecks::new(seed);
    let mut now = START;
    for step in 0..5000 {
        now += SECOND.mul_f64(random.f64());
        if step % 50 == 0 {
            let present: Vec<String> =
                ADDRESSES.filter(|_| random.bool()).map(|number| format!("10.0.0.{number}")).collect();
            let present: Vec<&str> = present.iter().map(String::as_str).collect();
            let slices = if present.is_empty() { Vec::new() } else { vec![slice(1, 80, &present)] };
            checks.replace(vec![(web(), check())], slices, now);
        }
        for asked in checks.due(now) {
            checks.answered(asked.id, random.f64() < 0.3);
        }
        for slice in checks.slices() {
            assert!(slice.endpoints.iter().any(|endpoint| endpoint.ready), "seed {seed}, step {step}: {slice:?}");
        }
    }
}
