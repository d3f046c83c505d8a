//! Sockets and connections.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::routing::get as route;
use axum::{Extension, Router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use weir_telemetry::listeners::{HangUp, Limits, Listeners, Room};

use crate::shared::{get, start, start_in, start_with};

/// Far more than anything here takes.
const SOON: Duration = Duration::from_secs(10);

fn hello() -> Router {
    Router::new().route("/", route(|| async { "hello" }))
}

#[tokio::test]
async fn the_server_listens_on_ipv6_beside_ipv4_on_one_port() {
    let v4 = Listeners::bind("tests", &["0.0.0.0:0".parse().unwrap()]).unwrap();
    let port = v4.addresses()[0].port();
    let v6 = match Listeners::bind("tests", &[SocketAddr::new("::".parse().unwrap(), port)]) {
        Ok(v6) => v6,
        Err(error) if error.cause.raw_os_error() == Some(97) => {
            eprintln!("SKIPPED: this kernel has no IPv6");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let stop = CancellationToken::new();
    tokio::spawn(v6.serve(hello(), stop.clone()));
    let address = SocketAddr::new("::1".parse().unwrap(), port);
    assert_eq!(get(address, "/").await.0.status(), 200);
    stop.cancel();
}

#[tokio::test]
async fn an_address_in_use_is_an_error_that_names_it_and_its_purpose() {
    let first = Listeners::bind("tests", &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = first.addresses()[0];
    let error = Listeners::bind("health checks", &[address]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot listen on {address} for health checks: Address already in use (os error 98)")
    );
}

#[tokio::test]
async fn a_stop_closes_the_port_and_ends_the_server() {
    // Where no other test listens: its port could be theirs as soon as it is closed.
    let server = start(hello(), "127.0.0.2:0");
    assert_eq!(get(server.address, "/").await.0.status(), 200);
    server.stop.cancel();
    server.task.await.unwrap();
    let error = TcpStream::connect(server.address).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_handler_learns_who_asks() {
    let who = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.to_string() };
    let server = start(Router::new().route("/", route(who)), "127.0.0.1:0");
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let own = stream.local_addr().unwrap().to_string();
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.ends_with(&own), "{own} in\n{answer}");
}

#[tokio::test]
async fn a_client_that_does_not_end_its_header_is_told_so_and_sent_away() {
    let limits = Limits { header: Duration::from_millis(50), ..Limits::DEFAULT };
    let server = start_with(hello(), "127.0.0.1:0", limits);
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n").await.unwrap();
    let mut answer = Vec::new();
    timeout(SOON, slow.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n"), "{answer:?}");
}

#[tokio::test]
async fn a_client_that_idles_between_two_requests_is_sent_away_without_a_word() {
    let limits = Limits { header: Duration::from_millis(50), ..Limits::DEFAULT };
    let server = start_with(hello(), "127.0.0.1:0", limits);
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(SOON, idle.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && !answer.contains(" 408 "), "{answer}");
}

#[tokio::test]
async fn a_handler_can_hang_up_on_a_client_that_does_not_read() {
    let endless = async |Extension(hang_up): Extension<HangUp>| {
        hang_up.now();
        std::future::pending::<()>().await;
    };
    let server = start_with(Router::new().route("/", route(endless)), "127.0.0.1:0", Limits::DEFAULT);
    let mut client = hold_with(server.address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut answer = Vec::new();
    timeout(SOON, client.read_to_end(&mut answer)).await.expect("still open").unwrap();
}

#[tokio::test]
async fn one_connection_more_than_the_limit_is_answered_when_another_ends() {
    let limits = Limits { connections: 1, ..Limits::DEFAULT };
    let server = start_with(hello(), "127.0.0.1:0", limits);
    let first = hold(server.address).await;
    let mut second = Box::pin(get(server.address, "/"));
    assert!(timeout(Duration::from_millis(100), &mut second).await.is_err(), "answered beyond the limit");
    drop(first);
    assert_eq!(timeout(SOON, second).await.unwrap().0.status(), 200);
}

#[tokio::test]
async fn listeners_in_one_room_share_its_places_and_one_that_nobody_asks_takes_none() {
    let room = Room::new(Limits { connections: 1, ..Limits::DEFAULT });
    let _silent = start_in(hello(), "127.0.0.1:0", &room);
    let [asked, other] = [(); 2].map(|()| start_in(hello(), "127.0.0.1:0", &room));
    let held = hold(asked.address).await;
    let mut second = Box::pin(get(other.address, "/"));
    assert!(timeout(Duration::from_millis(100), &mut second).await.is_err(), "answered beyond the limit");
    drop(held);
    assert_eq!(timeout(SOON, second).await.unwrap().0.status(), 200);
}

#[tokio::test]
async fn a_flood_at_one_listener_does_not_starve_another() {
    const FLOOD: usize = 20;
    let limits = Limits { connections: 1, connection: Duration::from_millis(20), ..Limits::DEFAULT };
    let room = Room::new(limits);
    let [flooded, other] = [(); 2].map(|()| start_in(hello(), "127.0.0.1:0", &room));
    let mut flood = Vec::new();
    for _ in 0..FLOOD {
        flood.push(hold_soon(flooded.address).await);
    }
    assert_eq!(timeout(SOON, get(other.address, "/")).await.unwrap().0.status(), 200);
    let served = flood.iter().filter(|client| is_answered(client)).count();
    assert!(served < FLOOD / 2, "{served} of {FLOOD} came first");
}

#[tokio::test]
async fn a_probe_gets_one_answer_and_its_connection_is_closed() {
    let server = start_with(hello(), "127.0.0.1:0", Limits::PROBES);
    let mut probe = TcpStream::connect(server.address).await.unwrap();
    probe.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(SOON, probe.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\r\nConnection: close\r\n"), "{answer}");
}

#[tokio::test]
async fn who_only_holds_a_connection_for_probes_has_lost_it_after_five_seconds() {
    let server = start_with(hello(), "127.0.0.1:0", Limits::PROBES);
    let [mut silent, mut slow] =
        [TcpStream::connect(server.address).await.unwrap(), hold_with(server.address, "GET / HTTP/1.1\r\nHost").await];
    let (mut nothing, mut either) = (Vec::new(), Vec::new());
    let both = async { tokio::join!(silent.read_to_end(&mut nothing), slow.read_to_end(&mut either)) };
    let (silent, slow) = timeout(Duration::from_millis(5500), both).await.expect("still open after five seconds");
    silent.unwrap();
    slow.unwrap();
    assert!(nothing.is_empty() && either.starts_with(b"HTTP/1.1 408 "), "{nothing:?}, {either:?}");
}

#[tokio::test]
async fn a_client_that_never_reads_its_answer_loses_its_place() {
    let limits = Limits { connections: 1, connection: Duration::from_millis(50), ..Limits::DEFAULT };
    let endless = Router::new().route("/", route(|| async { "x".repeat(64 << 20) })).merge(small());
    let server = start_with(endless, "127.0.0.1:0", limits);
    let mut deaf = TcpStream::connect(server.address).await.unwrap();
    deaf.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    deaf.readable().await.unwrap();
    assert_eq!(timeout(SOON, get(server.address, "/small")).await.unwrap().0.status(), 200);
}

/// A connection that sends so much and stays open.
async fn hold_with(server: SocketAddr, sent: &str) -> TcpStream {
    let mut client = TcpStream::connect(server).await.unwrap();
    client.write_all(sent.as_bytes()).await.unwrap();
    client
}

/// A connection that wants an answer and then stays open.
async fn hold_soon(server: SocketAddr) -> TcpStream {
    hold_with(server, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await
}

fn is_answered(client: &TcpStream) -> bool {
    client.try_read(&mut [0; 512]).is_ok()
}

/// The same once its answer has come, which proves that it has a place.
async fn hold(server: SocketAddr) -> TcpStream {
    let mut client = hold_soon(server).await;
    assert!(client.read(&mut [0; 512]).await.unwrap() > 0);
    client
}

fn small() -> Router {
    Router::new().route("/small", route(|| async { "small" }))
}
