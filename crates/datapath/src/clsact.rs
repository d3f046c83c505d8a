//! tc before Linux 6.6: filters on a clsact qdisc. They are no links; they stay until they are removed by name.

use std::mem::forget;
use std::path::Path;

use aya::programs::tc::{
    NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle, qdisc_add_clsact, qdisc_detach_program,
};
use aya::programs::{SchedClassifier, TcAttachType};
use weir_abi::Hook;

use crate::error::{Error, Result};

/// Behind the filters of people, before those that let the kernel choose (49152).
const PRIORITY: u16 = 1000;
const HANDLE: TcHandle = TcHandle::new(0, 1);

const HOOKS: [Hook; 4] = [Hook::NicIn, Hook::NicOut, Hook::PodIn, Hook::PodOut];

const fn direction(hook: Hook) -> TcAttachType {
    if hook.is_ingress() { TcAttachType::Ingress } else { TcAttachType::Egress }
}

/// Attaches a pinned program, in place of the one that an earlier agent left there.
///
/// # Errors
/// When the kernel refuses the filter, or would take it for one of the other direction.
pub(crate) fn attach(program: &Path, hook: Hook, interface: &str) -> Result<()> {
    let failed = |reason: String| Error::Object {
        object: "tc.bpf.o",
        reason: format!("cannot attach {} to {interface}: {reason}", program.display()),
    };
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // An existing qdisc is fine; any other failure shows when the filter is attached.
    let _ = qdisc_add_clsact(interface);
    let mut program = SchedClassifier::from_pin(program).map_err(|e| failed(e.to_string()))?;
    let options = TcAttachOptions::Netlink(NlOptions { priority: PRIORITY, handle: HANDLE, ..NlOptions::default() });
    let attached = match program.attach_with_options(interface, direction(hook), options) {
        Ok(id) => Ok(id),
        Err(_) => {
            let old = SchedClassifierLink::attached(interface, direction(hook), PRIORITY, HANDLE, None);
            old.map_err(|e| failed(e.to_string()))
                .and_then(|old| program.attach_to_link(old).map_err(|e| failed(e.to_string())))
        }
    };
    let link = program.take_link(attached?).map_err(|e| failed(e.to_string()))?;
    // Dropping it would remove the filter, which must outlive the agent.
    forget(link);
    if !hook.is_ingress() && was_misplaced(name, interface) {
        return Err(failed(format!(
            "beside a qdisc `ingress` this kernel has no place for it; `tc qdisc del dev {interface} ingress` makes room, and filters that were \
             there work at `clsact`, too; Linux 6.6 needs neither"
        )));
    }
    Ok(())
}

/// Whether the filter of what leaves is one of what comes in, which is removed then. To the qdisc `ingress`, which may be there in place of `clsact`, all
/// parents are the one that it has (`ingress_tcf_block()` in net/sched/sch_ingress.c), and the next program would take this one's place.
fn was_misplaced(program: &str, interface: &str) -> bool {
    qdisc_detach_program(interface, TcAttachType::Ingress, program).is_ok()
}

/// Removes the programs from an interface. Nothing to remove is no error.
pub fn detach(interface: &str) {
    for hook in HOOKS {
        for program in hook.programs() {
            let _ = qdisc_detach_program(interface, direction(hook), program);
        }
    }
}
