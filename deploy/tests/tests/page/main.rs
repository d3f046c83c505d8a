//! The page of a real agent in a small cluster, in a real browser: `deploy/tests/page/page.mjs` looks, and what it asks
//! for happens here. Pictures of it are written to `target/page`; with `WEIR_UPDATE_IMAGES=1` to `docs/images`, after the
//! cluster was in use for minutes.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod stage;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use weir_deploy_tests::programs::{root, run};
use weir_testbed::require_root;

use stage::Stage;

/// Debian's browser.
const CHROMIUM: &str = "/usr/bin/chromium";

/// New connections to shop/web per second and how long: what the charts of the pictures show.
const PLAY: [(u32, u64); 5] = [(30, 15), (125, 35), (50, 25), (110, 20), (170, 45)];
/// Far more than the machine of node 1 takes up to its level.
const ABOVE: u32 = 170;

/// The script, with the library that it needs beside it, built nowhere near the sources.
fn script() -> PathBuf {
    let directory = root().join("target/page");
    fs::create_dir_all(&directory).unwrap();
    let lock = || fs::read(directory.join("package-lock.json")).unwrap_or_default();
    let before = lock();
    for file in ["package.json", "package-lock.json", "page.mjs"] {
        fs::copy(root().join("deploy/tests/page").join(file), directory.join(file)).unwrap();
    }
    if before != lock() || !directory.join("node_modules/playwright-core").is_dir() {
        run(Command::new("npm").current_dir(&directory).args(["ci", "--no-audit", "--no-fund"])).unwrap();
    }
    directory.join("page.mjs")
}

/// Ended on drop.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "minutes: make test-deploy"]
fn the_page_shows_what_happens_in_a_browser_too() {
    const WHAT: &str = "the page in a browser";
    if !require_root(WHAT) {
        return;
    }
    if !Path::new(CHROMIUM).exists() {
        eprintln!("SKIPPED: {WHAT}: no {CHROMIUM}; run deploy/dev/bootstrap.sh deploy");
        return;
    }
    let Some(mut stage) = Stage::start() else { return };
    let pictures = env::var_os("WEIR_UPDATE_IMAGES").is_some();
    let images = root().join(if pictures { "docs/images" } else { "target/page" });
    let mut command = stage.world.node(1).netns().command("node");
    command.arg(script()).arg(format!("http://127.0.0.1:{}/", stage::PAGE)).arg(&images);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut browser = Browser(command.spawn().unwrap());
    let mut answers = browser.0.stdin.take().unwrap();
    let asked = BufReader::new(browser.0.stdout.take().unwrap());
    let mut done = false;
    for line in asked.lines() {
        match line.unwrap().as_str() {
            "calm" => stage.ask_for_web(30),
            "load" => stage.ask_for_web(ABOVE),
            "picture" if pictures => {
                for (rate, seconds) in PLAY {
                    stage.ask_for_web(rate);
                    thread::sleep(Duration::from_secs(seconds));
                }
            }
            "picture" => {}
            "stop" => stage.stop_agent(1),
            "start" => stage.start_agent(1),
            "done" => {
                done = true;
                continue;
            }
            other => panic!("the script says {other:?}"),
        }
        writeln!(answers, "so it is").unwrap();
    }
    let status = browser.0.wait().unwrap();
    assert!(status.success() && done, "{status}; the agent of node 1 says:\n{}", stage.log(1));
}
