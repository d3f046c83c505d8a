//! The network: bytes of the links, from /proc/net/dev, against what the links can carry.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use weir_core::load::{Lie, Share};

use crate::meter::Meter;
use crate::source::{Failure, Source};
use crate::text::{TextFile, integer, lines, missing, words};

/// Some drivers fetch their counters from the hardware once a second: shorter windows would be idle in turns with
/// flooded.
const WINDOW: Duration = Duration::from_secs(1);
/// By that same second a window can hold twice its bytes. What is above is a lie: of the link's rate, mostly.
const OVERSHOOT: f64 = 2.0;
/// How long the machine's links and their speeds are taken to be the same.
const LINKS_STAY: Duration = Duration::from_secs(10);
/// `speed` of sysfs counts in these bits per second.
const MEGABIT: f64 = 1e6;

/// Bytes that a link received and sent.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LinkBytes {
    /// Received.
    pub received: u64,
    /// Sent.
    pub sent: u64,
}

/// Finds a link in the content of /proc/net/dev. `None` if it is not there, or its line was cut.
#[must_use]
pub fn parse(text: &[u8], link: &str) -> Option<LinkBytes> {
    let after_name = |line| {
        let (name, rest) = split_name(line)?;
        (name == link.as_bytes()).then_some(rest)
    };
    let mut fields = words(lines(text).find_map(after_name)?).map(integer);
    let received = fields.next()??;
    // Seven more about receiving: packets, errors, dropped, fifo, frame, compressed, multicast.
    Some(LinkBytes { received, sent: fields.nth(7)?? })
}

/// The name ends at the last colon, for those of alias links have one. Large numbers follow it without a blank.
fn split_name(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().rposition(|byte| *byte == b':')?;
    Some((line[..colon].trim_ascii(), &line[colon + 1..]))
}

/// A link and what it can carry in each direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Name.
    pub name: String,
    /// Bits per second; `None`: what the link says itself.
    pub rate: Option<f64>,
}

/// The links together: as busy as the busiest direction of the busiest one.
#[derive(Debug)]
pub struct Network {
    counters: TextFile,
    sys: PathBuf,
    named: Vec<Link>,
    found: Vec<Metered>,
    found_at: Option<Instant>,
    /// Of the link that was the busiest.
    rate: f64,
}

#[derive(Debug)]
struct Metered {
    name: String,
    rate: f64,
    meter: Meter<2>,
}

impl Network {
    /// Of these links. None named: those that have hardware below them and tell their speed.
    #[must_use]
    pub fn new(proc: &Path, sys: &Path, links: Vec<Link>) -> Self {
        let (counters, sys) = (TextFile::new(proc.join("net/dev")), sys.join("class/net"));
        Self { counters, sys, named: links, found: Vec::new(), found_at: None, rate: 0.0 }
    }

    /// What the busiest link can carry, in bits per second each way; 0 before the first reading.
    #[must_use]
    pub const fn rate(&self) -> f64 {
        self.rate
    }

    fn find_links(&mut self, now: Instant) -> Result<(), Failure> {
        if self.found_at.is_some_and(|at| now.saturating_duration_since(at) < LINKS_STAY) {
            return Ok(());
        }
        let wanted = if self.named.is_empty() { self.hardware()? } else { self.named.clone() };
        let mut found = Vec::new();
        for Link { name, rate } in wanted {
            let Some(rate) = rate.or_else(|| speed(&self.sys.join(&name))) else { continue };
            if !rate.is_finite() || rate <= 0.0 {
                let cause = Lie::Amount { what: "a rate in bits per second", claimed: rate };
                return Err(Failure::Lie { object: format!("link {name}"), cause });
            }
            let same = self.found.iter().position(|link| link.name == name);
            let meter = same.map_or_else(|| Meter::new(WINDOW), |index| self.found.swap_remove(index).meter);
            found.push(Metered { name, rate, meter });
        }
        self.found = found;
        if self.found.is_empty() {
            let what = "link with a known speed (name links with their rates)";
            return Err(Failure::Malformed { object: self.sys.display().to_string(), what });
        }
        self.found_at = Some(now);
        Ok(())
    }

    /// Links that are not made of others or of nothing.
    fn hardware(&self) -> Result<Vec<Link>, Failure> {
        let links = || -> io::Result<Vec<Link>> {
            let mut links = Vec::new();
            for entry in fs::read_dir(&self.sys)? {
                let entry = entry?;
                if entry.path().join("device").exists() {
                    links.push(Link { name: entry.file_name().to_string_lossy().into_owned(), rate: None });
                }
            }
            Ok(links)
        };
        links().map_err(|cause| missing(&self.sys, cause))
    }
}

/// What a link says of itself, in bits per second. `None` while it is down, and for -1: it does not know.
fn speed(link: &Path) -> Option<f64> {
    let text = fs::read(link.join("speed")).ok()?;
    let megabits = integer(text.trim_ascii()).and_then(|speed| u32::try_from(speed).ok())?;
    (megabits != 0 && megabits != u32::MAX).then(|| f64::from(megabits) * MEGABIT)
}

impl Source for Network {
    type Value = Share;

    fn name(&self) -> &'static str {
        "network"
    }

    fn read(&mut self, now: Instant) -> Result<Option<Share>, Failure> {
        self.find_links(now)?;
        let text = self.counters.read()?;
        let mut busiest: Option<Share> = None;
        for link in &mut self.found {
            let object = || format!("link {}", link.name);
            let Some(LinkBytes { received, sent }) = parse(text, &link.name) else {
                // It may come back as another one.
                self.found_at = None;
                return Err(Failure::Malformed { object: object(), what: "line in /proc/net/dev" });
            };
            let Some(step) = link.meter.advance([received, sent], now).map_err(|gap| gap.failure(object()))? else {
                continue;
            };
            let [received, sent] = step.rates();
            let used = received.max(sent) * 8.0 / link.rate;
            if used > OVERSHOOT {
                return Err(Failure::Lie { object: object(), cause: Lie::Share(used) });
            }
            let used = Share::clamped(used);
            if busiest.is_none_or(|busiest| used > busiest) {
                (busiest, self.rate) = (Some(used), link.rate);
            }
        }
        Ok(busiest)
    }
}
