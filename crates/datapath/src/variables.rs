//! Maps of one value that programs have as variables: `VARIABLE` of `bpf/lib/maps.h`.

use std::sync::atomic::Ordering;

use aya::EbpfLoader;
use weir_abi as abi;

use crate::error::Result;
use crate::map::Mapped;
use crate::pins::{PinDir, READ_ONLY};

/// Each map, and the section of its variable.
const VARIABLES: [(&str, &str); 2] = [("config", ".data.config"), ("going_filter", ".data.going_filter")];

/// The pinned configuration as programs find it, for a variable that begins with it.
#[derive(Debug)]
pub(crate) struct ConfigNow(Vec<u32>);

impl ConfigNow {
    /// Reads it.
    ///
    /// # Errors
    /// No pin there, no right to open it, or another layout.
    pub(crate) fn read(pins: &PinDir) -> Result<Self> {
        let config: Mapped<abi::Config> = pins.mapped("config", READ_ONLY)?;
        Ok(Self(config.words(0)?.iter().map(|word| word.load(Ordering::Relaxed)).collect()))
    }

    /// Has the programs of a loader begin with it.
    pub(crate) fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        loader.override_global("config_value", self.0.as_slice(), true);
    }

    /// Has the variables of a loader's programs be the pinned maps, which are there. The loader writes to a map what its variable begins with: this
    /// configuration, which nobody but the caller may change, and a filter that knows nothing.
    pub(crate) fn share<'a>(&'a self, loader: &mut EbpfLoader<'a>, pins: &PinDir) {
        self.set(loader);
        for (map, section) in VARIABLES {
            loader.map_pin_path(section, pins.map(map));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use aya_obj::Object;

    use super::*;
    use crate::layout::spec;
    use crate::objects::objects;

    /// Of one that is left out each object would have a map of its own, and the agent would write to another.
    #[test]
    fn every_variable_of_the_objects_is_a_pinned_map() {
        let known: BTreeSet<_> = VARIABLES.iter().map(|(_, section)| (*section).to_owned()).collect();
        for (name, bytes) in objects() {
            let maps = Object::parse(bytes).unwrap().maps;
            let sections: BTreeSet<_> =
                maps.into_keys().filter(|map| map.starts_with(".data") || map.starts_with(".bss")).collect();
            assert_eq!(sections, known, "{name}");
        }
        assert!(VARIABLES.iter().all(|(map, section)| section.strip_prefix(".data.") == Some(spec(map).name)));
    }
}
