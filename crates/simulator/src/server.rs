//! A node's cores and the queue in front of them.
//!
//! The queue is a fluid: its length follows `dN/dt = arrivals - rate * u(N)`, where u is the utilisation at which a
//! queue of so many cores holds N requests in its steady state (the pointwise stationary fluid flow approximation: Wang,
//! Tipper and Banerjee, INFOCOM 1996). One equation for an idle node, a busy one and one that is flooded.

/// Utilisation from which no difference is made to a full node.
const FULL: f64 = 1.0 - 1e-9;
/// Steps of a bisection, to a billionth.
const STEPS: u32 = 32;

/// Requests in a node whose `cores` are busy to `utilisation`, waiting ones included: Sakasegawa's formula of the length
/// of an M/M/c queue (Ann. Inst. Statist. Math. 29, 1977). Not finite from a utilisation of 1 on.
#[must_use]
pub fn in_system(cores: f64, utilisation: f64) -> f64 {
    if utilisation >= 1.0 {
        return f64::INFINITY;
    }
    let utilisation = utilisation.max(0.0);
    cores * utilisation + utilisation.powf((2.0 * (cores + 1.0)).sqrt()) / (1.0 - utilisation)
}

/// One node's server of the service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Server {
    /// Cores that the service can have, above 0.
    pub cores: f64,
    /// Requests per second that they can do, above 0.
    pub rate: f64,
    /// Seconds of work that may wait. What comes beyond is rejected, as its client has given up by then.
    pub patience: f64,
    /// Requests that are here.
    pub requests: f64,
}

/// What came of a time step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Part of the service's cores that was in use.
    pub utilisation: f64,
    /// Seconds that a request takes that comes now.
    pub time: f64,
    /// Requests that were rejected.
    pub rejected: f64,
}

impl Server {
    /// Lets some requests come during `seconds`. An implicit step: stable however long it is.
    pub fn step(&mut self, arrived: f64, seconds: f64) -> Served {
        let Self { cores, rate, patience, requests } = *self;
        let offered = requests + arrived;
        // What stays and what is done grow with utilisation: one of them fits.
        let (mut low, mut high) = (0.0, FULL);
        for _ in 0..STEPS {
            let middle = f64::midpoint(low, high);
            if in_system(cores, middle) + rate * middle * seconds < offered { low = middle } else { high = middle }
        }
        let utilisation = f64::midpoint(low, high);
        let stays = (offered - rate * utilisation * seconds).max(0.0);
        self.requests = stays.min(cores + patience * rate);
        Served { utilisation, time: self.time(utilisation), rejected: stays - self.requests }
    }

    /// By Little's law; of a node that does nothing, the time of a request that is alone.
    fn time(&self, utilisation: f64) -> f64 {
        let alone = self.cores / self.rate;
        (self.requests / (self.rate * utilisation.max(1e-6))).max(alone)
    }
}
