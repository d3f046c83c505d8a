//! Active checks of endpoints.

use std::time::Duration;

use weir_core::endpoint_checks::{AllFail, AskedPort, Check, Get, Question};
use weir_core::model::ObjectName;

use super::{good, mistake, with};

/// The check of the good file's service, written like this.
fn checked(check: &str) -> String {
    with("    namespace: shop", &format!("    namespace: shop\n    healthCheck: {check}"))
}

#[test]
fn a_check_connects_to_the_first_tcp_port_unless_the_file_says_otherwise() {
    let smallest = Check {
        question: Question::Connect,
        port: AskedPort::Named("http".into()),
        interval: Duration::from_secs(2),
        timeout: Duration::from_secs(1),
        rise: 2,
        fall: 3,
        all_fail: AllFail::UseAll,
    };
    for written in ["{}", ""] {
        assert_eq!(good(&checked(written)).checks, [(ObjectName::new("shop", "web"), smallest.clone())], "{written:?}");
    }
    let written = "{port: 9000, interval: 500ms, timeout: 0.2s, rise: 1, fall: 5, whenAllFail: refuse}";
    let expected = Check {
        question: Question::Connect,
        port: AskedPort::Number(9000),
        interval: Duration::from_millis(500),
        timeout: Duration::from_millis(200),
        rise: 1,
        fall: 5,
        all_fail: AllFail::Refuse,
    };
    assert_eq!(good(&checked(written)).checks[0].1, expected);
    let quick = &good(&checked("{interval: 300ms}")).checks[0].1;
    assert_eq!(quick.timeout, quick.interval, "never longer than the interval");
}

#[test]
fn a_check_over_http_has_a_path_a_host_and_codes_that_pass() {
    let question = |written: &str| good(&checked(written)).checks[0].1.question.clone();
    let smallest = Question::Get(Get { path: "/".into(), host: None, statuses: 200..=399 });
    assert_eq!([question("{http: {}}"), question("\n      http:")], [smallest.clone(), smallest]);
    let whole = Get { path: "/ready?all=1".into(), host: Some("web.example".into()), statuses: 200..=299 };
    assert_eq!(question("{http: {path: '/ready?all=1', host: web.example, status: 200-299}}"), Question::Get(whole));
    let one = Get { path: "/".into(), host: None, statuses: 204..=204 };
    assert_eq!(question("{http: {status: 204}}"), Question::Get(one));
}

#[test]
fn a_check_that_cannot_be_is_refused_with_its_place_and_field() {
    for (written, expected) in [
        (
            "{intervall: 2s}",
            "line 9, column 19: unknown field `intervall`, expected one of http, port, interval, timeout",
        ),
        (
            "{http: {status: 700}}",
            "line 9, column 34: healthCheck.http.status: \"700\" is neither a status such as 200",
        ),
        ("{http: {status: 300-200}}", "line 9, column 34: healthCheck.http.status: \"300-200\" is neither a status"),
        ("{http: {path: healthz}}", "line 9, column 32: healthCheck.http.path: \"healthz\" is not a path such as"),
        ("{http: {path: '/a b'}}", "line 9, column 32: healthCheck.http.path: \"/a b\" is not a path such as"),
        ("{http: {host: 'a b'}}", "line 9, column 32: healthCheck.http.host: \"a b\" is not the name of a host"),
        ("{interval: 2}", "line 9, column 29: healthCheck.interval: \"2\" is not a time from 100ms to 1h, such as 2s"),
        ("{interval: 10ms}", "line 9, column 29: healthCheck.interval: \"10ms\" is not a time from 100ms to 1h"),
        (
            "{timeout: 3s}",
            "line 9, column 28: healthCheck.timeout: \"3s\" is not a time above 0 and up to the interval, 2s",
        ),
        ("{rise: 0}", "line 9, column 25: healthCheck.rise: 0 is not in 1..100"),
        ("{fall: 101}", "line 9, column 25: healthCheck.fall: 101 is not in 1..100"),
        (
            "{port: 0}",
            "line 9, column 25: healthCheck.port: \"0\" is neither in 1..65535 nor the name of a port of service",
        ),
        ("{port: dns}", "line 9, column 25: healthCheck.port: \"dns\" is not a port over TCP, which checks need"),
        ("{whenAllFail: panic}", "line 9, column 32: healthCheck.whenAllFail: \"panic\" is neither use-all nor refuse"),
    ] {
        let mistake = mistake(&checked(written));
        assert!(mistake.starts_with(expected), "{mistake}");
    }
    let udp = "services: [{name: a, clusterIPs: [10.0.0.1], ports: [{port: 53, protocol: UDP}], healthCheck: {}}]";
    let mistake = mistake(udp);
    assert!(mistake.starts_with("line 1, column 19: healthCheck: service default/a has no port over TCP"), "{mistake}");
}
