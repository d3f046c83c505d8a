//! Many services at once, for benchmarks of scale.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
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

/// The same for IPv6: fd00:128::/32.
const FIRST_ENDPOINT_V6: u128 = 0xfd00_0128 << 96;

/// How many objects to make.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// Number of services, `bulk-0` and on, each with one EndpointSlice for each of its families.
    pub services: u32,
    /// Number of endpoints of each service and family, all different.
    pub endpoints: u32,
    /// Number of nodes that the endpoints spread over: `node1` and on.
    pub nodes: u32,
    /// Requests under way at once; more than two for each core only make the server slower.
    pub concurrency: usize,
}

impl Bulk {
    /// Makes them all, of IPv4, and returns the time that it took. Services without endpoints get no EndpointSlice.
    ///
    /// # Errors
    /// When the server refuses one; others are made or not.
    pub fn create(self, objects: &Objects) -> Result<Duration> {
        self.create_in(&[Family::V4], objects)
    }

    /// The same in both families.
    ///
    /// # Errors
    /// As [`Bulk::create`].
    pub fn create_dual_stack(self, objects: &Objects) -> Result<Duration> {
        self.create_in(&[Family::V4, Family::V6], objects)
    }

    fn create_in(self, families: &'static [Family], objects: &Objects) -> Result<Duration> {
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
                    self.create_one(families, client.clone(), number).await?;
                }
            };
            let workers = self.concurrency.max(1);
            stream::iter(0..workers).map(|_| worker()).buffer_unordered(workers).try_collect::<()>().await
        })?;
        Ok(start.elapsed())
    }

    async fn create_one(self, families: &[Family], client: Client, number: u32) -> Result<()> {
        let name = format!("bulk-{number}");
        let parameters = PostParams::default();
        let services: Api<Service> = Api::default_namespaced(client.clone());
        let mut service = service(&name, PORT, "TCP");
        // Not more families than endpoints have: each address costs the server a write of its own.
        let policy = if families.len() > 1 { "RequireDualStack" } else { "SingleStack" };
        service.spec.get_or_insert_default().ip_family_policy = Some(policy.into());
        let made = services.create(&parameters, &service).await;
        made.map_err(api_error(&format!("create Service {name}")))?;
        let slices: Api<EndpointSlice> = Api::default_namespaced(client);
        for family in families {
            let indices = (0..self.endpoints).map(|index| number * self.endpoints + index);
            let endpoints: Vec<_> = indices.map(|index| self.endpoint(*family, index)).collect();
            if endpoints.is_empty() {
                return Ok(());
            }
            let slice = endpoint_slice(&name, family.suffix(), PORT, "TCP", &endpoints);
            let made = slices.create(&parameters, &slice).await;
            made.map(drop).map_err(api_error(&format!("create an EndpointSlice of {name}")))?;
        }
        Ok(())
    }

    fn endpoint(self, family: Family, index: u32) -> Endpoint {
        Endpoint { ip: family.endpoint(index), node: format!("node{}", 1 + index % self.nodes.max(1)), ready: true }
    }
}

/// Of addresses.
#[derive(Clone, Copy, Debug)]
enum Family {
    V4,
    V6,
}

impl Family {
    /// Of the names of its EndpointSlices.
    const fn suffix(self) -> &'static str {
        match self {
            Self::V4 => "a",
            Self::V6 => "b",
        }
    }

    /// The address of an endpoint, counted over all services.
    fn endpoint(self, index: u32) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from(FIRST_ENDPOINT + index).into(),
            Self::V6 => Ipv6Addr::from(FIRST_ENDPOINT_V6 + u128::from(index)).into(),
        }
    }
}
