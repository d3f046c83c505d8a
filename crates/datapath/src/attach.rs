//! Attaching: links that are pinned are adopted and get the new program in one step; others are made and pinned.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use aya_obj::generated::{BPF_F_BEFORE, bpf_attach_type, bpf_link_info};
use tracing::{debug, info, warn};
use weir_abi::{self as abi, Hook};
use weir_core::interfaces::Attachment;

use crate::clsact;
use crate::error::{Error, Result};
use crate::load::Datapath;
use crate::pins::{pin_names, remove_pin};
use crate::sys::{self, LinkTarget};

/// In native mode or not at all: generic XDP is slower than tc.
const XDP_NATIVE: u32 = 1 << 2;

/// At a TCX hook before all that is there: programs of others may accept a packet for good (`TC_ACT_OK`), and nothing behind them sees it.
const TCX_FIRST: u32 = BPF_F_BEFORE;

/// How the kernel calls a hook.
const fn attach_type(hook: Hook) -> bpf_attach_type {
    match hook {
        Hook::Xdp => bpf_attach_type::BPF_XDP,
        Hook::NicIn | Hook::PodIn => bpf_attach_type::BPF_TCX_INGRESS,
        Hook::NicOut | Hook::PodOut => bpf_attach_type::BPF_TCX_EGRESS,
    }
}

/// How programs are attached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AttachOptions {
    /// Use XDP on the node's interfaces where the driver runs it natively.
    pub xdp: bool,
    /// Use TCX links where the kernel has them (6.6); else, and where it has not, clsact filters.
    pub tcx: bool,
    /// Frames of the interface begin with the IP header, as those of WireGuard, IP in IP, tun and PPP.
    pub headerless: bool,
    /// XDP of other interfaces may send by this one, where it runs here, too. What may not tc sends.
    pub redirects: bool,
}

const CGROUP_PROGRAMS: [(&str, bpf_attach_type); 8] = [
    ("connect4", bpf_attach_type::BPF_CGROUP_INET4_CONNECT),
    ("connect6", bpf_attach_type::BPF_CGROUP_INET6_CONNECT),
    ("sendmsg4", bpf_attach_type::BPF_CGROUP_UDP4_SENDMSG),
    ("sendmsg6", bpf_attach_type::BPF_CGROUP_UDP6_SENDMSG),
    ("recvmsg4", bpf_attach_type::BPF_CGROUP_UDP4_RECVMSG),
    ("recvmsg6", bpf_attach_type::BPF_CGROUP_UDP6_RECVMSG),
    ("peername4", bpf_attach_type::BPF_CGROUP_INET4_GETPEERNAME),
    ("peername6", bpf_attach_type::BPF_CGROUP_INET6_GETPEERNAME),
];

/// Names of the programs that every node has: those of interfaces, then those of the cgroup.
pub(crate) fn basic_programs() -> impl Iterator<Item = String> {
    let of_cgroup = CGROUP_PROGRAMS.into_iter().map(|(name, _)| cgroup_program(name));
    Hook::ALL.into_iter().map(|hook| hook.program().to_owned()).chain(of_cgroup)
}

/// Whether a program is for interfaces without link headers, which few nodes have.
pub(crate) fn is_headerless(program: &str) -> bool {
    Hook::ALL.into_iter().any(|hook| hook.headerless_program() == Some(program))
}

fn cgroup_program(link: &str) -> String {
    format!("weir_{link}")
}

/// What the names of pinned links begin with: those of interfaces, then those of the cgroup.
pub(crate) fn link_kinds() -> impl Iterator<Item = &'static str> {
    Hook::ALL.into_iter().map(Hook::name).chain(CGROUP_PROGRAMS.into_iter().map(|(name, _)| name))
}

impl Datapath {
    /// Attaches everything that such an interface needs, in the network namespace of the caller.
    ///
    /// # Errors
    /// When tc cannot be attached, or a pod's interface is said to have no link headers: there are no programs for that. XDP is
    /// best effort: what it does not do, tc does.
    pub fn attach_interface(
        &mut self,
        index: u32,
        name: &str,
        attachment: Attachment,
        options: AttachOptions,
    ) -> Result<()> {
        const NIC: (Hook, Hook) = (Hook::NicIn, Hook::NicOut);
        const POD: (Hook, Hook) = (Hook::PodIn, Hook::PodOut);
        let ((ingress, egress), former) = match attachment {
            Attachment::Nic | Attachment::Tunnel => (NIC, POD),
            Attachment::Pod => (POD, NIC),
        };
        // Without link headers there are no neighbours.
        let is_card = attachment == Attachment::Nic && !options.headerless;
        if !is_card {
            self.nics.remove(&index)?;
        }
        // Answers first: a flow that begins between the two must find its way back.
        self.attach_tc(egress, index, name, options)?;
        self.attach_tc(ingress, index, name, options)?;
        // Only now: what leaves by it is to be seen there.
        if is_card {
            self.nics.put(&index, &1, 0)?;
        }
        if attachment == Attachment::Nic && options.xdp && !options.headerless {
            self.attach_xdp(index, name, options.redirects)?;
        } else {
            // Other interfaces' frames would be lost at a driver that has let go of XDP.
            self.devices.remove(&index)?;
            self.drop_link(&link_name(Hook::Xdp, index))?;
        }
        // An agent without links was here before: its filters would go on with its maps.
        if options.tcx && !self.lacks_tcx {
            clsact::detach(name);
        }
        // It may have been taken for something else before the node's addresses were known.
        [former.0, former.1].iter().map(|hook| link_name(*hook, index)).try_for_each(|pin| {
            self.drop_link(&pin)?;
            self.drop_former_link(&pin)
        })
    }

    /// Whether the kernel has refused TCX links: before Linux 6.6 it has none.
    #[must_use]
    pub const fn lacks_tcx(&self) -> bool {
        self.lacks_tcx
    }

    fn attach_tc(&mut self, hook: Hook, index: u32, name: &str, options: AttachOptions) -> Result<()> {
        let program = if options.headerless { hook.headerless_program() } else { Some(hook.program()) };
        let program = program.ok_or_else(|| Error::Object {
            object: "tc.bpf.o",
            reason: format!("there is no program for {hook} of {name}, whose frames have no link header"),
        })?;
        if !self.programs.contains_key(program) {
            self.load_headerless()?;
        }
        if options.tcx {
            match self.attach_tcx(hook, program, index) {
                Err(Error::Io { cause, .. }) if cause.raw_os_error() == Some(libc::EINVAL) => {
                    debug!(interface = name, "no TCX in this kernel, using clsact");
                    self.lacks_tcx = true;
                }
                done => return done,
            }
        }
        clsact::attach(&self.kept.join(program), hook, name)?;
        self.drop_link(&link_name(hook, index))
    }

    fn attach_tcx(&mut self, hook: Hook, program: &str, index: u32) -> Result<()> {
        let (pin, target) = (link_name(hook, index), LinkTarget::Interface(index));
        let former = pinned_link(&self.pins.former_links().join(&pin), target)?;
        self.link(program, &pin, target, attach_type(hook), TCX_FIRST, former.as_ref().map(AsFd::as_fd))
    }

    fn attach_xdp(&mut self, index: u32, name: &str, redirects: bool) -> Result<()> {
        let hook = Hook::Xdp;
        let target = LinkTarget::Interface(index);
        match self.link(hook.program(), &link_name(hook, index), target, attach_type(hook), XDP_NATIVE, None) {
            Ok(()) if redirects => self.devices.put(&index, &abi::Device { ifindex: index, program: 0 }, 0),
            Ok(()) => self.devices.remove(&index).map(drop),
            Err(Error::Io { cause, .. }) if cause.raw_os_error() == Some(libc::EBUSY) => {
                warn!(interface = name, "another XDP program is attached; leaving it, tc does the work");
                self.devices.remove(&index).map(drop)
            }
            Err(Error::Io { cause, .. }) => {
                info!(interface = name, reason = %cause, "no native XDP, tc does the work");
                self.devices.remove(&index).map(drop)
            }
            Err(e) => Err(e),
        }
    }

    /// Attaches the socket hooks to a cgroup of the v2 hierarchy.
    ///
    /// # Errors
    /// When the cgroup cannot be opened or a program not attached.
    pub fn attach_cgroup(&mut self, cgroup: &Path) -> Result<()> {
        let dir = File::open(cgroup).map_err(|e| Error::io(format!("cannot open cgroup {}", cgroup.display()), e))?;
        let target = LinkTarget::Cgroup(dir.as_fd());
        // Answers first, as with interfaces.
        for (name, kind) in CGROUP_PROGRAMS.into_iter().rev() {
            self.link(&cgroup_program(name), name, target, kind, 0, None)?;
        }
        Ok(())
    }

    /// Detaches the socket hooks.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn detach_cgroup(&mut self) -> Result<()> {
        CGROUP_PROGRAMS.iter().try_for_each(|(name, _)| self.drop_link(name))
    }

    /// Detaches everything from an interface, or cleans up after one that is gone.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn detach_interface(&mut self, index: u32, name: &str) -> Result<()> {
        self.devices.remove(&index)?;
        for hook in Hook::ALL {
            self.drop_link(&link_name(hook, index))?;
            self.drop_former_link(&link_name(hook, index))?;
        }
        // Filters go by name, and a name may belong to another interface by now; those of a gone one went with it.
        if nix::net::if_::if_nametoindex(name) == Ok(index) {
            clsact::detach(name);
        }
        self.nics.remove(&index).map(drop)
    }

    /// Indexes of the interfaces for which links are pinned, of former programs too.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn attached_interfaces(&self) -> Result<Vec<u32>> {
        let mut names = self.pins.link_names()?;
        names.extend(pin_names(&self.pins.former_links())?);
        let mut indexes: Vec<u32> = names.iter().filter_map(|name| name.rsplit_once('-')?.1.parse().ok()).collect();
        indexes.sort_unstable();
        indexes.dedup();
        Ok(indexes)
    }

    /// Whom interfaces lead to, by index, as pinned links tell, whoever has made them. Filters in place of links tell of none.
    ///
    /// # Errors
    /// When the directory or a map cannot be read.
    pub fn attachments(&self) -> Result<BTreeMap<u32, Attachment>> {
        // Of one that is gone another interface may have the number by now.
        let leads = |hook, index| {
            pinned_link(&self.pins.links().join(link_name(hook, index)), LinkTarget::Interface(index))
                .map(|link| link.is_some())
        };
        let mut attachments = BTreeMap::new();
        for index in self.attached_interfaces()? {
            let attachment = match (leads(Hook::PodIn, index)?, leads(Hook::NicIn, index)?) {
                (true, _) => Attachment::Pod,
                (false, true) if self.nics.get(&index)?.is_some() => Attachment::Nic,
                // What has no link headers is like a tunnel in this.
                (false, true) => Attachment::Tunnel,
                (false, false) => continue,
            };
            attachments.insert(index, attachment);
        }
        Ok(attachments)
    }

    fn drop_link(&self, pin: &str) -> Result<()> {
        remove_pin(&self.pins.links().join(pin))
    }

    /// Adopts the pinned link, or makes and pins a new one, before the other one if that is given.
    fn link(
        &self,
        program: &str,
        pin: &str,
        target: LinkTarget<'_>,
        kind: bpf_attach_type,
        flags: u32,
        before: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let path = self.pins.links().join(pin);
        let program_fd = self.program(program).ok_or_else(|| Error::Object {
            object: "the compiled programs",
            reason: format!("there is no program {program}"),
        })?;
        if let Some(link) = pinned_link(&path, target)? {
            match sys::link_update(link.as_fd(), program_fd) {
                Ok(()) => return Ok(()),
                Err(e) => debug!(link = pin, reason = %e, "cannot adopt the link, making a new one"),
            }
        }
        self.drop_link(pin)?;
        let link = sys::link_create(program_fd, target, kind, flags, before)
            .map_err(|e| Error::io(format!("cannot attach {program} to {}", Target(target)), e))?;
        sys::obj_pin(link.as_fd(), &path).map_err(|e| Error::io(format!("cannot pin {}", path.display()), e))
    }
}

struct Target<'a>(LinkTarget<'a>);

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            LinkTarget::Interface(index) => write!(f, "interface {index}"),
            LinkTarget::Cgroup(_) => f.write_str("the cgroup"),
        }
    }
}

pub(crate) fn link_name(hook: Hook, index: u32) -> String {
    format!("{hook}-{index}")
}

/// The link that is pinned at the path, if it still leads to the target. Devices take their links with them.
fn pinned_link(path: &Path, target: LinkTarget<'_>) -> Result<Option<OwnedFd>> {
    let link = match sys::obj_get(path, 0) {
        Ok(link) => link,
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(e) => return Err(Error::io(format!("cannot open {}", path.display()), e)),
    };
    let info = sys::link_info(link.as_fd()).map_err(|e| Error::io(format!("cannot inspect {}", path.display()), e))?;
    Ok(leads_to(&info, target)?.then_some(link))
}

fn leads_to(info: &bpf_link_info, target: LinkTarget<'_>) -> Result<bool> {
    match target {
        // SAFETY: XDP and TCX links both report the index of their device first.
        LinkTarget::Interface(index) => Ok(unsafe { info.__bindgen_anon_1.xdp.ifindex } == index),
        // SAFETY: a link that was pinned under a cgroup program's name is a cgroup link.
        LinkTarget::Cgroup(fd) => Ok(unsafe { info.__bindgen_anon_1.cgroup.cgroup_id } == inode(fd)?),
    }
}

/// A cgroup's id is its inode number.
fn inode(fd: BorrowedFd<'_>) -> Result<u64> {
    let file = fd.try_clone_to_owned().map(File::from);
    let metadata = file.and_then(|file| file.metadata());
    Ok(metadata.map_err(|e| Error::io("cannot inspect the cgroup", e))?.ino())
}
