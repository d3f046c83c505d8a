//! ServiceCIDRs.

use k8s_openapi::api::networking::v1 as k8s;
use weir_core::model::ServiceCidr;

use super::{Problem, parse_range, text};

/// The networks of a ServiceCIDR, as kube-proxy has them: whatever its conditions say, Services have addresses there until
/// it is gone.
#[must_use]
pub fn service_cidr(object: &k8s::ServiceCIDR, problems: &mut Vec<Problem>) -> ServiceCidr {
    let written = object.spec.as_ref().and_then(|spec| spec.cidrs.as_deref()).unwrap_or_default();
    let mut networks = Vec::with_capacity(written.len());
    for cidr in written {
        match parse_range(cidr) {
            Some(network) => networks.push(network),
            None => problems.push(Problem::ServiceCidr(cidr.clone())),
        }
    }
    ServiceCidr { name: text(object.metadata.name.as_deref()), networks }
}
