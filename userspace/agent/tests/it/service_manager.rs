//! What systemd hears of an agent, at a socket in its place.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;
use weir_testbed::wait;

use crate::harness::SOON;
use crate::harness::standalone::{self, Standalone, Web, yaml};

/// The service manager's end.
struct Manager {
    socket: UnixDatagram,
    directory: TempDir,
    heard: Vec<String>,
}

impl Manager {
    fn listen() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Self { socket, directory, heard: Vec::new() }
    }

    /// Words before a command that gives it this manager, and so much time between two signs of life.
    fn environment(&self, watchdog: Duration) -> [String; 3] {
        let socket = self.directory.path().join("notify");
        let socket = format!("NOTIFY_SOCKET={}", socket.display());
        ["env".to_owned(), socket, format!("WATCHDOG_USEC={}", watchdog.as_micros())]
    }

    /// Waits for a line that begins so, and returns it with those before it that nobody has waited for.
    fn await_line(&mut self, begin: &str) -> Vec<String> {
        let what = format!("{begin:?} at the service manager");
        let mut end = None;
        wait::until(&what, SOON, || {
            end = self.heard.iter().position(|line| line.starts_with(begin));
            if end.is_none() {
                self.hear();
            }
            end.is_some()
        })
        .unwrap_or_else(|error| panic!("{error}; it heard {:?}", self.heard));
        self.heard.drain(..=end.unwrap()).collect()
    }

    fn hear(&mut self) {
        let mut buffer = [0; 4096];
        if let Ok(length) = self.socket.recv(&mut buffer) {
            let text = std::str::from_utf8(&buffer[..length]).unwrap();
            self.heard.extend(text.lines().map(str::to_owned));
        }
    }
}

#[test]
fn the_service_manager_hears_that_the_agent_runs_is_well_reads_its_files_again_and_stops() {
    if !standalone::can_run("what the service manager hears") {
        return;
    }
    let web = Web::new("web", 1, &[1]);
    let good = yaml(std::slice::from_ref(&web));
    let mut node = Standalone::prepared(1, &good, &[]);
    let mut manager = Manager::listen();
    let environment = manager.environment(Duration::from_millis(200));
    node.agent.start_through(&node.world, &environment.each_ref().map(String::as_str));

    // It is there before it has done anything, but nobody waits for it in vain.
    let first = manager.await_line("READY=1");
    assert!(!first.iter().any(|line| line == "RELOADING=1" || line == "STOPPING=1"), "{first:?}");
    manager.await_line("STATUS=ready");
    manager.await_line("WATCHDOG=1");
    manager.await_line("WATCHDOG=1");

    node.agent.process().signal(Signal::SIGHUP).unwrap();
    let reload = manager.await_line("READY=1");
    let at = |begin: &str| reload.iter().position(|line| line.starts_with(begin));
    assert!(at("RELOADING=1").is_some() && at("RELOADING=1") < at("MONOTONIC_USEC="), "{reload:?}");
    assert!(at("MONOTONIC_USEC=") < at("READY=1"), "{reload:?}");

    node.write("services: nonsense\n");
    manager.await_line("STATUS=static-file not ready: ");
    // A file that is wrong harms nobody, and is no reason to be started again.
    manager.await_line("WATCHDOG=1");
    node.write(&good);
    manager.await_line("STATUS=ready");

    assert!(node.agent.stop().success());
    manager.await_line("STOPPING=1");
}
