//! The admin socket: a file by which people on this machine ask the agent what it tells nobody else. It names all nodes,
//! Services and endpoints, so root and the agent's own user get answers, and all others a refusal.
//!
//! Two fences, since files are copied and modes are changed: the mode of the socket and of its directory, and what the
//! kernel says of who connects (`SO_PEERCRED`, unix(7)).

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::listeners::{BACKLOG, Door, Limits, Room, accept};

/// Where the sockets of agents are.
pub const DIRECTORY: &str = "/run/weir";

/// Mode of the directory, where it is made here.
const DIRECTORY_MODE: u32 = 0o750;
/// Mode of the socket: to connect one has to be able to write.
const SOCKET_MODE: u32 = 0o600;
/// An agent that starts at the same time holds the directory for a moment.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two looks.
const GLANCE: Duration = Duration::from_millis(10);
/// Anybody but the owner may put something in.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Where the agent of a pin directory listens unless it is told otherwise: an agent of its own, as those of tests are, has a
/// pin directory of its own. `/run/weir/agent.sock` for one that is called `weir`, else `/run/weir/NAME.sock`.
#[must_use]
pub fn default_path(pin_dir: &Path) -> PathBuf {
    match pin_dir.file_name() {
        Some(name) if name != "weir" => Path::new(DIRECTORY).join(name).with_added_extension("sock"),
        Some(_) | None => Path::new(DIRECTORY).join("agent.sock"),
    }
}

/// There is no admin socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody listens there.
    #[error("{path}: another process listens there; stop it, or choose another --admin-socket")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is there, which is not ours to remove.
    #[error("{path} is no socket; remove it, or choose another --admin-socket")]
    Foreign {
        /// What is there.
        path: PathBuf,
    },
    /// Somebody else could put a socket in this one's place.
    #[error("{directory}: {why}; choose another --admin-socket, in a directory that only root may change")]
    Exposed {
        /// The directory.
        directory: PathBuf,
        /// Who could.
        why: &'static str,
    },
    /// The kernel refuses.
    #[error("cannot {action} {path}: {cause}; see --admin-socket")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
}

/// Makes an error of the kernel's.
fn failed<T>(action: &'static str, path: &Path, result: io::Result<T>) -> Result<T, Error> {
    result.map_err(|cause| Error::Io { action, path: path.to_owned(), cause })
}

/// Who connects, as the kernel says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Peer {
    /// Effective user id at the moment of the connection.
    pub uid: u32,
    /// Process id at that moment; none if it is in another PID namespace.
    pub pid: Option<i32>,
}

impl Peer {
    const fn may_ask(self, owner: u32) -> bool {
        self.uid == 0 || self.uid == owner
    }
}

/// Listens; connections queue until they are [served](Self::serve). The file is removed when this goes.
#[derive(Debug)]
pub struct AdminSocket {
    listener: UnixListener,
    file: SocketFile,
    owner: u32,
}

impl AdminSocket {
    /// Listens at `path`. Its directory is made if it is not there, its parent is not. A socket at which nobody listens any
    /// more is replaced, one at which somebody does is left alone, and so is everything that is no socket. While another agent starts it
    /// waits, at most for two seconds.
    ///
    /// # Errors
    /// Somebody listens there, something else is there, others may change the directory, or the kernel refuses.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn bind(path: &Path) -> Result<Self, Error> {
        let owner = failed("learn who owns", path, own_user())?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Held until the socket listens: of two agents that start together one finds that of the other.
        let _lock = lock_directory(directory, owner)?;
        make_way(path)?;
        let listener = failed("listen at", path, listen(path))?;
        let inode = failed("look at", path, fs::symlink_metadata(path))?.ino();
        Ok(Self { listener, file: SocketFile { path: path.to_owned(), inode }, owner })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Answers root and this process's user until `stop`, with [`Limits::ADMIN`]; all others get 403, whatever they ask, and
    /// keep nobody waiting. Handlers learn who asks from `ConnectInfo<Peer>`.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let Self { listener, file, owner } = self;
        let guarded = router.layer(middleware::from_fn_with_state(owner, guard));
        accept(Fence { listener, owner }, guarded, Room::new(Limits::ADMIN), stop).await;
        drop(file);
    }
}

/// Lets root and the owner through.
async fn guard(
    State(owner): State<u32>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if peer.may_ask(owner) {
        return next.run(request).await;
    }
    let Peer { uid, pid } = peer;
    warn!(uid, pid, "a user who may not was refused at the admin socket");
    let text = format!("weir-agent answers root and its own user (uid {owner}) alone, and you are uid {uid}\n");
    (StatusCode::FORBIDDEN, text).into_response()
}

/// The socket, and who may ask there beside root.
struct Fence {
    listener: UnixListener,
    owner: u32,
}

impl Door for Fence {
    type Stream = UnixStream;
    type Peer = Peer;

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        self.listener.poll_accept(context).map_ok(|(stream, _)| stream)
    }

    fn admits(&self, stream: &UnixStream) -> bool {
        Self::peer(stream).is_some_and(|peer| peer.may_ask(self.owner))
    }

    fn peer(stream: &UnixStream) -> Option<Peer> {
        let credentials = stream.peer_cred().ok()?;
        Some(Peer { uid: credentials.uid(), pid: credentials.pid() })
    }
}

/// A socket's name in the file system, which outlives the socket unless it is removed.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Unless another has it by now.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            // What is left is stale, which the next agent replaces.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The effective user id of this process, as others see it when it connects.
fn own_user() -> io::Result<u32> {
    let (one, _other) = UnixStream::pair()?;
    Ok(one.peer_cred()?.uid())
}

/// Makes the directory if need be, and locks it.
fn lock_directory(directory: &Path, owner: u32) -> Result<File, Error> {
    match DirBuilder::new().mode(DIRECTORY_MODE).create(directory) {
        Err(cause) if cause.kind() != ErrorKind::AlreadyExists => failed("make", directory, Err(cause))?,
        Ok(()) | Err(_) => {}
    }
    let exposed = |why| Error::Exposed { directory: directory.to_owned(), why };
    let found = failed("look at", directory, fs::symlink_metadata(directory))?;
    if !found.is_dir() {
        return Err(exposed("not a directory"));
    }
    if found.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(exposed("others may write there"));
    }
    if found.uid() != 0 && found.uid() != owner {
        return Err(exposed("it belongs to another user"));
    }
    let file = failed("open", directory, File::open(directory))?;
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if begin.elapsed() < PATIENCE => thread::sleep(GLANCE),
            Err(TryLockError::WouldBlock) => {
                failed("lock", directory, Err(io::Error::other("another process has had it locked for seconds")))?;
            }
            Err(TryLockError::Error(cause)) => failed("lock", directory, Err(cause))?,
        }
    }
}

/// Removes a socket at which nobody listens.
fn make_way(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
        Err(cause) => return failed("look at", path, Err(cause)),
        Ok(found) if !found.file_type().is_socket() => return Err(Error::Foreign { path: path.to_owned() }),
        Ok(_) => {}
    }
    match connect(path) {
        Err(cause) if cause.kind() == ErrorKind::ConnectionRefused => failed("remove", path, fs::remove_file(path)),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(()),
        // It hangs, and has still got its socket.
        Err(cause) if cause.kind() == ErrorKind::WouldBlock => Err(Error::InUse { path: path.to_owned() }),
        Err(cause) => failed("ask who listens at", path, Err(cause)),
        Ok(()) => Err(Error::InUse { path: path.to_owned() }),
    }
}

/// Without waiting, which one would do at a socket whose queue is full.
fn connect(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = File::from(OwnedFd::from(Socket::new(Domain::UNIX, Type::STREAM, None)?));
    // The file gets the mode of the socket (unix_bind() in the kernel): at no moment may somebody else connect.
    socket.set_permissions(Permissions::from_mode(SOCKET_MODE))?;
    let socket = Socket::from(OwnedFd::from(socket));
    socket.bind(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(true)?;
    socket.listen(BACKLOG)?;
    UnixListener::from_std(OwnedFd::from(socket).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pin_directory_has_a_socket_of_its_own() {
        let path = |pins: &str| default_path(Path::new(pins)).display().to_string();
        assert_eq!(path("/sys/fs/bpf/weir"), "/run/weir/agent.sock");
        assert_eq!(path("/sys/fs/bpf/edge.1"), "/run/weir/edge.1.sock");
        assert_eq!(path("/"), "/run/weir/agent.sock");
    }
}
