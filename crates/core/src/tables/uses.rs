//! How much of the maps' room is taken.

use super::Tables;

impl Tables {
    /// Entries of each map that may become full, by its name. A slot that rests before somebody else may have it counts: it
    /// is not free.
    #[must_use]
    pub fn uses(&self) -> [(&'static str, u32); 7] {
        let (frontends4, frontends6) = self.frontends.counts();
        [
            ("services", self.port_pool.taken()),
            ("backends", self.backend_pool.taken()),
            ("lines", self.line_pool.taken()),
            ("frontends4", frontends4),
            ("frontends6", frontends6),
            ("node_names", self.nodes.taken()),
            ("source_ranges", self.source_ranges),
        ]
    }
}
