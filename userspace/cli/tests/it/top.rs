//! `weir top` on a terminal: what is drawn comes from real maps, and the terminal is as before in the end.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weir_testbed::wait;

use crate::node::told::Told;
use crate::node::{Pins, fill};

/// Far more than anything here takes.
const SOON: Duration = Duration::from_secs(10);

const TOP: &str = concat!(env!("CARGO_BIN_EXE_weir"), " top");

/// The same by a shell that says which process it becomes.
const NAMED: &str = concat!("sh -c 'echo process=$$.; exec ", env!("CARGO_BIN_EXE_weir"), " top'");

/// A program on a terminal of its own, by script(1).
struct OnTerminal {
    child: Child,
    written: Receiver<Vec<u8>>,
    seen: String,
}

impl OnTerminal {
    /// `weir top` and nothing else. None, loudly, where there is no script(1).
    fn start(pins: &Pins, options: &str) -> Option<Self> {
        Self::run(pins, &format!("exec {TOP} {options}"))
    }

    /// These commands of a shell.
    fn run(pins: &Pins, commands: &str) -> Option<Self> {
        let line = format!("stty rows 24 cols 100; {commands}");
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("WEIR_PIN_DIR", &pins.0);
        command.env("SHELL", "/bin/sh").env("TERM", "xterm-256color").env_remove("NO_COLOR");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            eprintln!("SKIPPED: weir top on a terminal: there is no script; apt-get install bsdutils");
            return None;
        };
        let mut stdout = child.stdout.take().unwrap();
        let (send, written) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut buffer) {
                if send.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Some(Self { child, written, seen: String::new() })
    }

    /// Waits until so much was drawn since the start.
    fn await_text(&mut self, text: &str) {
        let Self { written, seen, .. } = self;
        let drawn = || {
            written.try_iter().for_each(|part| seen.push_str(&String::from_utf8_lossy(&part)));
            if seen.contains(text) { Ok(()) } else { Err(seen.escape_debug().to_string()) }
        };
        wait::until_some(&format!("{text:?} on the terminal"), SOON, drawn).unwrap();
    }

    fn press(&mut self, keys: &str) {
        self.child.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// The process of [`NAMED`].
    fn process(&self) -> Pid {
        let said = self.seen.split_once("process=").and_then(|(_, rest)| rest.split_once('.')).unwrap();
        Pid::from_raw(said.0.parse().unwrap())
    }

    /// Waits for its end.
    fn end(mut self) -> (Option<i32>, String) {
        let code = wait::until_some("its end", SOON, || self.child.try_wait().unwrap().ok_or_else(String::new));
        while let Ok(part) = self.written.recv_timeout(SOON) {
            self.seen.push_str(&String::from_utf8_lossy(&part));
        }
        (code.unwrap().code(), self.seen.clone())
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const ENTERS: &str = "\x1b[?1049h";
const LEAVES: &str = "\x1b[?1049l";
const SHOWS_THE_CURSOR: &str = "\x1b[?25h";

#[test]
fn it_draws_the_node_while_no_agent_runs_takes_keys_and_gives_the_terminal_back() {
    let Some(pins) = Pins::new("top") else { return };
    drop(fill(&pins));
    let Some(mut top) = OnTerminal::start(&pins, "") else { return };
    top.await_text("shop/web");
    top.await_text("from the maps alone");
    assert!(top.seen.contains(ENTERS));
    top.press("?");
    // Only what differs from the picture before is written.
    top.await_text("Ctrl-C");
    top.press("q");
    let (code, seen) = top.end();
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains(LEAVES), "{seen}");
}

#[test]
fn a_signal_that_ends_it_is_no_reason_to_keep_the_terminal() {
    let Some(pins) = Pins::new("top-signals") else { return };
    drop(fill(&pins));
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129), (Signal::SIGINT, 130)] {
        // The shell itself outlives an interrupt.
        let commands = format!("trap : INT; {NAMED}; echo code=$?; stty -a");
        let Some(mut top) = OnTerminal::run(&pins, &commands) else { return };
        top.await_text("shop/web");
        kill(top.process(), signal).unwrap();
        let (_, seen) = top.end();
        let (drawn, after) = seen.rsplit_once(LEAVES).unwrap_or_else(|| panic!("{signal}: {seen}"));
        assert!(drawn.contains(ENTERS) && after.contains(SHOWS_THE_CURSOR), "{signal}: {after}");
        assert!(after.contains(&format!("code={code}")), "whoever asks learns of {signal}: {after}");
        // As a shell needs it: lines, with an echo.
        assert!(after.contains("isig icanon iexten echo ") && after.contains("\nopost "), "{signal}: {after}");
    }
}

#[test]
fn a_terminal_that_goes_away_takes_it_along() {
    let Some(pins) = Pins::new("top-gone") else { return };
    drop(fill(&pins));
    let Some(mut top) = OnTerminal::run(&pins, &format!("exec {NAMED}")) else { return };
    top.await_text("shop/web");
    let status = format!("/proc/{}/status", top.process());
    drop(top);
    // In a container there may be nobody who takes dead processes away.
    let ended = || match fs::read_to_string(&status) {
        Ok(text) if !text.contains("State:\tZ") => Err(text),
        Ok(_) | Err(_) => Ok(()),
    };
    wait::until_some("its end", SOON, ended).unwrap();
}

#[test]
fn what_the_agent_knows_of_nodes_is_drawn_beside_what_the_maps_know_and_its_end_is_seen() {
    let Some(pins) = Pins::new("top-agent") else { return };
    drop(fill(&pins));
    let told = Told::start(&serde_json::from_str(include_str!("fixtures/weights.json")).unwrap());
    let Some(mut top) = OnTerminal::start(&pins, &format!("--socket {}", told.socket().display())) else { return };
    top.await_text("0.8ms");
    assert!(!top.seen.contains("from the maps alone"), "{}", top.seen.escape_debug());
    drop(told);
    // It is asked again each second.
    top.await_text("from the maps alone");
    top.press("q");
    assert_eq!(top.end().0, Some(0));
}

#[test]
fn maps_that_are_not_there_are_exit_code_4_on_the_terminal_as_it_was() {
    let Some(pins) = Pins::new("top-absent") else { return };
    let Some(mut top) = OnTerminal::start(&pins, "") else { return };
    top.await_text("no pinned maps in");
    let (code, seen) = top.end();
    assert_eq!(code, Some(4), "{seen}");
    assert!(!seen.contains(ENTERS), "{seen}");
}

#[test]
fn no_colour_is_drawn_where_none_is_wanted() {
    let Some(pins) = Pins::new("top-plain") else { return };
    drop(fill(&pins));
    for (options, colored) in [("--color never", false), ("--color always", true)] {
        let Some(mut top) = OnTerminal::start(&pins, options) else { return };
        top.await_text("from the maps alone");
        top.press("q");
        let (code, seen) = top.end();
        assert_eq!(code, Some(0), "{seen}");
        // The warning is yellow, if anything is.
        assert_eq!(seen.contains("\x1b[38;5;3;"), colored, "{}", seen.escape_debug());
    }
}
