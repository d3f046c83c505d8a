//! The real API server: what tests of the watch and of the agent build on.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{ServiceCIDR, ServiceCIDRSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use weir_testbed::apiserver::User;
use weir_testbed::ask::PATIENCE;
use weir_testbed::bulk::Bulk;
use weir_testbed::objects::{self, Endpoint};
use weir_testbed::{ApiServer, World, address, require_root};

async fn list_services(client: Client) -> Result<usize, kube::Error> {
    Ok(Api::<Service>::all(client).list(&ListParams::default()).await?.items.len())
}

/// How many Services a client sees that goes by a kubeconfig file, from the calling thread's namespace.
fn services_by(kubeconfig: &Path) -> Result<usize, kube::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        list_services(Client::try_from(config)?).await
    })
}

#[test]
fn objects_outlive_a_stop_of_the_api_server() {
    if !ApiServer::require("a stop of the API server") {
        return;
    }
    let mut server = ApiServer::start(None).unwrap();
    let client = server.objects().unwrap();
    let made = client.apply(&objects::service("web", 80, "TCP")).unwrap();
    let cluster_ips = made.spec.unwrap().cluster_ips.unwrap();
    for (prefix, ip) in address::cluster_ips().iter().zip(&cluster_ips) {
        assert!(prefix.contains(&ip.parse::<IpAddr>().unwrap()), "{ip} in {prefix}");
    }
    assert_eq!(cluster_ips.len(), 2);

    server.stop().unwrap();
    assert!(client.check_ready().is_err());
    server.start_again().unwrap();
    let kept = client.get(&objects::service("web", 80, "TCP")).unwrap().unwrap();
    assert_eq!(kept.spec.unwrap().cluster_ips.unwrap(), cluster_ips);
}

#[test]
fn nodes_slices_and_load_balancer_addresses_can_be_written_changed_and_deleted() {
    if !ApiServer::require("writing objects") {
        return;
    }
    let server = ApiServer::start(None).unwrap();
    let client = server.objects().unwrap();
    let node = objects::node("node1", &address::node(1).both(), Some("east"));
    client.apply(&node).unwrap();
    let written = client.apply_status(&node).unwrap();
    let addresses = written.status.unwrap().addresses.unwrap();
    assert_eq!(addresses.iter().map(|a| a.address.as_str()).collect::<Vec<_>>(), ["172.30.0.11", "fd00:30::11"]);
    assert_eq!(written.metadata.labels.unwrap()[objects::ZONE_LABEL], "east");

    let mut service = objects::service("web", 80, "UDP");
    service.spec.as_mut().unwrap().type_ = Some("LoadBalancer".into());
    let made = client.apply(&service).unwrap();
    assert!(made.spec.unwrap().ports.unwrap()[0].node_port.unwrap() >= 30000);
    let external: [IpAddr; 2] = ["203.0.113.7".parse().unwrap(), "2001:db8:203::7".parse().unwrap()];
    let told = client.set_load_balancer(&service, &external).unwrap();
    let ingress = told.status.unwrap().load_balancer.unwrap().ingress.unwrap();
    assert_eq!(ingress.iter().map(|i| i.ip.clone().unwrap()).collect::<Vec<_>>(), external.map(|ip| ip.to_string()));

    for (suffix, ip) in ["a", "b"].into_iter().zip(address::pod(1, 1).both()) {
        let mut endpoint = Endpoint { ip, node: "node1".into(), ready: true };
        client.apply(&objects::endpoint_slice("web", suffix, 8080, "UDP", &[endpoint.clone()])).unwrap();
        endpoint.ready = false;
        let changed = client.apply(&objects::endpoint_slice("web", suffix, 8080, "UDP", &[endpoint])).unwrap();
        assert_eq!(changed.endpoints[0].conditions.as_ref().unwrap().ready, Some(false));
        client.delete(&changed).unwrap();
        assert!(client.get(&changed).unwrap().is_none());
    }
}

#[test]
fn the_agent_may_do_only_what_the_roles_allow_and_reaches_the_server_from_a_node() {
    if !require_root("the agent's identity") || !ApiServer::require("the agent's identity") {
        return;
    }
    let world = World::builder().nodes(1).build().unwrap();
    let server = ApiServer::start(Some(world.router())).unwrap();
    for ip in address::ROUTER_INSIDE.both() {
        let path = server.kubeconfig(User::Agent, &server.url_at(ip)).unwrap();
        let refused = world.node(1).netns().enter(|| services_by(&path)).unwrap_err();
        let kube::Error::Api(status) = &refused else { panic!("asked {ip}: {refused:?}") };
        assert_eq!(status.code, 403, "{status:?}");
        assert!(status.message.contains(User::Agent.name()), "{status:?}");
    }
}

/// Tests of servers that one has after the other must not take each other's.
static ALONE: Mutex<()> = Mutex::new(());

/// A world whose router lends servers, while no other test has such.
fn lender(what: &str) -> Option<(World, MutexGuard<'static, ()>)> {
    let can_run = require_root(what) && ApiServer::require(what);
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    can_run.then(|| (World::builder().nodes(1).build().unwrap(), alone))
}

#[test]
fn the_next_test_has_the_same_server_with_nothing_in_it_but_what_it_makes_itself() {
    let Some((world, _alone)) = lender("an API server that one test has after the other") else { return };
    let first = ApiServer::lent(world.router()).unwrap();
    let number = first.port();
    let made_itself = names(&first);
    assert!(made_itself.contains("Service default/kubernetes"), "{made_itself:?}");
    let mut service = objects::service("web", 80, "TCP");
    let spec = service.spec.as_mut().unwrap();
    spec.type_ = Some("NodePort".into());
    spec.cluster_ip = Some("10.96.7.7".into());
    spec.ports.as_mut().unwrap()[0].node_port = Some(30_123);
    let fill = |api: &ApiServer| {
        let client = api.objects().unwrap();
        client.apply(&service).unwrap();
        client.apply(&objects::endpoint_slice("web", "a", 8080, "TCP", &[])).unwrap();
        client.apply(&named::<Namespace>("others")).unwrap();
        let spec = ServiceCIDRSpec { cidrs: Some(vec!["10.97.0.0/16".into()]) };
        client.apply(&ServiceCIDR { spec: Some(spec), ..named("more") }).unwrap();
        // Nobody is there to take the finalizer away.
        let mut node = objects::node("node1", &address::node(1).both(), None);
        node.metadata.finalizers = Some(vec!["example.com/nobody".into()]);
        client.apply(&node).unwrap();
        client.delete(&node).unwrap();
        assert_eq!(names(api).len(), made_itself.len() + 5);
    };
    fill(&first);
    drop(first);

    let second = ApiServer::lent(world.router()).unwrap();
    assert_eq!((second.port(), names(&second)), (number, made_itself.clone()));
    // Its address and node port are free.
    fill(&second);
    drop(second);
    let third = ApiServer::lent(world.router()).unwrap();
    assert_eq!((third.port(), names(&third)), (number, made_itself));
}

#[test]
fn a_server_of_which_what_it_has_made_itself_was_changed_ends_with_its_test() {
    let Some((world, _alone)) = lender("an API server that is not had again") else { return };
    let changed = ApiServer::lent(world.router()).unwrap();
    let number = changed.port();
    let mut default = named::<Namespace>("default");
    default.metadata.labels = Some([("team".to_owned(), "edge".to_owned())].into());
    changed.objects().unwrap().apply(&default).unwrap();
    drop(changed);
    assert_ne!(ApiServer::lent(world.router()).unwrap().port(), number);
}

#[test]
fn nodes_reach_a_lent_server_by_the_router_until_it_stops_and_until_the_test_ends() {
    let Some((world, _alone)) = lender("the way to an API server that one test has after the other") else { return };
    let mut lent = ApiServer::lent(world.router()).unwrap();
    let node = world.node(1).netns();
    let ways = address::ROUTER_INSIDE.both().map(|ip| SocketAddr::new(ip, lent.port()));
    let is_refused = |way: &SocketAddr| {
        let refused = node.enter(|| TcpStream::connect(way)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{way}: {refused}");
    };
    for way in ways {
        let path = lent.kubeconfig(User::Admin, &lent.url_at(way.ip())).unwrap();
        assert_eq!(node.enter(|| services_by(&path)).unwrap(), 1);
    }
    lent.stop().unwrap();
    ways.iter().for_each(is_refused);
    lent.start_again().unwrap();
    let open = ways.map(|way| node.enter(|| TcpStream::connect(way)).unwrap());
    drop(lent);
    for mut stream in open {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let end = stream.read(&mut [0]);
        assert!(
            matches!(&end, Ok(0)) || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset),
            "still in"
        );
    }
    ways.iter().for_each(is_refused);
}

/// Kinds and names of what tests make, as the server has them.
fn names(api: &ApiServer) -> BTreeSet<String> {
    let client = api.objects().unwrap();
    let mut all = BTreeSet::new();
    all.extend(names_of::<Service>(&client));
    all.extend(names_of::<EndpointSlice>(&client));
    all.extend(names_of::<Node>(&client));
    all.extend(names_of::<Namespace>(&client));
    all.extend(names_of::<ServiceCIDR>(&client));
    all
}

fn names_of<K: objects::Object + Clone + Send + 'static>(client: &objects::Objects) -> Vec<String> {
    let api = Api::<K>::all(client.client());
    let list = client.run(async move { api.list(&ListParams::default()).await }).unwrap();
    let name = |object: &K| {
        let ObjectMeta { namespace, name, .. } = object.meta();
        let place = namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        format!("{} {place}{}", K::kind(&()), name.clone().unwrap())
    };
    list.items.iter().map(name).collect()
}

fn named<K: Default + Resource<DynamicType = ()>>(name: &str) -> K {
    let mut object = K::default();
    object.meta_mut().name = Some(name.into());
    object
}

#[test]
fn the_server_is_known_by_the_names_and_addresses_that_pods_have_for_it_and_by_no_other() {
    if !ApiServer::require("the API server's names") {
        return;
    }
    let server = ApiServer::start(None).unwrap();
    let client = server.objects().unwrap();
    let kubeconfig = Kubeconfig::read_from(server.kubeconfig(User::Admin, &server.url()).unwrap()).unwrap();
    let ask = |name: &str| {
        let (kubeconfig, name) = (kubeconfig.clone(), Some(name.to_owned()));
        client.run(async move {
            let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
            config.tls_server_name = name;
            list_services(Client::try_from(config).unwrap()).await
        })
    };
    for name in ["kubernetes.default.svc", "kubernetes.default", "kubernetes", "localhost", "10.96.0.1", "fd00:96::1"] {
        ask(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for name in ["weir.example", "10.96.0.2"] {
        let refused = format!("{:?}", ask(name).unwrap_err());
        assert!(refused.contains("NotValidForName"), "{name}: {refused}");
    }
}

#[test]
fn many_services_with_their_endpoints_are_made_in_one_go() {
    if !ApiServer::require("bulk creation") {
        return;
    }
    let server = ApiServer::start(None).unwrap();
    let client = server.objects().unwrap();
    let bulk = Bulk { services: 300, endpoints: 10, nodes: 3, concurrency: 4 };
    let took = bulk.create(&client).unwrap();
    eprintln!("{} services x {} endpoints in {took:?}", bulk.services, bulk.endpoints);
    assert!(took > Duration::ZERO);
    let kube = client.client();
    let slices = client.run(async move { Api::<EndpointSlice>::all(kube).list(&ListParams::default()).await.unwrap() });
    let own = slices.items.iter().filter(|slice| slice.metadata.name.as_ref().unwrap().starts_with("bulk-"));
    let mut ips: Vec<_> = own.flat_map(|slice| slice.endpoints.iter().map(|e| e.addresses[0].clone())).collect();
    ips.sort();
    ips.dedup();
    assert_eq!(ips.len(), 3000, "every endpoint has an address of its own");
    // `default/kubernetes` is there as well.
    let kube = client.client();
    assert_eq!(client.run(list_services(kube)).unwrap(), 301);
}

#[test]
fn services_of_both_families_have_endpoints_in_both() {
    if !ApiServer::require("bulk creation in both families") {
        return;
    }
    let server = ApiServer::start(None).unwrap();
    let client = server.objects().unwrap();
    let bulk = Bulk { services: 3, endpoints: 2, nodes: 2, concurrency: 2 };
    bulk.create_dual_stack(&client).unwrap();
    let kube = client.client();
    let slices = client.run(async move { Api::<EndpointSlice>::all(kube).list(&ListParams::default()).await.unwrap() });
    for family in ["IPv4", "IPv6"] {
        let own = slices
            .items
            .iter()
            .filter(|slice| slice.metadata.name.as_ref().unwrap().starts_with("bulk-") && slice.address_type == family);
        let ips: BTreeSet<_> = own.flat_map(|slice| slice.endpoints.iter().map(|e| e.addresses[0].clone())).collect();
        assert_eq!(ips.len(), 6, "every endpoint has an address of its own in {family}");
    }
}
