//! Pouring an excess into the headroom of other nodes, the nearest first.

/// What a node could take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vessel {
    /// How far it is: lower classes are filled first.
    pub class: u32,
    /// New flows per second that it could take, 0 or more.
    pub headroom: f64,
}

/// What each node takes of an amount: class by class, in proportion to headroom within a class, and none more than its
/// headroom. The sum is less than the amount if all headroom together is.
#[must_use]
pub fn fill(amount: f64, vessels: &[Vessel]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..vessels.len()).collect();
    order.sort_by_key(|index| vessels[*index].class);
    let mut taken = vec![0.0; vessels.len()];
    let mut rest = amount.max(0.0);
    for class in order.chunk_by(|a, b| vessels[*a].class == vessels[*b].class) {
        let headroom: f64 = class.iter().map(|index| vessels[*index].headroom).sum();
        if headroom <= 0.0 {
            continue;
        }
        let part = (rest / headroom).min(1.0);
        for index in class {
            taken[*index] = vessels[*index].headroom * part;
        }
        rest = if part < 1.0 { 0.0 } else { rest - headroom };
    }
    taken
}
