//! The real kube-proxy: what tests of the way from it, and comparisons with it, build on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use weir_testbed::kube_proxy::Mode;
use weir_testbed::objects::{self, Endpoint, Objects};
use weir_testbed::serve::Server;
use weir_testbed::{ApiServer, KubeProxy, World, address, ask, require_root, serve, wait};

/// A cluster of one node, where the pod of the node port service `web` serves. Fields are dropped in order.
struct Scene {
    client: Objects,
    service: Service,
    /// As the API server made it.
    made: ServiceSpec,
    api: ApiServer,
    _server: Server,
    world: World,
}

impl Scene {
    /// None, with a message, if this machine cannot run the test.
    fn new(what: &str) -> Option<Self> {
        if !require_root(what) || !ApiServer::require(what) || !KubeProxy::require(what) {
            return None;
        }
        let world = World::builder().nodes(1).build().unwrap();
        let (node, pod) = (world.node(1), world.node(1).pod(1));
        let server = serve::http(pod.netns(), &pod.name(), 8080).unwrap();
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
        Some(Self { client, service, made, api, _server: server, world })
    }

    fn proxy(&self, mode: Mode) -> KubeProxy {
        let url = self.api.url_at(address::ROUTER_INSIDE.v4.into());
        KubeProxy::start_in(mode, &self.api, &url, self.world.node(1)).unwrap()
    }

    /// The service's node port at both addresses of the node, and its cluster IPs.
    fn targets(&self) -> Vec<SocketAddr> {
        let port = self.made.ports.as_ref().unwrap()[0].node_port.unwrap().try_into().unwrap();
        let mut targets: Vec<_> = self.world.node(1).address().both().map(|ip| SocketAddr::new(ip, port)).into();
        let cluster_ips = self.made.cluster_ips.as_ref().unwrap();
        targets.extend(cluster_ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 80)));
        targets
    }

    /// What a command of the node prints.
    fn printed(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.world.node(1).netns().command(program).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn assert_answered(&self, target: SocketAddr, proxy: &KubeProxy) {
        let answer = wait::until_some("an answer", Duration::from_secs(10), || {
            self.world.client().enter(|| ask::http_ask(target)).map_err(|error| error.to_string())
        });
        let answer = answer.unwrap_or_else(|error| panic!("{target}: {error}\n{}", proxy.log()));
        assert_eq!(answer.name, self.world.node(1).pod(1).name(), "{target}");
    }
}

#[test]
fn it_serves_until_a_service_names_another_proxy_and_leaves_no_table_behind() {
    let Some(scene) = Scene::new("a real kube-proxy") else { return };
    let proxy = scene.proxy(Mode::Nftables);
    for target in scene.targets() {
        assert!(proxy.serves("TCP", target).unwrap(), "{target}\n{}", proxy.log());
        scene.assert_answered(target, &proxy);
    }

    let label = ("service.kubernetes.io/service-proxy-name".into(), "another".into());
    let mut service = scene.service.clone();
    service.metadata.labels = Some([label].into());
    scene.client.apply(&service).unwrap();
    for target in scene.targets() {
        let gone = || !proxy.serves("TCP", target).unwrap();
        wait::until(&format!("the end of {target}"), Duration::from_secs(10), gone).unwrap();
    }
    proxy.stop().unwrap();
    assert_eq!(scene.printed("nft", &["list", "tables"]), "");
}

#[test]
fn in_mode_iptables_it_serves_too_and_leaves_no_chain_behind() {
    let Some(scene) = Scene::new("a real kube-proxy with iptables") else { return };
    let proxy = scene.proxy(Mode::Iptables);
    for target in scene.targets() {
        scene.assert_answered(target, &proxy);
    }

    proxy.stop().unwrap();
    for save in ["iptables-save", "ip6tables-save"] {
        let left = scene.printed(save, &[]);
        assert!(!left.contains("KUBE-SERVICES"), "{left}");
    }
}

#[test]
fn in_mode_ipvs_it_serves_too_and_leaves_no_virtual_server_behind() {
    const WHAT: &str = "a real kube-proxy with IPVS";
    if !KubeProxy::require_ipvs(WHAT) {
        return;
    }
    let Some(scene) = Scene::new(WHAT) else { return };
    let proxy = scene.proxy(Mode::Ipvs);
    for target in scene.targets() {
        scene.assert_answered(target, &proxy);
    }

    proxy.stop().unwrap();
    assert_eq!(scene.printed("ipvsadm", &["-Sn"]), "");
    assert!(!scene.printed("ip", &["link"]).contains("kube-ipvs0"));
}
