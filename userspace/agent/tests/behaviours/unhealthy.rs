//! When load balancers must be kept away from a node: its proxy hangs, or does not know its Services yet. What it serves
//! goes on meanwhile.

use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write, pipe};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::harness::callers::Caller;
use crate::harness::echo::{Echo, Member, Talk, echo, spec};
use crate::harness::http::{self, Reply};
use crate::harness::{self, Agent, Cluster, SOON};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use weir_testbed::apiserver::User;
use weir_testbed::{address, wait};

/// The longest pause between two attempts at the API server, with its jitter, and a little for the server itself.
const BACK_OFF: Duration = Duration::from_secs(40);

/// A log that can be made to hold up whoever writes to it, as one does whose reader hangs.
struct Log {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Log {
    fn new() -> Self {
        let (reader, writer) = pipe().unwrap();
        // Of these two descriptors alone; the agent opens the pipe for itself.
        for end in [reader.as_fd(), writer.as_fd()] {
            fcntl(end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        }
        Self { reader, writer }
    }

    /// Where a process opens it.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.writer.as_raw_fd())
    }

    /// Leaves not a byte of room.
    fn fill(&self) {
        for chunk in [&[b'\n'; 4096][..], b"\n"] {
            let full = loop {
                if let Err(error) = (&self.writer).write(chunk) {
                    break error.kind();
                }
            };
            assert_eq!(full, ErrorKind::WouldBlock);
        }
    }

    /// What was written so far, without what filled it.
    fn drain(&self) -> String {
        let mut bytes = Vec::new();
        let end = (&self.reader).read_to_end(&mut bytes).map_err(|e| e.kind());
        assert_eq!(end, Err(ErrorKind::WouldBlock));
        String::from_utf8(bytes).unwrap().trim().to_owned()
    }
}

/// A node with a pod, whose agent is not started yet.
fn cluster() -> Cluster {
    let mut cluster = Cluster::without_agents(1, 1);
    let url = cluster.api.url_at(address::ROUTER_INSIDE.v4.into());
    let kubeconfig = cluster.api.kubeconfig(User::Admin, &url).unwrap();
    let source = ["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
    cluster.agents.push(Agent::prepared(&cluster.world, 1, source, &[]));
    cluster
}

/// A load balancer that asks the node for its health.
fn serve(cluster: &Cluster) -> Echo {
    let mut service = echo("checked", "LoadBalancer");
    spec(&mut service).external_traffic_policy = Some("Local".into());
    cluster.serve_echo(&service, &[Member::ready(&cluster.world.node(1).pod(1))])
}

/// What a load balancer is told about the Service.
fn check(cluster: &Cluster, served: &Echo) -> Result<Reply, ErrorKind> {
    let port = served.service.spec.as_ref().unwrap().health_check_node_port.unwrap().try_into().unwrap();
    let server = SocketAddr::new(address::node(1).v4.into(), port);
    cluster.world.client().enter(|| http::get(server, "/")).map_err(|e| e.kind())
}

fn await_check(cluster: &Cluster, served: &Echo, limit: Duration, status: u16) -> Reply {
    let look = || match check(cluster, served) {
        Ok(reply) if reply.status == status => Ok(reply),
        other => Err(format!("{other:?}")),
    };
    let what = format!("{status} of the health check");
    wait::until_some(&what, limit, look).unwrap_or_else(|e| panic!("{e}\n{}", cluster.agents[0].log()))
}

fn assert_served(cluster: &Cluster, served: &Echo) {
    for talk in Talk::ALL {
        for target in served.node_ports(cluster.world.node(1), talk) {
            assert_eq!(cluster.answer(&Caller::Outside, talk, target).name, "node1-pod1");
        }
    }
}

#[test]
#[ignore = "takes more than a minute"]
fn a_writer_that_hangs_fails_every_health_check_until_it_goes_on_and_its_services_are_served_meanwhile() {
    /// Twice kube-proxy's sync period, and a little.
    const NOTICED: Duration = Duration::from_secs(75);
    if !harness::can_run("a writer that hangs") {
        return;
    }
    let (mut cluster, log) = (cluster(), Log::new());
    let open_log = format!("exec \"$@\" 2>{}", log.path());
    cluster.agents[0].start_through(&cluster.world, &["sh", "-c", &open_log, "sh"]);
    cluster.agents[0].await_ready(&cluster.world);
    let served = serve(&cluster);
    await_check(&cluster, &served, SOON, 200);
    let code = |path| cluster.agents[0].get(&cluster.world, 10256, path).unwrap().0;
    assert_eq!(["/healthz", "/livez"].map(code), [200, 200]);

    log.fill();
    // The writer tells of the new interface, or would.
    cluster.world.add_pod(1).unwrap();
    wait::until("the health to be told as bad", NOTICED, || code("/healthz") == 503).unwrap();
    assert_eq!(code("/livez"), 503);
    let reply = await_check(&cluster, &served, Duration::ZERO, 503);
    assert!(reply.body.contains("\"serviceProxyHealthy\": false"), "{reply:?}");
    assert!(reply.body.contains("\"localEndpoints\": 1"), "{reply:?}");
    assert_served(&cluster, &served);

    let mut said = log.drain();
    wait::until("the health to be told as good", SOON, || code("/healthz") == 200).unwrap();
    await_check(&cluster, &served, SOON, 200);
    let mut attached = || {
        said.push_str(&log.drain());
        if said.contains("attached") { Ok(()) } else { Err(said.clone()) }
    };
    wait::until_some("the line that did not fit", SOON, &mut attached).unwrap();
}

#[test]
fn a_health_check_port_is_closed_until_the_agent_knows_the_services_and_traffic_goes_on_meanwhile() {
    if !harness::can_run("health checks before the first sync") {
        return;
    }
    let mut cluster = cluster();
    cluster.agents[0].start_again(&cluster.world);
    cluster.agents[0].await_ready(&cluster.world);
    let served = serve(&cluster);
    await_check(&cluster, &served, SOON, 200);
    cluster.agents[0].kill();
    assert_eq!(check(&cluster, &served).map(|reply| reply.status), Err(ErrorKind::ConnectionRefused));
    cluster.api.stop().unwrap();
    cluster.agents[0].start_again(&cluster.world);
    cluster.agents[0].await_complaint(&cluster.world, "api-server", "API server unreachable: ");
    assert_eq!(check(&cluster, &served).map(|reply| reply.status), Err(ErrorKind::ConnectionRefused));
    assert_served(&cluster, &served);
    cluster.api.start_again().unwrap();
    await_check(&cluster, &served, BACK_OFF, 200);
}
