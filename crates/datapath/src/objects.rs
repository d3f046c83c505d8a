//! The compiled objects, and how their programs get into the kernel.

use std::collections::BTreeMap;
use std::io;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

use aya::programs::{Program, ProgramError, ProgramFd};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use nix::sys::signal::{SigSet, SigmaskHow};
use tracing::warn;

use crate::error::{Error, Result};

/// Times that a program is given to the kernel, as in libbpf (`PROG_LOAD_ATTEMPTS`).
const LOAD_ATTEMPTS: u32 = 5;

/// A compiled object.
#[derive(Debug)]
pub(crate) struct Object {
    /// Name of its file.
    pub(crate) name: &'static str,
    bytes: &'static [u8],
}

pub(crate) static XDP: Object =
    Object { name: "xdp.bpf.o", bytes: include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xdp.bpf.o")) };
pub(crate) static TC: Object =
    Object { name: "tc.bpf.o", bytes: include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tc.bpf.o")) };
pub(crate) static SOCK: Object =
    Object { name: "sock.bpf.o", bytes: include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sock.bpf.o")) };
/// All objects.
pub(crate) static OBJECTS: [&Object; 3] = [&XDP, &TC, &SOCK];

/// The compiled objects by name, for tests that look into their BTF.
#[must_use]
pub fn objects() -> [(&'static str, &'static [u8]); 3] {
    OBJECTS.map(|object| (object.name, object.bytes))
}

/// A loader, for any number of objects. They have no CO-RE relocations, so it does not keep the kernel's BTF, which it reads
/// as it is made: that costs time and memory.
pub(crate) fn loader<'a>() -> EbpfLoader<'a> {
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    loader
}

impl Object {
    /// Makes those of its maps that the loader does not find pinned, and reads its programs.
    ///
    /// # Errors
    /// When the kernel refuses a map, or a right is missing.
    pub(crate) fn load(&self, loader: &mut EbpfLoader<'_>) -> Result<Ebpf> {
        loader.load(self.bytes).map_err(|e| failed(self.name, &e))
    }
}

/// A program with its name, and the object that it is of.
pub(crate) type Waiting<'a> = (&'static str, (&'a str, &'a mut Program));

/// Gives programs to the kernel, as many at a time as there are processors: the verifier walks each of them on one, and that
/// is most of what a start of the agent takes.
pub(crate) fn load_programs(programs: Vec<Waiting<'_>>) -> Result<BTreeMap<String, ProgramFd>> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(programs.len());
    let waiting = Mutex::new(programs.into_iter());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut loaded = Vec::new();
        while let Some((object, (name, program))) = next() {
            loaded.push((name.to_owned(), load_program(object, name, program)?));
        }
        Ok(loaded)
    };
    let loaded: Vec<Result<Vec<_>>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        workers.into_iter().map(join).collect()
    });
    let mut programs = BTreeMap::new();
    for part in loaded {
        programs.extend(part?);
    }
    Ok(programs)
}

/// Gives a program to the kernel, and keeps it open.
///
/// # Errors
/// When the kernel refuses it, or there are no more file descriptors.
pub(crate) fn load_program(object: &'static str, name: &str, program: &mut Program) -> Result<ProgramFd> {
    let _undisturbed = Undisturbed::begin();
    let mut attempts = 1;
    loop {
        let loaded = match program {
            Program::Xdp(program) => program.load(),
            Program::SchedClassifier(program) => program.load(),
            Program::CgroupSockAddr(program) => program.load(),
            _ => Ok(()),
        };
        match loaded {
            Err(e) if was_interrupted(&e) && attempts < LOAD_ATTEMPTS => attempts += 1,
            loaded => break loaded.map_err(|e| failed(object, &e))?,
        }
    }
    let fd = program.fd().map_err(|e| failed(object, &e))?.try_clone();
    fd.map_err(|e| Error::io(format!("cannot keep program {name}"), e))
}

/// A thread that gets no signals: each one would end the verifier's walk, and a process that starts others gets many. They
/// wait, or another thread gets them.
struct Undisturbed(Option<SigSet>);

impl Undisturbed {
    fn begin() -> Self {
        Self(SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok())
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        if let Some(before) = &self.0
            && let Err(cause) = before.thread_set_mask()
        {
            warn!(%cause, "signals stay blocked in a thread");
        }
    }
}

/// Whether the verifier gave up because a signal came for the thread: it says `EAGAIN` then (bpf_check() in
/// kernel/bpf/verifier.c).
fn was_interrupted(error: &ProgramError) -> bool {
    let ProgramError::LoadError { io_error, .. } = error else { return false };
    io_error.kind() == io::ErrorKind::WouldBlock
}

/// The whole chain of causes; a refusal for want of rights gets its own error.
pub(crate) fn failed(object: &'static str, error: &dyn std::error::Error) -> Error {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<io::Error>()
            && matches!(io.raw_os_error(), Some(libc::EPERM | libc::EACCES))
            && !reason.contains("processed")
        {
            return Error::Capability { action: format!("cannot load {object}") };
        }
        reason = format!("{reason}: {inner}");
        cause = inner.source();
    }
    Error::Object { object, reason }
}
