//! Nodes and the distances between them.

use std::time::Duration;

use rand::{Rng, RngExt};

/// A node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Its cores.
    pub cores: u32,
    /// How fast one is: 1 does a second of work in a second.
    pub speed: f64,
    /// Part of all of them that others use, below 1.
    pub background: f64,
}

impl Machine {
    /// Requests per second of the service that it can do if one takes `work` seconds of a core of speed 1.
    #[must_use]
    pub fn rate(&self, work: f64) -> f64 {
        f64::from(self.cores) * self.speed * (1.0 - self.background) / work
    }
}

/// The nodes of a cluster. Each zone has its own endpoints: topology hints keep its traffic inside.
#[derive(Clone, Debug)]
pub struct World {
    /// The nodes, zone by zone.
    pub machines: Vec<Machine>,
    /// Nodes of each zone. All of them if there is only one.
    pub zone: usize,
    /// Round-trip times in seconds, by node and by position in its zone.
    rtt: Vec<f32>,
}

impl World {
    /// Nodes with round-trip times in milliseconds, as a matrix: one zone.
    ///
    /// # Panics
    /// If the matrix is not as large as the nodes are many.
    #[must_use]
    pub fn with_matrix(machines: Vec<Machine>, milliseconds: &[Vec<f64>]) -> Self {
        let zone = machines.len();
        let square = milliseconds.len() == zone && milliseconds.iter().all(|row| row.len() == zone);
        assert!(square, "a matrix of {zone} rows and columns is needed");
        #[expect(clippy::cast_possible_truncation, reason = "times of milliseconds")]
        let rtt = milliseconds.iter().flatten().map(|time| (time / 1000.0) as f32).collect();
        Self { machines, zone, rtt }
    }

    /// Nodes that are all as far from each other.
    #[must_use]
    pub fn equidistant(machines: Vec<Machine>, rtt: Duration) -> Self {
        let row = |node: usize| {
            (0..machines.len()).map(|other| if other == node { 0.0 } else { rtt.as_secs_f64() * 1000.0 }).collect()
        };
        let rows: Vec<Vec<f64>> = (0..machines.len()).map(row).collect();
        Self::with_matrix(machines, &rows)
    }

    /// Nodes of 2 to 16 cores, some faster than others, in squares of which each is a zone. Two corners of a square are
    /// `across` apart, and no two nodes less than `least`.
    #[must_use]
    pub fn drawn(nodes: usize, zone: usize, least: Duration, across: Duration, rng: &mut impl Rng) -> Self {
        let machine = |rng: &mut _| Machine {
            cores: [2, 4, 4, 8, 16][RngExt::random_range(rng, 0..5)],
            speed: RngExt::random_range(rng, 0.7..1.3),
            background: RngExt::random_range(rng, 0.0..0.2),
        };
        let machines = (0..nodes).map(|_| machine(rng)).collect();
        let places: Vec<(f64, f64)> = (0..nodes).map(|_| (rng.random(), rng.random())).collect();
        let (least, more) = (least.as_secs_f64(), across.saturating_sub(least).as_secs_f64());
        let rtt = |a: usize, b: usize| {
            let far = (places[a].0 - places[b].0).hypot(places[a].1 - places[b].1) / std::f64::consts::SQRT_2;
            if a == b { 0.0 } else { least + more * far }
        };
        #[expect(clippy::cast_possible_truncation, reason = "times of milliseconds")]
        let rtt = (0..nodes).flat_map(|a| zone_of(a, zone, nodes).map(move |b| (a, b))).map(|(a, b)| rtt(a, b) as f32);
        let rtt = rtt.collect();
        Self { machines, zone, rtt }
    }

    /// How many nodes there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.machines.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.machines.is_empty()
    }

    /// The nodes of a node's zone, itself included.
    #[must_use]
    pub fn zone_of(&self, node: usize) -> std::ops::Range<usize> {
        zone_of(node, self.zone, self.len())
    }

    /// Round-trip times in seconds from a node to those of its zone, in their order.
    #[must_use]
    pub fn rtts(&self, node: usize) -> &[f32] {
        // Zones before this one are full: each of their nodes has a row of `zone`.
        let zone = self.zone_of(node);
        let start = zone.start * self.zone + (node - zone.start) * zone.len();
        &self.rtt[start..start + zone.len()]
    }
}

fn zone_of(node: usize, zone: usize, nodes: usize) -> std::ops::Range<usize> {
    let start = node / zone * zone;
    start..(start + zone).min(nodes)
}
