//! The API server's own service never loses its last endpoints. The way to the API server is how news of its endpoints
//! comes: an API server whose lease ran out takes itself out of the slices, and nobody could tell when it is back.

use crate::model::{Endpoint, Family, ObjectName, Slice};

const NAMESPACE: &str = "default";
const NAME: &str = "kubernetes";

/// Whether a service is the API server's own.
pub(crate) fn is_api_server(service: &ObjectName) -> bool {
    *service.namespace == *NAMESPACE && *service.name == *NAME
}

/// Whether a port keeps the endpoints that the maps hold: an agent that starts while the API server's service has none
/// knows of no earlier ones but those. `held` and `usable` are how many endpoints were usable and are now.
pub(crate) fn keeps_endpoints(service: &ObjectName, held: u32, usable: u32) -> bool {
    is_api_server(service) && held > 0 && usable == 0
}

/// The API server's endpoints, each family as it was when it last had a usable one.
#[derive(Debug, Default)]
pub(crate) struct LastResort {
    usable: Vec<Slice>,
    /// Families whose slices name no usable endpoint now, but did before.
    lost: Vec<Family>,
}

impl LastResort {
    /// Takes in the slices of the API server's service as they are now.
    pub(crate) fn update(&mut self, slices: &[Slice]) {
        self.lost.clear();
        for family in [Family::V4, Family::V6] {
            let of_family = slices.iter().filter(|slice| slice.family == family);
            if of_family.clone().any(has_usable) {
                self.usable.retain(|slice| slice.family != family);
                self.usable.extend(of_family.cloned());
            } else if self.usable.iter().any(|slice| slice.family == family) {
                self.lost.push(family);
            }
        }
    }

    /// Whether the slices of a family are replaced by those that it had before.
    pub(crate) fn replaces(&self, family: Family) -> bool {
        self.lost.contains(&family)
    }

    /// What replaces them.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.usable.iter().filter(|slice| self.replaces(slice.family))
    }
}

fn has_usable(slice: &Slice) -> bool {
    let is_usable = |endpoint: &Endpoint| endpoint.ready || endpoint.serving && endpoint.terminating;
    !slice.ports.is_empty() && slice.endpoints.iter().any(is_usable)
}
