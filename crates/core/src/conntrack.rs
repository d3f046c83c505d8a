//! What the kernel's connection tracking remembers of the connections that another proxy has begun: lines of
//! `/proc/net/nf_conntrack`.

use std::net::{IpAddr, SocketAddr};

/// A tracked connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tracked {
    /// IP protocol number.
    pub protocol: u8,
    /// Its first packet: who sent it, and where to.
    pub original: (SocketAddr, SocketAddr),
    /// What its answers look like: from whom, and to whom.
    pub reply: (SocketAddr, SocketAddr),
    /// Whether both sides have closed it.
    pub is_over: bool,
}

impl Tracked {
    /// Reads a line. `None`: something without ports, or no such line.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        // ipv4 2 tcp 6 431999 ESTABLISHED src=…
        let protocol = words.nth(3)?.parse().ok()?;
        let is_over = line.contains(" TIME_WAIT ") || line.contains(" CLOSE ") || line.contains(" CLOSED ");
        let mut values = |key: &str| words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let mut tuple = || {
            let [source, destination] = [values("src")?, values("dst")?].map(str::parse::<IpAddr>);
            let [from, to] = [values("sport")?, values("dport")?].map(str::parse::<u16>);
            Some((SocketAddr::new(source.ok()?, from.ok()?), SocketAddr::new(destination.ok()?, to.ok()?)))
        };
        let (original, reply) = (tuple()?, tuple()?);
        Some(Self { protocol, original, reply, is_over })
    }

    /// Whether it was sent on to somebody else.
    #[must_use]
    pub fn is_translated(&self) -> bool {
        self.reply.0 != self.original.1
    }

    /// The port that it has in place of its sender's own, if it left with another one, or with another address.
    #[must_use]
    pub fn masquerade_port(&self) -> Option<u16> {
        let (sender, seen) = (self.original.0, self.reply.1);
        (sender != seen).then_some(seen.port())
    }
}

/// The port at which answers to a masqueraded connection arrive. None if it is over, was not masqueraded, or its line cannot be read.
#[must_use]
pub fn masquerade_port(line: &str) -> Option<u16> {
    Tracked::parse(line).filter(|tracked| !tracked.is_over)?.masquerade_port()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
ipv4     2 tcp      6 86398 ESTABLISHED src=10.244.1.2 dst=10.96.0.10 sport=41000 dport=80 src=10.244.2.3 dst=10.244.1.2 sport=8080 dport=41000 [ASSURED] mark=0 zone=0 use=2
ipv4     2 tcp      6 86398 ESTABLISHED src=198.51.100.9 dst=192.168.0.11 sport=5000 dport=30080 src=10.244.2.3 dst=192.168.0.11 sport=8080 dport=17321 [ASSURED] mark=0 zone=0 use=2
ipv6     10 udp      17 29 src=fd00::1 dst=fd00:96::a sport=53001 dport=53 [UNREPLIED] src=fd00:244::3 dst=fd00::9 sport=53 dport=1025 mark=0 zone=0 use=2
ipv4     2 tcp      6 100 TIME_WAIT src=198.51.100.9 dst=192.168.0.11 sport=5001 dport=30080 src=10.244.2.3 dst=192.168.0.11 sport=8080 dport=17322 [ASSURED] mark=0 zone=0 use=2
ipv4     2 icmp     1 29 src=10.0.0.1 dst=10.0.0.2 type=8 code=0 id=1 src=10.0.0.2 dst=10.0.0.1 type=0 code=0 id=1 mark=0 zone=0 use=2
ipv4     2 tcp      6 7440 ESTABLISHED src=10.0.0.1 dst=10.0.0.2 sport=4000 dport=22 src=10.0.0.2 dst=10.0.0.1 sport=22 dport=4000 [ASSURED] mark=0 zone=0 use=2
";

    #[test]
    fn a_line_tells_both_ways_of_a_connection() {
        let all: Vec<_> = TABLE.lines().filter_map(Tracked::parse).collect();
        assert_eq!(all.len(), 5, "one has no ports");
        let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
        let expected = Tracked {
            protocol: 6,
            original: (socket("198.51.100.9:5000"), socket("192.168.0.11:30080")),
            reply: (socket("10.244.2.3:8080"), socket("192.168.0.11:17321")),
            is_over: false,
        };
        assert_eq!(all[1], expected);
        let seen = all.iter().map(|one| (one.is_translated(), one.masquerade_port(), one.is_over));
        let expected = [
            (true, None, false),
            (true, Some(17_321), false),
            (true, Some(1025), false),
            (true, Some(17_322), true),
            (false, None, false),
        ];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn ports_of_masqueraded_connections_that_go_on_are_taken() {
        assert_eq!(TABLE.lines().filter_map(masquerade_port).collect::<Vec<_>>(), [17321, 1025]);
    }

    #[test]
    fn what_is_no_such_line_tells_nothing() {
        for line in ["", "ipv4 2 tcp 6", "ipv4 2 tcp six src=1 dst=2", "ipv4 2 tcp 6 src=10.0.0.1 dst=10.0.0.2 sport=1"]
        {
            assert_eq!(Tracked::parse(line), None, "{line}");
        }
    }
}
