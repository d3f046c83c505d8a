//! What the service manager is told, if one asks: that the agent is there, reads its files again, is well, or stops
//! (sd_notify(3)). Without `NOTIFY_SOCKET` in the environment nobody is told anything.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use weir_telemetry::server::{Component, Probes};

/// How often the parts are looked at: a change is in `systemctl status` a second later at most.
const TURN: Duration = Duration::from_secs(1);

/// Tells the service manager until `stop`: at once that the agent runs, since one that waits for the API server is alive and
/// must not be killed for it; then how its parts fare, whenever that changes, and that it is well, as long as
/// [`Probes::proxy_health`] says so. The future is done when it was told that the agent stops.
///
/// # Errors
/// When SIGHUP cannot be waited for.
pub(crate) fn tell(probes: Arc<dyn Probes>, stop: CancellationToken) -> Result<impl Future<Output = ()>> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    // Half of the time that it has, as sd_watchdog_enabled(3) advises.
    let watchdog = sd_notify::watchdog_enabled().map(|limit| limit / 2);
    let mut turns = interval(watchdog.unwrap_or(TURN).clamp(Duration::from_millis(1), TURN));
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Ok(async move {
        let mut told = Told::default();
        loop {
            let news = tokio::select! {
                () = stop.cancelled() => break,
                _ = hangup.recv() => told.reload().unwrap_or_default(),
                _ = turns.tick() => {
                    let healthy = watchdog.is_some() && probes.proxy_health().healthy;
                    told.turn(healthy, &status(&probes.components()))
                }
            };
            send(&news);
        }
        send(&["STOPPING=1".to_owned()]);
    })
}

/// What the manager knows by now.
#[derive(Debug, Default)]
struct Told {
    ready: bool,
    status: String,
}

impl Told {
    /// The messages of a reload's begin; its end comes with the next turn, when the files were read. A file that is wrong
    /// fails no reload: the one before it stays in force, and the status tells.
    fn reload(&mut self) -> io::Result<Vec<String>> {
        self.ready = false;
        // The time is what systemd since 253 wants of services with `Type=notify-reload`.
        Ok(vec![NotifyState::Reloading.to_string(), NotifyState::monotonic_usec_now()?.to_string()])
    }

    /// The messages of a look at the parts. Who is not healthy is silent: the watchdog restarts it in the end.
    fn turn(&mut self, healthy: bool, status: &str) -> Vec<String> {
        let mut news = Vec::new();
        if !std::mem::replace(&mut self.ready, true) {
            news.push(NotifyState::Ready.to_string());
        }
        if self.status != status {
            status.clone_into(&mut self.status);
            news.push(NotifyState::Status(status).to_string());
        }
        if healthy {
            news.push(NotifyState::Watchdog.to_string());
        }
        news
    }
}

/// One line about all parts: those that are not ready, and why.
fn status(parts: &[Component]) -> String {
    let waiting = parts.iter().filter(|part| !part.ready).map(|part| match &part.reason {
        // A message is a line.
        Some(reason) => format!("{} not ready: {}", part.name, reason.replace('\n', " ")),
        None => format!("{} not ready", part.name),
    });
    let waiting: Vec<String> = waiting.collect();
    if waiting.is_empty() { "ready".to_owned() } else { waiting.join("; ") }
}

fn send(news: &[String]) {
    if news.is_empty() {
        return;
    }
    let news: Vec<NotifyState<'_>> = news.iter().map(|line| NotifyState::Custom(line)).collect();
    if let Err(error) = sd_notify::notify(&news) {
        warn!("cannot tell the service manager at $NOTIFY_SOCKET: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &'static str, ready: bool, reason: Option<&str>) -> Component {
        Component { name, ready, reason: reason.map(str::to_owned) }
    }

    #[test]
    fn readiness_and_an_unchanged_status_are_told_once() {
        let mut told = Told::default();
        assert_eq!(told.turn(false, "maps not ready"), ["READY=1", "STATUS=maps not ready"]);
        assert_eq!(told.turn(false, "maps not ready"), [""; 0]);
        assert_eq!(told.turn(false, "ready"), ["STATUS=ready"]);
    }

    #[test]
    fn the_watchdog_hears_of_an_agent_as_long_as_it_is_healthy() {
        let mut told = Told::default();
        told.turn(true, "ready");
        assert_eq!(told.turn(true, "ready"), ["WATCHDOG=1"]);
        assert_eq!(told.turn(false, "ready"), [""; 0]);
        assert_eq!(told.turn(true, "ready"), ["WATCHDOG=1"]);
    }

    #[test]
    fn a_reload_tells_its_time_and_ends_with_the_next_turn() {
        let mut told = Told::default();
        told.turn(false, "ready");
        let [reloading, time] = <[String; 2]>::try_from(told.reload().unwrap()).unwrap();
        assert_eq!(reloading, "RELOADING=1");
        assert!(time.strip_prefix("MONOTONIC_USEC=").unwrap().parse::<u64>().unwrap() > 0);
        assert_eq!(told.turn(false, "services not ready: wrong"), ["READY=1", "STATUS=services not ready: wrong"]);
    }

    #[test]
    fn the_status_names_the_parts_that_are_not_ready_in_one_line() {
        let parts = [
            part("static-file", false, Some("line 3:\n  unknown field")),
            part("maps", true, None),
            part("interfaces", false, None),
        ];
        assert_eq!(status(&parts), "static-file not ready: line 3:   unknown field; interfaces not ready");
        assert_eq!(status(&parts[1..2]), "ready");
    }
}
