//! The bpf(2) calls that aya does not offer: typed access to pinned maps with batches, and links with their details.
//! Every function is one system call; nothing here decides.

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya_obj::generated::{
    BPF_F_BEFORE, BPF_F_LINK, bpf_attach_type, bpf_attr, bpf_cmd, bpf_link_info, bpf_map_info, bpf_prog_info,
};

/// Where a link is attached to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LinkTarget<'a> {
    Interface(u32),
    Cgroup(BorrowedFd<'a>),
}

fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i32> {
    // SAFETY: attr is a live, fully initialised bpf_attr; the pointers in it were set from live references by the caller.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_uint, attr, size_of::<bpf_attr>()) };
    i32::try_from(result).ok().filter(|r| *r >= 0).ok_or_else(io::Error::last_os_error)
}

fn attr() -> bpf_attr {
    // SAFETY: bpf_attr is a union of plain integers; all zeroes is what the kernel calls unset.
    unsafe { zeroed() }
}

fn fd_of(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn path_of(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

/// Opens a pinned map, program or link. `flags`: 0, or `BPF_F_RDONLY`.
pub(crate) fn obj_get(path: &Path, flags: u32) -> io::Result<OwnedFd> {
    let path = path_of(path)?;
    let mut attr = attr();
    attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    attr.__bindgen_anon_4.file_flags = flags;
    bpf(bpf_cmd::BPF_OBJ_GET, &mut attr).map(owned)
}

/// Pins an object.
pub(crate) fn obj_pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = path_of(path)?;
    let mut attr = attr();
    attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    attr.__bindgen_anon_4.bpf_fd = fd_of(fd);
    bpf(bpf_cmd::BPF_OBJ_PIN, &mut attr).map(drop)
}

fn info<T>(fd: BorrowedFd<'_>) -> io::Result<T> {
    // SAFETY: T is one of the kernel's info structs, plain integers, for which zero is unset.
    let mut info: T = unsafe { zeroed() };
    let mut attr = attr();
    attr.info.bpf_fd = fd_of(fd);
    attr.info.info_len = u32::try_from(size_of::<T>()).unwrap_or(u32::MAX);
    attr.info.info = &raw mut info as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(info)
}

/// Type, sizes and flags of a map.
pub(crate) fn map_info(fd: BorrowedFd<'_>) -> io::Result<bpf_map_info> {
    info(fd)
}

/// The program and the target of a link.
pub(crate) fn link_info(fd: BorrowedFd<'_>) -> io::Result<bpf_link_info> {
    info(fd)
}

/// Name, tag, id and statistics of a program.
pub(crate) fn program_info(fd: BorrowedFd<'_>) -> io::Result<bpf_prog_info> {
    info(fd)
}

/// Opens a program by its number in the kernel. It takes CAP_SYS_ADMIN.
pub(crate) fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attr = attr();
    attr.__bindgen_anon_6.__bindgen_anon_1.prog_id = id;
    bpf(bpf_cmd::BPF_PROG_GET_FD_BY_ID, &mut attr).map(owned)
}

/// Runs a program once on a frame, which nothing sends anywhere. Returns what the program returns and the frame that it leaves
/// behind, which may have grown by `room` bytes; of XDP with its metadata in front.
pub(crate) fn test_run(
    program: BorrowedFd<'_>,
    context: &mut [u8],
    frame: &[u8],
    room: usize,
) -> io::Result<(u32, Vec<u8>)> {
    let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let mut out = vec![0u8; frame.len() + room];
    let mut attr = attr();
    attr.test.prog_fd = fd_of(program);
    attr.test.repeat = 1;
    attr.test.data_in = frame.as_ptr() as u64;
    attr.test.data_size_in = size(frame.len());
    attr.test.data_out = out.as_mut_ptr() as u64;
    attr.test.data_size_out = size(out.len());
    attr.test.ctx_in = context.as_ptr() as u64;
    attr.test.ctx_size_in = size(context.len());
    attr.test.ctx_out = context.as_mut_ptr() as u64;
    attr.test.ctx_size_out = size(context.len());
    bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr)?;
    // SAFETY: the kernel wrote its answer into the same member that was set above.
    let done = unsafe { attr.test };
    out.truncate(done.data_size_out as usize);
    Ok((done.retval, out))
}

/// Reads an entry. `None` if there is none.
pub(crate) fn lookup<K, V>(map: BorrowedFd<'_>, key: &K, value: &mut [V]) -> io::Result<Option<()>> {
    let mut attr = attr();
    attr.__bindgen_anon_2.map_fd = fd_of(map);
    attr.__bindgen_anon_2.key = key as *const K as u64;
    attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
    found(bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut attr))
}

/// `BPF_NOEXIST`: an entry that is there stays.
pub(crate) const NOEXIST: u64 = 1;

/// Whether an entry was not written as there is one with its key, or no room.
pub(crate) fn is_left_out(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EEXIST | libc::E2BIG | libc::ENOSPC))
}

/// Writes an entry.
pub(crate) fn update<K, V>(map: BorrowedFd<'_>, key: &K, value: &V, flags: u64) -> io::Result<()> {
    let mut attr = attr();
    attr.__bindgen_anon_2.map_fd = fd_of(map);
    attr.__bindgen_anon_2.key = key as *const K as u64;
    attr.__bindgen_anon_2.__bindgen_anon_1.value = value as *const V as u64;
    attr.__bindgen_anon_2.flags = flags;
    bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr).map(drop)
}

/// Removes an entry. `None` if there was none.
pub(crate) fn delete<K>(map: BorrowedFd<'_>, key: &K) -> io::Result<Option<()>> {
    let mut attr = attr();
    attr.__bindgen_anon_2.map_fd = fd_of(map);
    attr.__bindgen_anon_2.key = key as *const K as u64;
    found(bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, &mut attr))
}

fn found(result: io::Result<i32>) -> io::Result<Option<()>> {
    match result {
        Ok(_) => Ok(Some(())),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Where a batch ended: the number of a bucket, or of maps without buckets a whole key.
pub(crate) type BatchToken = [u64; 4];

/// Reads the next batch of a map: entries, and where to go on (`None` at the end). `token` comes from the last call.
pub(crate) fn lookup_batch<K, V>(
    map: BorrowedFd<'_>,
    token: Option<BatchToken>,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<(usize, Option<BatchToken>)> {
    let count = keys.len().min(values.len());
    batch(map, token, keys.as_mut_ptr() as u64, values.as_mut_ptr() as u64, count)
}

/// As [`lookup_batch`], for `count` keys and values of sizes that only the map knows.
pub(crate) fn lookup_batch_bytes(
    map: BorrowedFd<'_>,
    token: Option<BatchToken>,
    keys: &mut [u8],
    values: &mut [u8],
    count: usize,
) -> io::Result<(usize, Option<BatchToken>)> {
    batch(map, token, keys.as_mut_ptr() as u64, values.as_mut_ptr() as u64, count)
}

fn batch(
    map: BorrowedFd<'_>,
    token: Option<BatchToken>,
    keys: u64,
    values: u64,
    count: usize,
) -> io::Result<(usize, Option<BatchToken>)> {
    let start = token.unwrap_or_default();
    let mut next = BatchToken::default();
    let mut attr = attr();
    attr.batch.map_fd = fd_of(map);
    attr.batch.in_batch = if token.is_some() { &raw const start as u64 } else { 0 };
    attr.batch.out_batch = &raw mut next as u64;
    attr.batch.keys = keys;
    attr.batch.values = values;
    attr.batch.count = u32::try_from(count).unwrap_or(u32::MAX);
    let result = bpf(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr);
    // SAFETY: the kernel wrote the number of entries into the same member that was set above.
    let count = unsafe { attr.batch.count } as usize;
    match result {
        Ok(_) => Ok((count, Some(next))),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok((count, None)),
        Err(e) => Err(e),
    }
}

/// Attaches a program, at a TCX hook right before that of another link if one is given.
pub(crate) fn link_create(
    program: BorrowedFd<'_>,
    target: LinkTarget<'_>,
    kind: bpf_attach_type,
    flags: u32,
    before: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let mut attr = attr();
    attr.link_create.__bindgen_anon_1.prog_fd = fd_of(program);
    match target {
        LinkTarget::Interface(index) => attr.link_create.__bindgen_anon_2.target_ifindex = index,
        LinkTarget::Cgroup(fd) => attr.link_create.__bindgen_anon_2.target_fd = fd_of(fd),
    }
    attr.link_create.attach_type = kind as u32;
    let relative = if before.is_some() { BPF_F_BEFORE | BPF_F_LINK } else { 0 };
    attr.link_create.flags = flags | relative;
    if let Some(link) = before {
        attr.link_create.__bindgen_anon_3.tcx.__bindgen_anon_1.relative_fd = fd_of(link);
    }
    bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr).map(owned)
}

/// Replaces the program of a link, in one step.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = attr();
    attr.link_update.link_fd = fd_of(link);
    attr.link_update.__bindgen_anon_1.new_prog_fd = fd_of(program);
    bpf(bpf_cmd::BPF_LINK_UPDATE, &mut attr).map(drop)
}
