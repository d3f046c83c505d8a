//! Server-sent events: what comes, how often, and what becomes of those who do not read.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use weir_page::{PERIOD, Page, Recorder, server};
use weir_telemetry::listeners::HangUp;

use crate::world::{Told, port, sample, service};

/// Runs a recorder, with a clock that jumps when everybody waits.
fn record(told: &Arc<Told>) -> (Page, CancellationToken) {
    let (recorder, page) = Recorder::new(Arc::clone(told) as Arc<_>);
    let stop = CancellationToken::new();
    tokio::spawn(recorder.run(stop.clone()));
    (page, stop)
}

async fn follow(page: &Page, target: &str, hang_up: &HangUp) -> Response<Body> {
    let router = server::router(page.clone()).layer(Extension(hang_up.clone()));
    let request = Request::get(target).header("host", "localhost").body(Body::empty()).unwrap();
    router.oneshot(request).await.unwrap()
}

/// The next piece, as events with their data.
async fn next(body: &mut Body) -> Option<Vec<(String, Value)>> {
    let piece = body.frame().await?.unwrap().into_data().unwrap();
    let text = String::from_utf8(piece.into()).unwrap();
    let event = |text: &str| {
        let (name, data) = text.split_once("event: ")?.1.split_once("\ndata: ")?;
        Some((name.to_owned(), serde_json::from_str(data).unwrap()))
    };
    Some(text.split_terminator("\n\n").filter_map(event).collect())
}

#[tokio::test(start_paused = true)]
async fn who_comes_gets_the_past_and_then_how_it_stands_once_a_period() {
    let told = Told::new(sample(vec![service("shop/web", 3.0)]));
    let (page, _stop) = record(&told);
    tokio::time::sleep(PERIOD * 2).await;
    let response = follow(&page, "/events", &HangUp::default()).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    let first = next(&mut body).await.unwrap();
    assert_eq!(first.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["past", "now"]);
    assert!(first[0].1["nodes"]["node1"]["flows"].as_array().unwrap().len() >= 2);
    told.sample.lock().unwrap().services[0].local = 7.0;
    let before = tokio::time::Instant::now();
    let second = next(&mut body).await.unwrap();
    assert_eq!((&*second[0].0, &second[0].1["total"]["local"]), ("now", &Value::from(7.0)));
    assert!(before.elapsed() <= PERIOD);
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_a_service_gets_all_about_it() {
    let told = Told::new(sample(vec![service("shop/web", 3.0)]));
    told.services.lock().unwrap().insert("shop/web".into(), vec![port(&[1.0])]);
    let (page, _stop) = record(&told);
    tokio::time::sleep(PERIOD).await;
    let mut body = follow(&page, "/events?service=shop%2Fweb", &HangUp::default()).await.into_body();
    let events = next(&mut body).await.unwrap();
    assert_eq!(events[0].1["service"]["flows"][0], 3.0);
    assert_eq!((&*events[2].0, &events[2].1["ports"][0]["sets"][0]["spill"]), ("service", &Value::from(1.0)));
    let mut body = follow(&page, "/events?service=shop%2Fnone", &HangUp::default()).await.into_body();
    assert_eq!(next(&mut body).await.unwrap()[2].1["ports"], Value::Array(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_is_hung_up_on_and_who_reads_is_not() {
    let (page, _stop) = record(&Told::new(sample(vec![])));
    let [slow, quick] = [HangUp::default(), HangUp::default()];
    let unread = follow(&page, "/events", &slow).await;
    let mut read = follow(&page, "/events", &quick).await.into_body();
    for _ in 0..8 {
        next(&mut read).await.unwrap();
    }
    assert!(slow.is_done() && !quick.is_done());
    drop(unread);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_hangs_leaves_signs_of_life() {
    // Nobody records, and nothing is new.
    let (_recorder, page) = Recorder::new(Told::new(sample(vec![])));
    let mut body = follow(&page, "/events", &HangUp::default()).await.into_body();
    next(&mut body).await.unwrap();
    let sign = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(sign, ": still here\n\n");
}

#[tokio::test(start_paused = true)]
async fn one_window_too_many_is_refused_until_another_one_closes() {
    let (page, _stop) = record(&Told::new(sample(vec![])));
    let mut windows = Vec::new();
    loop {
        let response = follow(&page, "/events", &HangUp::default()).await;
        if response.status() != 200 {
            assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (503, &"10".parse().unwrap()));
            break;
        }
        windows.push(response);
    }
    assert_eq!(windows.len(), 16);
    drop(windows.pop());
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(follow(&page, "/events", &HangUp::default()).await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_before_its_connection_is_cut_and_with_the_agent() {
    let (page, stop) = record(&Told::new(sample(vec![])));
    let end = async |body: &mut Body| while next(body).await.is_some() {};
    let mut body = follow(&page, "/events", &HangUp::default()).await.into_body();
    timeout(server::LIMITS.connection, end(&mut body)).await.expect("still open when it is cut");

    let mut body = follow(&page, "/events", &HangUp::default()).await.into_body();
    next(&mut body).await.unwrap();
    stop.cancel();
    timeout(PERIOD, end(&mut body)).await.expect("still open after the end of the agent");
}
