//! Facts of the host: its name, its network namespace, its cgroup hierarchy.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};
use tracing::warn;
use weir_core::kernel_features::KernelFacts;
use weir_core::model::Family;

/// The host's name in the form that the kubelet registers: lower case.
pub(crate) fn name() -> Result<String> {
    let name = nix::unistd::gethostname().context("cannot read the host's name; pass --node-name")?;
    Ok(name.to_string_lossy().trim().to_lowercase())
}

/// The address that the kernel would send from to another one; None: there is no way. Nothing is sent.
pub(crate) fn source_towards(address: IpAddr) -> Option<IpAddr> {
    /// The discard service (RFC 863): any port does.
    const PORT: u16 = 9;
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((address, PORT)).ok()?;
    socket.local_addr().ok().map(|own| own.ip())
}

/// Cookie of the network namespace that we run in: socket hooks serve the sockets in it.
pub(crate) fn netns_cookie() -> Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let socket = UdpSocket::bind("0.0.0.0:0").or_else(|_| UdpSocket::bind("[::]:0"));
    let socket = socket.context("cannot open a socket")?;
    let mut cookie: u64 = 0;
    let mut length = libc::socklen_t::try_from(size_of::<u64>())?;
    // SAFETY: the kernel writes `length` bytes into `cookie`, which has as many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(std::io::Error::last_os_error()).context("cannot read the network namespace's cookie");
    }
    Ok(cookie)
}

/// Where the cgroup v2 hierarchy is mounted.
pub(crate) fn cgroup_root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (_, target, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(target))
    })
}

/// Whether a directory belongs to the cgroup v2 hierarchy.
pub(crate) fn is_cgroup(dir: &Path) -> bool {
    statfs(dir).is_ok_and(|status| status.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

/// Time since boot, without sleep.
pub(crate) fn uptime() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}

/// Seconds of it.
pub(crate) fn uptime_seconds() -> u32 {
    u32::try_from(uptime().as_secs()).unwrap_or(u32::MAX)
}

/// The driver of a card, as its bus calls it; none of what is no hardware.
pub(crate) fn driver(interface: &str) -> Option<String> {
    let driver = fs::read_link(format!("/sys/class/net/{interface}/device/driver")).ok()?;
    Some(driver.file_name()?.to_string_lossy().into_owned())
}

/// Queues by which an interface sends; none of what has no name in sysfs.
pub(crate) fn queues(interface: &str) -> usize {
    let names = fs::read_dir(format!("/sys/class/net/{interface}/queues")).into_iter().flatten().flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().starts_with("tx-")).count()
}

/// CPUs that the machine may have: each sends by a queue of its own.
pub(crate) fn cpus() -> usize {
    let cpus = sysconf(SysconfVar::_NPROCESSORS_CONF).ok().flatten();
    cpus.and_then(|cpus| usize::try_from(cpus).ok()).unwrap_or(1)
}

/// Bytes that nobody foresees.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| anyhow::anyhow!("no random numbers: {e}"))?;
    Ok(bytes)
}

/// Bytes of memory that the machine has.
pub(crate) fn memory() -> Result<u64> {
    const FILE: &str = "/proc/meminfo";
    let text = fs::read(FILE).with_context(|| format!("cannot read {FILE}; pass --max-flows"))?;
    let found = weir_signals::memory::parse(&text).with_context(|| format!("{FILE} does not say how much there is"))?;
    Ok(found.total << 10)
}

/// Lets all threads have one heap. To be called before there are threads: glibc gives each of them its own, and never gives the free end
/// of these back (`malloc_trim` looks at the first one's alone), so that an agent kept what its busiest moment took.
pub(crate) fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call sets a number of the allocator's own, under its lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives memory that is free back to the system. The lists of a start need much more than what is kept of them.
pub(crate) fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call only touches the allocator's own free memory, under its lock.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets the agent have as many files open as it may at most: every health-check node port takes a socket for each
/// address, and the usual soft limit of 1024 is for programs that call select(2), which we do not.
pub(crate) fn raise_file_limit() {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(cause) = raised {
        warn!(%cause, "the limit of open files stays: many health-check node ports may exceed it; see `ulimit -n`");
    }
}

/// What this node's kernel offers; what only attaching shows is the caller's to say, and in which families it need forward anything.
pub(crate) fn kernel_facts(tcx_refused: bool, cgroup2: bool, families: &BTreeSet<Family>) -> KernelFacts {
    let is_on = |path: &str| fs::read_to_string(path).ok().map(|value| value.trim() != "0");
    let forwards = |family, path| if families.contains(&family) { is_on(path) } else { None };
    KernelFacts {
        tcx_refused,
        cgroup2,
        forwards4: forwards(Family::V4, "/proc/sys/net/ipv4/ip_forward"),
        forwards6: forwards(Family::V6, "/proc/sys/net/ipv6/conf/all/forwarding"),
        compiles: is_on("/proc/sys/net/core/bpf_jit_enable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_files_can_be_opened_as_the_hard_limit_allows() {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // Enough for the other tests of this process.
        setrlimit(Resource::RLIMIT_NOFILE, most - 1, most).unwrap();
        raise_file_limit();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (most, most));
    }
}
