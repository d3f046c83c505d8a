//! How small tables with slots may become: a Service, an endpoint or a line keeps its slot for as long as it lives, so that a table ends behind
//! the last one that is in use.

use tracing::warn;
use weir_abi as abi;
use weir_core::ops::Capacity;

use crate::map::Pod;
use crate::pins::{PinDir, READ_ONLY};

/// The sizes that are wanted, or larger ones where what is pinned needs these.
pub(crate) fn at_least(pins: &PinDir, wanted: &Capacity) -> Capacity {
    let is_service = |service: &abi::Service| service.flags & abi::SERVICE_USED != 0;
    let is_backend = |backend: &abi::Backend| backend.flags & abi::BACKEND_USED != 0;
    let is_line = |line: &abi::Line| line.r#ref.iter().any(|reference| *reference != 0);
    Capacity {
        services: end(pins, "services", "--max-services", wanted.services, is_service),
        backends: end(pins, "backends", "--max-backends", wanted.backends, is_backend),
        lines: end(pins, "lines", "--max-lines", wanted.lines, is_line),
        ..*wanted
    }
}

/// The size that is wanted, or the number of slots up to the last one that is used. A map of another layout is not adopted.
fn end<T: Pod>(pins: &PinDir, map: &'static str, option: &str, wanted: u32, is_used: impl Fn(&T) -> bool) -> u32 {
    let Ok(slots) = pins.mapped::<T>(map, READ_ONLY) else { return wanted };
    let last = (wanted..slots.len()).rev().find(|slot| slots.get(*slot).is_ok_and(|value| is_used(&value)));
    let Some(last) = last else { return wanted };
    warn!(
        map,
        wanted,
        kept = last + 1,
        "{option} is less than what is in use; the table becomes smaller when those slots are free"
    );
    last + 1
}
