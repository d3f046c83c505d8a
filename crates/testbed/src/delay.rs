//! A link with a delay, for kernels without netem: two TAP or TUN devices and a thread that carries frames between them.
//!
//! Each frame leaves a fixed time after it came, in order. The thread sleeps in `epoll` until a frame comes or one is due;
//! the timer is a `timerfd` on the monotonic clock, precise to the scheduler's wake-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::frames::Frames;
use crate::netns::Netns;
use crate::tap::{Carries, Tap};
use crate::{Error, Result};

/// Longest frame: an MTU of 9000 with its headers.
const FRAME_BYTES: usize = 9216;

/// Frames read from one side before the other gets its turn.
const BURST: usize = 64;

/// Epoll tokens: the two sides are 0 and 1.
const TIMER: u64 = 2;
const STOP: u64 = 3;

/// What the owner and the thread share.
#[derive(Debug)]
struct Control {
    delay_ns: AtomicU64,
    dropped: AtomicU64,
    stop: EventFd,
}

/// A cable between two namespaces whose two directions each take the same time. Its devices vanish on drop.
#[derive(Debug)]
pub struct DelayLink {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

impl DelayLink {
    /// Makes a TAP device at each end (`(namespace, interface name)`), both down, and starts to carry frames with `delay`
    /// in each direction.
    ///
    /// # Errors
    /// When a device or the thread cannot be made.
    pub fn create(ends: [(&Netns, &str); 2], delay: Duration) -> Result<Self> {
        Self::between(ends, Carries::Frames, delay)
    }

    /// The same of TUN devices, without link headers, as WireGuard and PPP make them; without a delay.
    ///
    /// # Errors
    /// When a device or the thread cannot be made.
    pub fn headerless(ends: [(&Netns, &str); 2]) -> Result<Self> {
        Self::between(ends, Carries::Packets, Duration::ZERO)
    }

    fn between(ends: [(&Netns, &str); 2], carries: Carries, delay: Duration) -> Result<Self> {
        let [(near, near_name), (far, far_name)] = ends;
        let taps = [Tap::create(near, near_name, carries)?, Tap::create(far, far_name, carries)?];
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).map_err(Error::nix("create an eventfd"))?;
        let control =
            Arc::new(Control { delay_ns: AtomicU64::new(nanoseconds(delay)), dropped: AtomicU64::new(0), stop });
        let carrier =
            Carrier::new(taps, Arc::clone(&control)).map_err(Error::nix(format!("set up link {near_name}")))?;
        let thread = thread::Builder::new()
            .name(format!("link {near_name}"))
            .spawn(move || carrier.run())
            .map_err(Error::io("start a link's thread"))?;
        Ok(Self { control, thread: Some(thread) })
    }

    /// Changes the delay of each direction for frames that come from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.control.delay_ns.store(nanoseconds(delay), Ordering::Relaxed);
    }

    /// The delay of each direction.
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::from_nanos(self.control.delay_ns.load(Ordering::Relaxed))
    }

    /// Frames lost so far because too many were in flight.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.control.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for DelayLink {
    fn drop(&mut self) {
        if let Err(errno) = self.control.stop.write(1) {
            // Without the wake-up the thread would never end: leave it to the end of the process.
            eprintln!("cannot stop a delay link: {errno}");
            return;
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("the thread of a delay link has panicked");
        }
    }
}

/// The thread's side of a link.
struct Carrier {
    taps: [Tap; 2],
    /// Frames that came from the side of the same index.
    from: [Frames; 2],
    epoll: Epoll,
    timer: TimerFd,
    control: Arc<Control>,
}

impl Carrier {
    fn new(taps: [Tap; 2], control: Arc<Control>) -> nix::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        for (tap, token) in taps.iter().zip(0..) {
            epoll.add(tap, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        }
        // Edge-triggered: arming the timer anew is all that an expiry needs.
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, TIMER))?;
        epoll.add(&control.stop, EpollEvent::new(EpollFlags::EPOLLIN, STOP))?;
        Ok(Self { taps, from: [Frames::default(), Frames::default()], epoll, timer, control })
    }

    /// Carries frames until the owner says stop. Ends early when a device fails: the link is cut then, and says so.
    fn run(mut self) {
        if let Err(error) = self.carry() {
            eprintln!("a delay link has failed: {error}");
        }
    }

    fn carry(&mut self) -> std::io::Result<()> {
        let mut events = [EpollEvent::empty(); 4];
        let mut frame = vec![0; FRAME_BYTES];
        let mut armed = None;
        loop {
            let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Err(nix::Error::EINTR) => continue,
                other => other?,
            };
            for event in &events[..count] {
                match event.data() {
                    STOP => return Ok(()),
                    TIMER => armed = None,
                    side => self.collect(usize::from(side != 0), &mut frame)?,
                }
            }
            self.deliver()?;
            self.arm(&mut armed)?;
        }
    }

    /// Reads what one side has sent.
    fn collect(&mut self, side: usize, frame: &mut [u8]) -> std::io::Result<()> {
        let delay = Duration::from_nanos(self.control.delay_ns.load(Ordering::Relaxed));
        for _ in 0..BURST {
            let Some(length) = self.taps[side].read(frame)? else { break };
            self.from[side].push(&frame[..length], Instant::now(), delay);
        }
        let dropped = self.from.iter().map(Frames::dropped).sum();
        self.control.dropped.store(dropped, Ordering::Relaxed);
        Ok(())
    }

    /// Writes what is due to the other side. A frame that the device refuses is lost, as on a cut cable.
    fn deliver(&mut self) -> std::io::Result<()> {
        for (side, frames) in self.from.iter_mut().enumerate() {
            while let Some(frame) = frames.pop_due(Instant::now()) {
                self.taps[1 - side].write(&frame)?;
            }
        }
        Ok(())
    }

    /// Arms the timer for the next frame unless it is armed for it already.
    fn arm(&self, armed: &mut Option<Instant>) -> nix::Result<()> {
        let next = self.from.iter().filter_map(Frames::next_due).min();
        if next == *armed {
            return Ok(());
        }
        if let Some(due) = next {
            // Zero would disarm it.
            let left = due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
            self.timer.set(Expiration::OneShot(TimeSpec::from_duration(left)), TimerSetTimeFlags::empty())?;
        }
        *armed = next;
        Ok(())
    }
}

fn nanoseconds(delay: Duration) -> u64 {
    u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)
}
