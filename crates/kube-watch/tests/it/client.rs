//! Ways to the API server, good and bad.

use std::path::{Path, PathBuf};

use http_body_util::BodyExt;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use tokio::net::TcpListener;
use weir_kube_watch::client::{ClientOptions, connect};
use weir_testbed::loopback;

fn kubeconfig(directory: &Path, server: &str) -> PathBuf {
    let path = directory.join("config");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n\
         users: [{{name: u, user: {{token: secret}}}}]\n\
         contexts: [{{name: here, context: {{cluster: c, user: u}}}}, {{name: there, context: {{cluster: c, user: u}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

async fn error(options: &ClientOptions) -> String {
    match connect(options).await {
        Ok(_) => panic!("no error"),
        Err(error) => error.to_string(),
    }
}

/// A server that answers every request with its name. Ends with the runtime.
async fn server(name: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = service_fn(async move |_| Ok::<_, std::convert::Infallible>(Response::new(name.to_owned())));
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        }
    });
    url
}

/// A URL at which nobody answers.
fn nobody() -> String {
    let [port] = loopback::ports().unwrap();
    format!("http://{}:{port}", loopback::address())
}

async fn ask(client: &kube::Client) -> Result<String, kube::Error> {
    let response = client.send(Request::get("/version").body(Body::empty()).unwrap()).await?;
    Ok(String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec()).unwrap())
}

#[tokio::test]
async fn a_kubeconfig_leads_to_its_server() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = Some(kubeconfig(directory.path(), &server("first").await));
    let client = connect(&ClientOptions { kubeconfig, ..ClientOptions::default() }).await.unwrap();
    assert_eq!(ask(&client).await.unwrap(), "first");
}

#[tokio::test]
async fn a_list_of_servers_overrides_the_kubeconfig_and_is_tried_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = Some(kubeconfig(directory.path(), &server("unused").await));
    let api_servers = vec![nobody(), server("second").await, server("third").await];
    let client = connect(&ClientOptions { kubeconfig, api_servers, context: None }).await.unwrap();
    ask(&client).await.expect_err("nobody answers at the first");
    assert_eq!(ask(&client).await.unwrap(), "second");
    assert_eq!(ask(&client).await.unwrap(), "second", "stays with the one that answers");
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_read_is_named_with_the_cause() {
    let kubeconfig = Some(PathBuf::from("/nonexistent/config"));
    let text = error(&ClientOptions { kubeconfig, ..ClientOptions::default() }).await;
    assert_eq!(text, "cannot read kubeconfig /nonexistent/config: No such file or directory (os error 2)");
}

#[tokio::test]
async fn a_context_that_does_not_exist_is_named_with_those_that_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = kubeconfig(directory.path(), "http://127.0.0.1:1");
    let context = Some("elsewhere".to_owned());
    let text = error(&ClientOptions { kubeconfig: Some(path.clone()), context, api_servers: vec![] }).await;
    let expected = format!("kubeconfig {} has no context \"elsewhere\" (it has: here, there)", path.display());
    assert_eq!(text, expected);
}

#[tokio::test]
async fn a_kubeconfig_that_is_not_yaml_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config");
    std::fs::write(&path, "clusters: [").unwrap();
    let text = error(&ClientOptions { kubeconfig: Some(path.clone()), ..ClientOptions::default() }).await;
    assert!(text.starts_with(&format!("kubeconfig {} cannot be used: ", path.display())), "{text}");
}

#[tokio::test]
async fn a_server_that_is_no_url_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = kubeconfig(directory.path(), "http://127.0.0.1:1");
    for url in ["192.0.2.1:6443", "ftp://192.0.2.1", "https://[::1"] {
        let options =
            ClientOptions { kubeconfig: Some(path.clone()), context: None, api_servers: vec![url.to_owned()] };
        let text = error(&options).await;
        assert!(
            text.starts_with(&format!("API server \"{url}\" is not a URL such as https://192.0.2.1:6443")),
            "{text}"
        );
    }
}

#[tokio::test]
async fn without_a_kubeconfig_and_outside_a_pod_the_error_says_what_to_give() {
    if Path::new("/var/run/secrets/kubernetes.io/serviceaccount/token").exists() {
        eprintln!("SKIPPED: this is a pod");
        return;
    }
    let text = error(&ClientOptions::default()).await;
    assert!(text.contains("no kubeconfig was given") && text.contains("--kubeconfig"), "{text}");
}
