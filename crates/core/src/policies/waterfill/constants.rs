//! The numbers of the controller, each with its source.

use std::time::Duration;

/// Utilisation up to which flows stay: 80 %.
pub const TARGET: f64 = 0.8;
/// Time constant of what is measured: 5 s (point 1).
pub const SMOOTHING: Duration = Duration::from_secs(5);
/// Time constant of good news, a load that falls or headroom that grows: 10 s (point 1).
pub const GOOD_NEWS: Duration = Duration::from_secs(10);
/// Time constant of bad news: at once (point 1).
pub const BAD_NEWS: Duration = Duration::ZERO;
/// Standard deviations of a Poisson process by which the offered load must rise to count at once: 3, which chance does
/// once in 700 ticks. Else point 1 would hold every peak of the noise.
pub const SIGNIFICANT: f64 = 3.0;
/// Gain of the integral term, over the time until it sees what it did: 0.3 (point 4). A loop of an integrator and a
/// dead time is stable below π/2; this leaves a phase margin of 73 degrees.
pub const GAIN: f64 = 0.3;
/// Error within which the integral term rests: 3 points (point 4).
pub const DEAD_BAND: f64 = 0.03;
/// Delays for which the integral term waits after a step: 3, after which a filter shows 95 % of it. Before, it would
/// take the lag of what is measured for an error.
pub const SETTLING: u32 = 3;
/// Most that the integral term may correct, in shares: half. Beyond, the model is wrong and a limit is better.
pub const MOST_TRIM: f64 = 0.5;
/// Utilisation above the target at which spilling begins: 3 points (point 5).
pub const ENTER_MARGIN: f64 = 0.03;
/// Ticks for which it must last: 2 (point 5).
pub const ENTER_TICKS: u32 = 2;
/// Utilisation below the target at which spilling ends: 5 points (point 5).
pub const LEAVE_MARGIN: f64 = 0.05;
/// Ticks for which it must last: 5 (point 5).
pub const LEAVE_TICKS: u32 = 5;
/// Most by which the share moves in a tick: 5 points (point 5). What follows from a step of the node's own offered load
/// comes on top: it is counted, not measured, has no age, and so cannot swing.
pub const STEP: f64 = 0.05;
/// Time in which flows that piled up before a step was known are to be done: a second. Until then the node takes fewer new
/// ones; else they would wait behind the old ones for as long as its level is the target.
pub const DRAIN: Duration = Duration::from_secs(1);
/// Memory in use at which a node takes nothing from others. New flows need some, and memory gives no warning by delay.
pub const MEMORY_FULL: f64 = 0.95;
/// Round-trip time of the nearest class; each class after it ends at twice the time of the one before, so that nodes of
/// one class are within a factor of 2: 1 ms, about a site's own network.
pub const NEAREST: Duration = Duration::from_millis(1);
/// How far a round-trip time must leave its class to change it: a tenth, several times the jitter of a smoothed probe.
pub const CLASS_MARGIN: f64 = 0.1;
/// How long the cost of a flow is learned: a minute, several times the smoothing of what it is learned from.
pub const COST_MEMORY: Duration = Duration::from_secs(60);
/// How long what is smoothed still tells what a flow costs after the last one: twice the smoothing, after which a seventh of
/// it is left.
pub const REMAINS: Duration = Duration::from_secs(10);
/// Relative standard deviation of work from which a cost can be told from the background: a tenth.
pub const SPREAD_TO_LEARN: f64 = 0.1;
/// Least that a flow can cost, as a part of what it would if the service alone used the resource: a twentieth.
pub const LEAST_COST: f64 = 0.05;
/// Longest time that a flow is taken to last: a minute. Gains would vanish with longer ones.
pub const LONGEST_FLOW: Duration = Duration::from_secs(60);
