//! The admin socket: where it may be, who gets answers, and how long anybody may take.

use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use weir_telemetry::admin::{AdminSocket, Error, Peer};
use weir_telemetry::listeners::Limits;

/// Far more than anything here takes.
const SOON: Duration = Duration::from_secs(10);

/// A socket that says who asks, in a directory of its own.
struct Served {
    _parent: TempDir,
    path: PathBuf,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Served {
    fn start() -> Self {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("weir/agent.sock");
        let socket = AdminSocket::bind(&path).unwrap();
        assert_eq!(socket.path(), path);
        let who = |ConnectInfo(Peer { uid, .. }): ConnectInfo<Peer>| async move { format!("uid {uid}") };
        let stop = CancellationToken::new();
        let task = tokio::spawn(socket.serve(Router::new().route("/who", get(who)), stop.clone()));
        Self { _parent: parent, path, stop, task }
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).await.unwrap()
    }

    /// The whole answer to what is sent.
    async fn ask(&self, sent: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(sent).await.unwrap();
        let mut answer = Vec::new();
        match timeout(SOON, stream.read_to_end(&mut answer)).await.unwrap() {
            // What is left of a question that was too long is thrown away, behind the answer.
            Err(error) if error.kind() == ErrorKind::ConnectionReset && !answer.is_empty() => {}
            read => drop(read.unwrap()),
        }
        String::from_utf8(answer).unwrap()
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

/// What is wrong with a socket at a path.
fn refusal(path: &Path) -> String {
    AdminSocket::bind(path).unwrap_err().to_string()
}

#[tokio::test]
async fn the_socket_is_its_owners_alone_and_tells_him_who_he_is() {
    let served = Served::start();
    assert_eq!(mode(&served.path), 0o600);
    assert_eq!(mode(served.path.parent().unwrap()), 0o750);
    let owner = fs::metadata(&served.path).unwrap().uid();
    let answer = served.ask(b"GET /who HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with(&format!("uid {owner}")), "{answer}");
}

#[tokio::test]
async fn a_stop_removes_the_socket_and_ends_the_server() {
    let served = Served::start();
    served.stop.cancel();
    timeout(SOON, served.task).await.unwrap().unwrap();
    assert!(!served.path.exists());
}

#[tokio::test]
async fn a_socket_that_a_dead_agent_left_is_replaced_and_a_live_one_is_not() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("agent.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let live = AdminSocket::bind(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    let error = AdminSocket::bind(&path).unwrap_err();
    assert!(matches!(&error, Error::InUse { .. }), "{error}");
    assert!(error.to_string().contains("another process listens there"), "{error}");
    UnixStream::connect(live.path()).await.unwrap();
}

#[tokio::test]
async fn a_live_socket_whose_queue_is_full_is_left_alone_without_waiting() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("agent.sock");
    let hung = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    hung.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    hung.listen(0).unwrap();
    let _queued = std::os::unix::net::UnixStream::connect(&path).unwrap();
    assert!(refusal(&path).contains("another process listens there"));
}

#[tokio::test]
async fn one_that_starts_while_another_one_does_waits_for_it_but_not_for_ever() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("agent.sock");
    let directory = fs::File::open(parent.path()).unwrap();
    directory.lock().unwrap();
    let begin = Instant::now();
    assert!(refusal(&path).contains("has had it locked for seconds"));
    assert!(begin.elapsed() > Duration::from_secs(1), "it gave up after {:?}", begin.elapsed());
    directory.unlock().unwrap();
    AdminSocket::bind(&path).unwrap();
}

#[tokio::test]
async fn one_that_goes_leaves_the_socket_of_its_successor_alone() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("agent.sock");
    let first = AdminSocket::bind(&path).unwrap();
    fs::rename(&path, parent.path().join("moved.sock")).unwrap();
    let second = AdminSocket::bind(&path).unwrap();
    drop(first);
    UnixStream::connect(second.path()).await.unwrap();
}

#[tokio::test]
async fn what_is_no_socket_is_neither_replaced_nor_followed() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("precious");
    fs::write(&file, "content").unwrap();
    let link = parent.path().join("link.sock");
    symlink(&file, &link).unwrap();
    let dangling = parent.path().join("dangling.sock");
    symlink(parent.path().join("elsewhere"), &dangling).unwrap();
    for path in [&file, &link, &dangling] {
        assert!(refusal(path).contains("is no socket"), "{path:?}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "content");
    assert!(!parent.path().join("elsewhere").exists());
}

#[tokio::test]
async fn a_directory_that_others_may_change_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let shared = parent.path().join("shared");
    DirBuilder::new().mode(0o700).create(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    assert!(refusal(&shared.join("agent.sock")).contains("others may write there"));
    let link = parent.path().join("link");
    symlink(parent.path(), &link).unwrap();
    assert!(refusal(&link.join("agent.sock")).contains("not a directory"));
    assert!(refusal(&parent.path().join("no/parent/agent.sock")).contains("cannot make"));
    assert!(refusal(&parent.path().join("x".repeat(120))).contains("cannot listen at"));
    let theirs = parent.path().join("theirs");
    DirBuilder::new().mode(0o700).create(&theirs).unwrap();
    match std::os::unix::fs::chown(&theirs, Some(65_534), None) {
        Ok(()) => assert!(refusal(&theirs.join("agent.sock")).contains("belongs to another user")),
        Err(_) => eprintln!("SKIPPED: a directory of another user: only root can give one away"),
    }
}

#[tokio::test]
async fn a_question_that_is_too_long_gets_a_clear_answer() {
    let served = Served::start();
    let long = "x".repeat(Limits::ADMIN.header_bytes + 1);
    let answer = served.ask(format!("GET /who HTTP/1.1\r\nHost: x\r\nX: {long}\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let answer = served.ask(format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    // One that announces a body and never sends it is answered all the same.
    let answer = served.ask(b"GET /who HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn a_path_is_a_name_and_leads_to_no_file() {
    let served = Served::start();
    for path in ["/../../etc/passwd", "//who/../who", "/%2e%2e/etc/passwd", "/who/", "/etc/passwd"] {
        let answer = served.ask(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
    }
    let answer = served.ask(b"DELETE /who HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    let answer = served.ask(b"nonsense\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[tokio::test]
async fn who_says_nothing_is_sent_away_and_others_are_answered_meanwhile() {
    let served = Served::start();
    let mut silent = served.connect().await;
    silent.write_all(b"GET /who HTTP/1.1\r\nHost").await.unwrap();
    let answer = served.ask(b"GET /who HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let mut answer = String::new();
    let limit = Limits::ADMIN.header + Duration::from_secs(1);
    timeout(limit, silent.read_to_string(&mut answer)).await.expect("sent away").unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
}
