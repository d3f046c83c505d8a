//! A file of services for agents that have no API server, which goes on saying so whatever becomes of the endpoints.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use weir_testbed::{Pod, World, address};

/// Port of the services.
pub(crate) const PORT: u16 = 80;
/// Port of the pods.
pub(crate) const TARGET_PORT: u16 = 8080;

/// A service at external addresses.
#[derive(Clone, Debug)]
pub(crate) struct StaticService {
    pub(crate) name: String,
    pub(crate) external: [IpAddr; 2],
    pub(crate) pods: Vec<Pod>,
}

/// The external addresses with this number, one of each family.
pub(crate) fn external(number: u8) -> [IpAddr; 2] {
    address::external_ips().map(|prefix| match prefix.network() {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) + u32::from(number)).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) + u128::from(number)).into()),
    })
}

/// Writes a file of these services into a directory of its own below `directory`: agents look at their file whenever
/// something changes beside it.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write(world: &World, services: &[StaticService], directory: &Path) -> Result<PathBuf> {
    let own = directory.join("services");
    std::fs::create_dir(&own).with_context(|| format!("cannot make {}", own.display()))?;
    let file = own.join("services.yaml");
    std::fs::write(&file, text(world, services)).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn text(world: &World, services: &[StaticService]) -> String {
    let mut text = String::from("nodes:\n");
    // Writing to a string does not fail.
    for node in world.nodes() {
        let [v4, v6] = node.address().both();
        let _ = writeln!(text, "  - {{name: {}, addresses: [{v4}, \"{v6}\"]}}", node.name());
    }
    text.push_str("services:\n");
    for StaticService { name, external: [v4, v6], pods } in services {
        let _ = writeln!(text, "  - name: {name}\n    externalIPs: [{v4}, \"{v6}\"]");
        let _ = writeln!(text, "    ports: [{{port: {PORT}, targetPort: {TARGET_PORT}}}]\n    endpoints:");
        for (pod, ip) in pods.iter().flat_map(|pod| pod.address().both().map(|ip| (pod, ip))) {
            let _ = writeln!(text, "      - {{address: \"{ip}\", node: node{}}}", pod.node());
        }
    }
    text
}
