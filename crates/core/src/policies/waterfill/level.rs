//! How far the excess may go: as long as it fits, to the headroom of the others; beyond, to a level above the target at
//! which all of it fits.

/// Those who share an offered load: this node, and the others together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Basin {
    /// Utilisation up to which nodes take flows, above 0.
    pub target: f64,
    /// New flows per second that this node takes up to it, 0 or more.
    pub own: f64,
    /// Utilisation of this node that a new flow per second costs; None if that is not known.
    pub cost: Option<f64>,
    /// New flows per second that the others take up to it, 0 or more.
    pub headroom: f64,
}

impl Basin {
    /// Most of an offered load that may leave, 0 to 1.
    ///
    /// What fits leaves up to the others' headroom. What does not raises the level of all: this node takes more by what a
    /// flow costs, and the others in proportion to their headroom, as if it were all that they can do. That is less than
    /// they can, by what they do already: a node at its target gets nothing at any level, and nobody gets above the level
    /// of the node that spills.
    #[must_use]
    pub fn most(&self, offered: f64) -> f64 {
        let Self { target, own, cost, headroom } = *self;
        if offered <= 0.0 || headroom <= 0.0 {
            return 0.0;
        }
        let beyond = offered - own - headroom;
        let takes = match cost {
            Some(cost) if beyond > 0.0 && cost > 0.0 && target > 0.0 => {
                // New flows per second of each for a point of the level.
                let (here, there) = (1.0 / cost, headroom / target);
                headroom + beyond * (there / (here + there))
            }
            Some(_) | None => headroom,
        };
        (takes / offered).min(1.0)
    }
}
