//! Many services at once, for benchmarks of scale.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::objects::{Endpoint, Objects, api_error, endpoint_slice, service};
use crate::{Error, Result};

/// Port of every service and endpoint.
const PORT: u16 = 80;

/// Endpoint addresses count up from here: 10.128.0.0/9 has room for eight million.
const FIRST_ENDPOINT: u32 = u32::from_be_bytes([10, 128, 0, 0]);

/// How many objects to make.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// Number of IPv4 services, `bulk-0` and on, each with one EndpointSlice.
    pub services: u32,
    /// Number of IPv4 endpoints of each service, all different.
    pub endpoints: u32,
    /// Number of nodes that the endpoints spread over: `node1` and on.
    pub nodes: u32,
    /// Requests under way at once; more than two for each core only make the server slower.
    pub concurrency: usize,
}

impl Bulk {
    /// Makes them all and returns the time that it took. Services without endpoints get no EndpointSlice.
    ///
    /// # Errors
    /// When the server refuses one; others are made or not.
    pub fn create(self, objects: &Objects) -> Result<Duration> {
        let client = objects.client();
        let start = Instant::now();
        objects.run(async move {
            // A few long-lived tasks instead of one a service: the order does not matter, their number is the bound.
            let next = AtomicU32::new(0);
            let worker = || async {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= self.services {
                        return Ok::<(), Error>(());
                    }
                    self.create_one(client.clone(), number).await?;
                }
            };
            let workers = self.concurrency.max(1);
            stream::iter(0..workers).map(|_| worker()).buffer_unordered(workers).try_collect::<()>().await
        })?;
        Ok(start.elapsed())
    }

    async fn create_one(self, client: Client, number: u32) -> Result<()> {
        let name = format!("bulk-{number}");
        let parameters = PostParams::default();
        let services: Api<Service> = Api::default_namespaced(client.clone());
        let mut service = service(&name, PORT, "TCP");
        // One family, as the endpoints: each address costs the server a write of its own.
        service.spec.get_or_insert_default().ip_family_policy = None;
        let made = services.create(&parameters, &service).await;
        made.map_err(api_error(&format!("create Service {name}")))?;
        let endpoints: Vec<_> =
            (0..self.endpoints).map(|index| self.endpoint(number * self.endpoints + index)).collect();
        if endpoints.is_empty() {
            return Ok(());
        }
        let slices: Api<EndpointSlice> = Api::default_namespaced(client);
        let made = slices.create(&parameters, &endpoint_slice(&name, "a", PORT, "TCP", &endpoints)).await;
        made.map(drop).map_err(api_error(&format!("create the EndpointSlice of {name}")))
    }

    fn endpoint(self, index: u32) -> Endpoint {
        let ip = IpAddr::V4(Ipv4Addr::from(FIRST_ENDPOINT + index));
        Endpoint { ip, node: format!("node{}", 1 + index % self.nodes.max(1)), ready: true }
    }
}
