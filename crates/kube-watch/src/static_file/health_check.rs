//! How the endpoints of a service are checked.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery};
use jiff::SignedDuration;
use serde_saphyr::Spanned;
use weir_core::endpoint_checks::{AllFail, AskedPort, Check, Get, Question};
use weir_core::model::{Protocol, Service};

use super::build::Result;
use super::schema;
use crate::file::FileError;

/// From one question to the next unless the file says otherwise, as HAProxy has it (`inter`).
const INTERVAL: Duration = Duration::from_secs(2);
/// More often is load, not a check; less often tells nobody in time.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// For an answer, as Kubernetes has it (`timeoutSeconds`), but never longer than the interval.
const TIMEOUT: Duration = Duration::from_secs(1);
/// As HAProxy has them (`rise`, `fall`).
const RISE: u32 = 2;
const FALL: u32 = 3;
/// Answers in a row that may be asked for.
const IN_A_ROW: RangeInclusive<u32> = 1..=100;
/// Codes that say that all is well, as Kubernetes has it (`httpGet`).
const STATUSES: RangeInclusive<u16> = 200..=399;
/// Codes that there are (RFC 9110, section 15), but those that come before the answer proper.
const ALL_STATUSES: RangeInclusive<u16> = 200..=599;

/// The check of a service, if it has one.
pub(super) fn health_check(written: &schema::Service, service: &Service) -> Result<Option<Check>> {
    let Some(check) = &written.health_check else { return Ok(None) };
    let schema::HealthCheck { http, port, interval, timeout, rise, fall, when_all_fail } = check;
    let port = match port {
        Some(port) => asked_port(port, service)?,
        None => first_port(written, service)?,
    };
    let interval = interval.as_ref().map_or(Ok(INTERVAL), |value| {
        let known = time(value).filter(|time| INTERVALS.contains(time));
        known.ok_or_else(|| wrong(value, "interval", "is not a time from 100ms to 1h, such as 2s"))
    })?;
    let timeout = timeout.as_ref().map_or(Ok(TIMEOUT.min(interval)), |value| {
        let known = time(value).filter(|time| !time.is_zero() && *time <= interval);
        known.ok_or_else(|| {
            wrong(value, "timeout", format_args!("is not a time above 0 and up to the interval, {interval:?}"))
        })
    })?;
    Ok(Some(Check {
        question: http.as_ref().map_or(Ok(Question::Connect), |http| get(http).map(Question::Get))?,
        port,
        interval,
        timeout,
        rise: in_a_row("rise", rise.as_ref(), RISE)?,
        fall: in_a_row("fall", fall.as_ref(), FALL)?,
        all_fail: all_fail(when_all_fail.as_ref())?,
    }))
}

fn asked_port(value: &Spanned<String>, service: &Service) -> Result<AskedPort> {
    if let Ok(number @ 1..) = value.value.parse::<u16>() {
        return Ok(AskedPort::Number(number));
    }
    match service.ports.iter().find(|port| *port.name == *value.value && !port.name.is_empty()) {
        Some(port) if port.protocol == Protocol::Tcp => Ok(AskedPort::Named(port.name.clone())),
        Some(_) => {
            Err(wrong(value, "port", "is not a port over TCP, which checks need: name another one, or a number"))
        }
        None => {
            let why = format_args!("is neither in 1..65535 nor the name of a port of service {}", service.name);
            Err(wrong(value, "port", why))
        }
    }
}

fn first_port(written: &schema::Service, service: &Service) -> Result<AskedPort> {
    let tcp = service.ports.iter().find(|port| port.protocol == Protocol::Tcp);
    tcp.map(|port| AskedPort::Named(port.name.clone())).ok_or_else(|| {
        let message = format!(
            "healthCheck: service {} has no port over TCP; give the check a `port` at which its endpoints take \
             connections",
            service.name
        );
        FileError::at(written.name.referenced, message)
    })
}

fn get(written: &schema::HttpCheck) -> Result<Get> {
    let schema::HttpCheck { path, host, status } = written;
    let path = path.as_ref().map_or(Ok("/".to_owned()), |value| {
        let good = value.value.starts_with('/') && value.value.parse::<PathAndQuery>().is_ok();
        let why = "is not a path such as /healthz: it begins with a slash, and has no blanks";
        if good { Ok(value.value.clone()) } else { Err(wrong(value, "http.path", why)) }
    })?;
    let host = host.as_ref().map(|value| {
        let good = value.value.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@'));
        let why = "is not the name of a host such as web.example, with a port or without";
        if good { Ok(value.value.clone()) } else { Err(wrong(value, "http.host", why)) }
    });
    let statuses = status.as_ref().map_or(Ok(STATUSES), |value| {
        let why = "is neither a status such as 200 nor a range such as 200-399, within 200-599";
        statuses(&value.value).ok_or_else(|| wrong(value, "http.status", why))
    })?;
    Ok(Get { path, host: host.transpose()?, statuses })
}

fn statuses(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let good = first <= last && ALL_STATUSES.contains(&first) && ALL_STATUSES.contains(&last);
    good.then_some(first..=last)
}

fn in_a_row(field: &str, value: Option<&Spanned<i64>>, default: u32) -> Result<u32> {
    let Some(value) = value else { return Ok(default) };
    u32::try_from(value.value).ok().filter(|count| IN_A_ROW.contains(count)).ok_or_else(|| {
        let (least, most) = (IN_A_ROW.start(), IN_A_ROW.end());
        FileError::at(value.referenced, format!("healthCheck.{field}: {} is not in {least}..{most}", value.value))
    })
}

fn all_fail(value: Option<&Spanned<String>>) -> Result<AllFail> {
    let Some(value) = value else { return Ok(AllFail::default()) };
    match value.value.as_str() {
        "use-all" => Ok(AllFail::UseAll),
        "refuse" => Ok(AllFail::Refuse),
        _ => Err(wrong(value, "whenAllFail", "is neither use-all nor refuse")),
    }
}

fn time(value: &Spanned<String>) -> Option<Duration> {
    Duration::try_from(value.value.trim().parse::<SignedDuration>().ok()?).ok()
}

fn wrong(value: &Spanned<String>, field: &str, why: impl Display) -> FileError {
    FileError::at(value.referenced, format!("healthCheck.{field}: \"{}\" {why}", value.value))
}
