//! Real endpoints on the loopback, asked for real.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use weir_core::endpoint_checks::{AskedPort, Check, Get, Question};
use weir_core::model::{Endpoint, Family, ObjectName, Protocol, Slice, SlicePort};
use weir_testbed::loopback;

use super::*;

/// Patience with anything that should happen at once.
const SOON: Duration = Duration::from_secs(10);
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// A server that answers every request with the same bytes. Its port is closed on drop.
struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(address: &str, answer: &str) -> Self {
        let answer = answer.to_owned();
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                // Who only connects says nothing.
                if stream.read(&mut request).await.is_ok_and(|length| length > 0) {
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            }
        });
        Self { address, task }
    }

    /// Returns when nobody listens any more.
    async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

fn check(question: Question) -> Check {
    Check {
        question,
        port: AskedPort::Named("http".into()),
        interval: Duration::from_millis(100),
        timeout: Duration::from_millis(100),
        rise: 1,
        fall: 1,
        all_fail: AllFail::UseAll,
    }
}

fn get(statuses: RangeInclusive<u16>) -> Check {
    // A machine that is busy answers late, too.
    let timeout = SOON;
    Check { timeout, ..check(Question::Get(Get { path: "/healthz".into(), host: None, statuses })) }
}

fn label(result: Result<(), Failure>) -> &'static str {
    result.map_or_else(|failure| failure.label(), |()| "passed")
}

#[tokio::test]
async fn an_endpoint_passes_if_it_takes_a_connection() {
    // Where few other tests listen: its port could be theirs as soon as it is closed.
    for address in ["127.0.0.2:0", "[::1]:0"] {
        let server = Server::start(address, OK).await;
        let (address, connect) = (server.address, Check { timeout: SOON, ..check(Question::Connect) });
        assert_eq!(label(ask::ask(address, &connect).await), "passed", "{address}");
        server.stop().await;
        assert_eq!(label(ask::ask(address, &connect).await), "unreachable", "{address}");
    }
}

#[tokio::test]
async fn an_endpoint_passes_if_it_answers_http_with_a_status_that_passes() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let server = Server::start(address, OK).await;
        assert_eq!(label(ask::ask(server.address, &get(200..=399)).await), "passed");
        let wrong = ask::ask(server.address, &get(204..=204)).await.unwrap_err();
        assert_eq!((wrong.label(), wrong.to_string().as_str()), ("status", "it answers with status 200"));
    }
}

#[tokio::test]
async fn a_server_that_speaks_no_http_or_hangs_up_or_finds_no_end_is_broken() {
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    for answer in ["SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 2", "", &endless] {
        let server = Server::start("127.0.0.1:0", answer).await;
        assert_eq!(label(ask::ask(server.address, &get(200..=399)).await), "broken", "{:.40}", answer);
    }
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up_in_time() {
    // The backlog accepts; nobody ever answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let patient = Check { timeout: Duration::from_millis(50), ..get(200..=399) };
    let failure = ask::ask(silent.local_addr().unwrap(), &patient).await.unwrap_err();
    assert_eq!((failure.label(), failure.to_string().as_str()), ("timeout", "no answer within 50ms"));
}

#[tokio::test]
async fn a_server_hears_the_path_and_the_host_that_the_check_names() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for (host, expected) in [(None, address.to_string()), (Some("web.example".to_owned()), "web.example".to_owned())] {
        let get = Get { path: "/ready?all=1".into(), host, statuses: 200..=200 };
        let check = Check { timeout: SOON, ..check(Question::Get(get)) };
        let heard = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(OK.as_bytes()).await.unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap().to_ascii_lowercase()
        };
        let (result, heard) = tokio::join!(ask::ask(address, &check), heard);
        assert_eq!(label(result), "passed");
        assert!(heard.starts_with("get /ready?all=1 http/1.1\r\n"), "{heard}");
        for line in [format!("host: {expected}"), "connection: close".to_owned()] {
            assert!(heard.contains(&format!("\r\n{line}\r\n")), "{line} in {heard}");
        }
    }
}

/// A checker that is told contents by a test, and whom it tells.
struct Bed {
    news: mpsc::Sender<Contents>,
    changes: mpsc::Receiver<Event>,
    task: JoinHandle<Result<()>>,
}

impl Bed {
    fn start() -> Self {
        let (news, contents) = mpsc::channel(1);
        let (sink, changes) = mpsc::channel(64);
        let checker = Checker::new(sink, CheckMetrics::new()).unwrap();
        Self { news, changes, task: tokio::spawn(checker.run(contents)) }
    }

    async fn tell(&self, check: Option<Check>, endpoints: &[SocketAddr]) {
        let checks = check.map(|check| (web(), check)).into_iter().collect();
        self.news.send(Contents { slices: vec![slice(endpoints)], checks, ..Contents::default() }).await.unwrap();
    }

    /// Waits until these endpoints, and no others, are handed on as ready.
    async fn await_ready(&mut self, expected: &[SocketAddr]) {
        let expected: Vec<IpAddr> = expected.iter().map(SocketAddr::ip).collect();
        let mut seen = Vec::new();
        let look = async {
            while seen.last() != Some(&expected) {
                let slices = match self.changes.recv().await.unwrap() {
                    Event::Slices(slices) => slices,
                    Event::Slice(slice) => vec![slice],
                    _ => continue,
                };
                let ready = slices.iter().flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.ready);
                seen.push(ready.map(|endpoint| endpoint.address).collect());
            }
        };
        let done = tokio::time::timeout(SOON, look).await;
        done.unwrap_or_else(|_| panic!("{expected:?} never came, but {seen:?}"));
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn web() -> ObjectName {
    ObjectName::new("default", "web")
}

/// Endpoints that all serve at the first one's port.
fn slice(endpoints: &[SocketAddr]) -> Slice {
    Slice {
        name: ObjectName::new("default", "web-1"),
        service: web(),
        family: Family::V4,
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: endpoints[0].port() }],
        endpoints: endpoints.iter().map(|address| Endpoint::new(address.ip())).collect(),
        triggered: None,
    }
}

/// Servers at one port of several addresses.
async fn servers<const N: usize>() -> [Server; N] {
    let [port] = loopback::ports().unwrap();
    let mut all = Vec::new();
    for number in 1..=N {
        all.push(Server::start(&format!("127.0.0.{number}:{port}"), OK).await);
    }
    all.try_into().unwrap_or_else(|_| unreachable!("as many as were started"))
}

#[tokio::test]
async fn an_endpoint_that_dies_is_handed_on_as_not_ready_and_again_as_ready_when_it_is_back() {
    let [here, there] = servers().await;
    let both = [here.address, there.address];
    let mut bed = Bed::start();
    bed.tell(Some(check(Question::Connect)), &both).await;
    bed.await_ready(&both).await;
    here.stop().await;
    bed.await_ready(&both[1..]).await;
    let _here = Server::start(&both[0].to_string(), OK).await;
    bed.await_ready(&both).await;
}

#[tokio::test]
async fn an_endpoint_that_is_dead_when_the_agent_starts_is_never_handed_on_as_ready() {
    let [here, there] = servers().await;
    let both = [here.address, there.address];
    here.stop().await;
    let mut bed = Bed::start();
    bed.tell(Some(check(Question::Connect)), &both).await;
    let first = tokio::time::timeout(SOON, async {
        loop {
            if let Event::Slices(slices) = bed.changes.recv().await.unwrap() {
                return slices;
            }
        }
    });
    let ready: Vec<bool> = first.await.unwrap()[0].endpoints.iter().map(|endpoint| endpoint.ready).collect();
    assert_eq!(ready, [false, true]);
}

#[tokio::test(start_paused = true)]
async fn first_answers_that_take_too_long_hold_nothing_up() {
    // The backlog accepts; nobody ever answers, and nothing is known for as long as the timeout.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let mut bed = Bed::start();
    let begin = Instant::now();
    bed.tell(Some(Check { interval: 10 * SOON, timeout: 10 * SOON, ..get(200..=399) }), &[address]).await;
    bed.await_ready(&[address]).await;
    assert!(begin.elapsed() < 2 * FIRST_ANSWERS, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_service_without_a_check_is_handed_on_as_it_is_and_at_once() {
    let nobody: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let mut bed = Bed::start();
    bed.tell(None, &[nobody]).await;
    bed.await_ready(&[nobody]).await;
}

#[tokio::test]
async fn an_endpoint_that_the_file_adds_is_ready_when_it_has_answered() {
    let [here, there] = servers().await;
    let both = [here.address, there.address];
    let mut bed = Bed::start();
    bed.tell(Some(check(Question::Connect)), &both[..1]).await;
    bed.await_ready(&both[..1]).await;
    bed.tell(Some(check(Question::Connect)), &both).await;
    bed.await_ready(&both).await;
}
