//! The real kube-proxy: what tests of the way from it, and comparisons with it, build on.

use std::net::SocketAddr;
use std::time::Duration;

use weir_testbed::kube_proxy::Mode;
use weir_testbed::objects::{self, Endpoint};
use weir_testbed::{ApiServer, KubeProxy, World, address, ask, require_root, serve, wait};

#[test]
fn it_serves_until_a_service_names_another_proxy_and_leaves_no_table_behind() {
    let what = "a real kube-proxy";
    if !require_root(what) || !ApiServer::require(what) || !KubeProxy::require(what) {
        return;
    }
    let world = World::builder().nodes(1).build().unwrap();
    let (node, pod) = (world.node(1), world.node(1).pod(1));
    let _server = serve::http(pod.netns(), &pod.name(), 8080).unwrap();
    let api = ApiServer::start(Some(world.router())).unwrap();
    let client = api.objects().unwrap();
    let object = objects::node(&node.name(), &node.address().both(), None);
    client.apply(&object).unwrap();
    client.apply_status(&object).unwrap();
    let mut service = objects::service("web", 80, "TCP");
    service.spec.as_mut().unwrap().type_ = Some("NodePort".into());
    let made = client.apply(&service).unwrap().spec.unwrap();
    for ip in pod.address().both() {
        let endpoint = Endpoint { ip, node: node.name(), ready: true };
        let suffix = if ip.is_ipv6() { "v6" } else { "v4" };
        client.apply(&objects::endpoint_slice("web", suffix, 8080, "TCP", &[endpoint])).unwrap();
    }

    let url = api.url_at(address::ROUTER_INSIDE.v4.into());
    let proxy = KubeProxy::start(&api, &url, node).unwrap();
    let node_port = made.ports.unwrap()[0].node_port.unwrap().try_into().unwrap();
    let mut targets: Vec<_> = node.address().both().map(|ip| SocketAddr::new(ip, node_port)).into();
    targets.extend(made.cluster_ips.unwrap().iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 80)));
    for target in &targets {
        assert!(proxy.serves("TCP", *target).unwrap(), "{target}\n{}", proxy.log());
        let answer = world.client().enter(|| ask::http_ask(*target)).unwrap();
        assert_eq!(answer.name, pod.name(), "{target}");
    }

    let label = ("service.kubernetes.io/service-proxy-name".into(), "another".into());
    service.metadata.labels = Some([label].into());
    client.apply(&service).unwrap();
    for target in targets {
        let gone = || !proxy.serves("TCP", target).unwrap();
        wait::until(&format!("the end of {target}"), Duration::from_secs(10), gone).unwrap();
    }
    proxy.stop().unwrap();
    let mut nft = node.netns().command("nft");
    let left = nft.args(["list", "tables"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}

#[test]
fn in_mode_iptables_it_serves_too_and_leaves_no_chain_behind() {
    let what = "a real kube-proxy with iptables";
    if !require_root(what) || !ApiServer::require(what) || !KubeProxy::require(what) {
        return;
    }
    let world = World::builder().nodes(1).build().unwrap();
    let (node, pod) = (world.node(1), world.node(1).pod(1));
    let _server = serve::http(pod.netns(), &pod.name(), 8080).unwrap();
    let api = ApiServer::start(Some(world.router())).unwrap();
    let client = api.objects().unwrap();
    let object = objects::node(&node.name(), &node.address().both(), None);
    client.apply(&object).unwrap();
    client.apply_status(&object).unwrap();
    let made = client.apply(&objects::service("web", 80, "TCP")).unwrap().spec.unwrap();
    let endpoint = Endpoint { ip: pod.address().v4.into(), node: node.name(), ready: true };
    client.apply(&objects::endpoint_slice("web", "v4", 8080, "TCP", &[endpoint])).unwrap();

    let url = api.url_at(address::ROUTER_INSIDE.v4.into());
    let proxy = KubeProxy::start_in(Mode::Iptables, &api, &url, node).unwrap();
    let target = SocketAddr::new(made.cluster_ip.unwrap().parse().unwrap(), 80);
    let answer = wait::until_some("an answer", Duration::from_secs(10), || {
        world.client().enter(|| ask::http_ask(target)).map_err(|error| error.to_string())
    });
    assert_eq!(answer.unwrap_or_else(|e| panic!("{e}\n{}", proxy.log())).name, pod.name());

    proxy.stop().unwrap();
    let mut save = node.netns().command("iptables-save");
    let left = String::from_utf8(save.output().unwrap().stdout).unwrap();
    assert!(!left.contains("KUBE-SERVICES"), "{left}");
}
