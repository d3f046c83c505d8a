//! Looks at the node of [`crate::sample`], for tests: 80 flows come in a second, and some fail.

use std::collections::{BTreeMap, HashMap};

use weir_abi as abi;

use super::sample::{Counts, Sample};
use crate::index::Index;
use crate::sample;
use crate::weights;

/// After so many seconds.
pub(crate) fn sample(seconds: u32) -> Sample {
    let count = u64::from(seconds);
    let web = abi::ServiceCounters {
        local: 900 + 70 * count,
        remote: 100 + 10 * count,
        rejected: 2,
        dropped: count,
        ..Default::default()
    };
    let counts = Counts {
        services: HashMap::from([(1, web)]),
        failures: HashMap::from([(1, 5), (2, 3 * count / 2)]),
        open: HashMap::from([(1, 12)]),
        refusals: BTreeMap::from([
            (abi::REASON_NO_ENDPOINTS as usize, 400),
            (abi::REASON_NO_ROUTE as usize, 7 + 10 * count),
        ]),
    };
    Sample::new(seconds.into(), &Index::new(&sample::dump()), counts, Ok(weights::tests::sample()))
}
