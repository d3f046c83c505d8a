//! The page: where it is served, and that it is served from a room of its own.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use futures::future;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use weir_page::server::{ADDRESSES, LIMITS, router};
use weir_page::{Recorder, Source};
use weir_telemetry::listeners::{BindError, Listeners, Room};

/// Where people look.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Process")]
pub(crate) struct PageOptions {
    /// Addresses for the page that shows nodes, flows and services; it is read-only and asks nobody who he is. `none`, or
    /// nothing: there is no page
    #[arg(long, env = "WEIR_PAGE_ADDRESS", value_name = "ADDRESS|none", value_delimiter = ',', default_values_t = ADDRESSES.map(PageAddress::At))]
    page_address: Vec<PageAddress>,
}

/// A value of `--page-address`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PageAddress {
    /// No page.
    None,
    /// An address and a port.
    At(SocketAddr),
}

impl FromStr for PageAddress {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if matches!(text, "" | "none") { Ok(Self::None) } else { text.parse().map(Self::At) }
    }
}

impl std::fmt::Display for PageAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl PageOptions {
    fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.page_address.iter().filter_map(|address| match address {
            PageAddress::None => None,
            PageAddress::At(address) => Some(*address),
        })
    }
}

/// Records and serves until `stop`. Services are served without a page as well, so it never keeps an agent from starting:
/// IPv6 may be off.
pub(crate) async fn serve(options: PageOptions, source: impl Source, stop: CancellationToken) {
    let listeners: Vec<Listeners> = options.addresses().filter_map(listen).collect();
    if listeners.is_empty() {
        return;
    }
    let (recorder, page) = Recorder::new(Arc::new(source));
    // Whatever happens here, scrapers and the kubelet get their answers.
    let room = Room::new(LIMITS);
    let serve = |listeners: Listeners| listeners.in_room(&room).serve(router(page.clone()), stop.clone());
    let served = future::join_all(listeners.into_iter().map(serve));
    future::join(recorder.run(stop.clone()), served).await;
}

fn listen(address: SocketAddr) -> Option<Listeners> {
    if !address.ip().is_loopback() {
        warn!(%address, "the page names all nodes, services and endpoints to whoever reaches this address");
    }
    let bound = Listeners::bind("the page", &[address]);
    let complain = |error: &BindError| match error.is_loopback_without_ipv6() {
        true => debug!("{error}: IPv6 is off"),
        false => warn!("{error}; see --page-address"),
    };
    bound.inspect_err(complain).ok()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        page: PageOptions,
    }

    fn addresses(arguments: &[&str]) -> Vec<String> {
        let options = Options::try_parse_from([&["weir-agent"], arguments].concat()).unwrap();
        options.page.addresses().map(|address| address.to_string()).collect()
    }

    #[test]
    fn the_page_is_on_loopback_unless_it_is_told_otherwise_and_can_be_turned_off() {
        assert_eq!(addresses(&[]), ["127.0.0.1:10298", "[::1]:10298"]);
        assert_eq!(addresses(&["--page-address=127.0.0.1:80,192.0.2.1:80"]), ["127.0.0.1:80", "192.0.2.1:80"]);
        assert!(addresses(&["--page-address=none"]).is_empty());
        assert!(addresses(&["--page-address="]).is_empty());
        assert!(Options::try_parse_from(["weir-agent", "--page-address=localhost"]).is_err());
    }
}
