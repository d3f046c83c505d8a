//! When it is told, second by second.

use super::*;

/// A reporter with a clock.
struct Desk {
    reporter: Reporter,
    now: Instant,
}

impl Desk {
    fn new() -> Self {
        Self { reporter: Reporter::default(), now: Instant::now() }
    }

    /// Looks every second at services, each with the part of its flows that leaves.
    fn watch(&mut self, seconds: u64, shares: &[(&str, f64)]) -> Vec<News> {
        let services: Vec<_> = shares.iter().map(|(name, share)| (service(name), *share)).collect();
        let mut news = Vec::new();
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            let spills =
                services.iter().map(|(name, share)| Spill { service: name, offered: 40.0, spilled: 40.0 * share });
            news.extend(self.reporter.look(self.now, spills, std::iter::empty()));
        }
        news
    }

    /// Looks once at endpoints that are out: service, last byte of the address, node, whether that is silent.
    fn out(&mut self, out: &[(&str, u8, &str, bool)]) -> Vec<News> {
        let out: Vec<_> = out
            .iter()
            .map(|(name, n, node, silent)| (service(name), address(*n), Arc::<str>::from(*node), *silent))
            .collect();
        let ejected = out.iter().map(|(service, address, node, silent)| Ejected {
            service,
            address: *address,
            node,
            silent: *silent,
        });
        self.now += Duration::from_secs(1);
        self.reporter.look(self.now, std::iter::empty(), ejected)
    }
}

fn service(name: &str) -> ObjectName {
    ObjectName::new("shop", name)
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 80))
}

/// What was told of spills: the service, and the largest per cent if it is over.
fn told(news: &[News]) -> Vec<(String, Option<f64>)> {
    let told = news.iter().map(|news| match news {
        News::SpillBegan { service, share: _ } => (service.name.to_string(), None),
        News::SpillCeased { service, lasted: _, most } => (service.name.to_string(), Some((most * 100.0).round())),
        News::Ejected { .. } | News::Silent { .. } => panic!("{news:?}"),
    });
    told.collect()
}

fn began(name: &str) -> Vec<(String, Option<f64>)> {
    vec![(name.to_owned(), None)]
}

#[test]
fn a_spill_is_told_when_it_has_lasted_and_when_it_was_over_for_a_while() {
    let mut desk = Desk::new();
    assert_eq!(desk.watch(5, &[("web", 0.3)]), [], "it may be a moment's");
    assert_eq!(told(&desk.watch(1, &[("web", 0.3)])), began("web"));
    assert_eq!((desk.reporter.spilling(), desk.reporter.spills()), (1, 1));
    assert_eq!(desk.watch(30, &[("web", 0.6)]), []);
    assert_eq!(desk.watch(45, &[("web", 0.0)]), [], "it may come back");
    assert_eq!(told(&desk.watch(15, &[("web", 0.0)])), [("web".to_owned(), Some(60.0))]);
    assert_eq!((desk.reporter.spilling(), desk.reporter.spills()), (0, 1));
}

#[test]
fn a_share_between_the_two_limits_neither_begins_nor_ends_a_spill() {
    let mut desk = Desk::new();
    assert_eq!(desk.watch(60, &[("web", 0.03)]), []);
    assert_eq!(told(&desk.watch(10, &[("web", 0.2)])), began("web"));
    assert_eq!(desk.watch(300, &[("web", 0.03)]), []);
    assert_eq!(desk.reporter.spilling(), 1);
}

#[test]
fn a_share_that_swings_is_one_spill() {
    let mut desk = Desk::new();
    let mut news = Vec::new();
    for _ in 0..10 {
        news.extend(desk.watch(10, &[("web", 0.2)]));
        news.extend(desk.watch(20, &[("web", 0.0)]));
    }
    assert_eq!(told(&news), began("web"));
}

#[test]
fn single_flows_that_leave_now_and_then_are_no_spill_and_a_few_that_do_all_the_time_are() {
    let mut desk = Desk::new();
    for _ in 0..60 {
        assert_eq!(desk.watch(1, &[("web", 0.2)]), []);
        assert_eq!(desk.watch(59, &[("web", 0.0)]), []);
    }
    for _ in 0..2 {
        drop(desk.watch(1, &[("web", 1.0)]));
        drop(desk.watch(3, &[("web", 0.0)]));
    }
    assert_eq!(desk.reporter.spilling(), 1, "a quarter of them left");
}

#[test]
fn a_service_that_spills_again_soon_is_told_of_after_ten_minutes_if_it_still_does() {
    let mut desk = Desk::new();
    assert_eq!(desk.watch(10, &[("web", 0.2)]).len(), 1);
    assert_eq!(desk.watch(60, &[]).len(), 1, "nobody uses it");
    assert_eq!(desk.watch(100, &[("web", 0.4)]), []);
    assert_eq!(desk.watch(60, &[]), [], "who was not told of the beginning is not told of the end");
    assert_eq!(told(&desk.watch(500, &[("web", 0.4)])), began("web"));
    assert_eq!(desk.reporter.spills(), 3, "all of them count");
}

#[test]
fn of_many_services_that_spill_at_once_some_are_told_in_a_minute() {
    let names: Vec<String> = (0..25).map(|number| format!("web-{number:02}")).collect();
    let all: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 0.5)).collect();
    let mut desk = Desk::new();
    assert_eq!(desk.watch(10, &all).len(), 10);
    assert_eq!((desk.watch(50, &all).len(), desk.watch(60, &all).len()), (0, 10));
    assert_eq!((desk.watch(60, &all).len(), desk.reporter.spilling()), (5, 25));
}

#[test]
fn the_ports_of_a_service_count_by_their_flows_and_one_without_flows_does_not() {
    let (web, mut desk) = (service("web"), Desk::new());
    let ports =
        [Spill { service: &web, offered: 99.0, spilled: 0.0 }, Spill { service: &web, offered: 1.0, spilled: 1.0 }];
    for second in 0..20 {
        let now = desk.now + Duration::from_secs(second);
        assert_eq!(desk.reporter.look(now, ports.into_iter(), std::iter::empty()), [], "1 % of its flows");
        let idle = Spill { service: &web, offered: 0.0, spilled: 0.0 };
        assert_eq!(desk.reporter.look(now, [idle].into_iter(), std::iter::empty()), []);
    }
}

#[test]
fn what_is_over_is_forgotten() {
    let mut desk = Desk::new();
    assert_eq!(desk.watch(10, &[("web", 0.2)]).len(), 1);
    assert_eq!(desk.watch(700, &[]).len(), 1);
    assert_eq!(desk.reporter.spills.len(), 0);
}

#[test]
fn an_endpoint_is_told_of_when_it_is_ejected_and_not_again_for_ten_minutes() {
    let mut desk = Desk::new();
    let ejected = News::Ejected { service: service("web"), address: address(1), node: "there".into() };
    assert_eq!(desk.out(&[("web", 1, "there", false)]), std::slice::from_ref(&ejected));
    assert_eq!(desk.out(&[("web", 1, "there", false)]), [], "it is still out");
    assert_eq!(desk.out(&[]), []);
    assert_eq!(desk.out(&[("web", 1, "there", false)]), [], "it failed again soon");
    assert_eq!(desk.out(&[("web", 2, "there", false)]).len(), 1, "another one");
    assert_eq!(desk.out(&[]), []);
    desk.now += REPEAT;
    assert_eq!(desk.out(&[("web", 1, "there", false)]), [ejected]);
}

#[test]
fn of_many_endpoints_that_fail_at_once_some_are_told_in_a_minute_and_the_rest_later_as_long_as_they_are_out() {
    let all: Vec<_> = (0..15_u8).map(|last| ("web", last, "there", false)).collect();
    let mut desk = Desk::new();
    assert_eq!(desk.out(&all).len(), 10);
    assert_eq!(desk.out(&all), []);
    desk.now += SPAN;
    assert_eq!(desk.out(&all[..13]).len(), 3, "two of the five are back");
    assert_eq!(desk.out(&all[..13]), []);
}

#[test]
fn a_node_that_is_silent_is_told_of_once_however_many_endpoints_it_has() {
    let mut desk = Desk::new();
    let out =
        [("web", 1, "there", true), ("web", 2, "there", true), ("api", 3, "there", true), ("api", 4, "far", true)];
    let silent = |node: &str| News::Silent { node: node.into() };
    assert_eq!(desk.out(&out), [silent("there"), silent("far")]);
    assert_eq!(desk.out(&out), []);
}
