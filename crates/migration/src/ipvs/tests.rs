//! What the kernel and ipset print of kube-proxy's virtual servers, read and taken away.

use super::*;

/// As Linux 6.1 prints it for kube-proxy 1.36, with a Service's real server that drains, and servers of others: one at an address
/// of the node, one at an address that is not the node's, one of a firewall mark.
const SERVERS: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  [fd00:0096:0000:0000:0000:0000:0000:6294]:0050 rr 
  -> [fd00:0244:0001:0000:0000:0000:0000:0011]:1F90      Masq    1      0          1         
UDP  0A600014:0035 rr  persistent 10800 FFFFFFFF
TCP  0AF40101:7ABF rr  
  -> 0AF4010B:1F90      Masq    1      0          0         
TCP  0A604391:0050 rr  
  -> 0AF4010B:1F90      Masq    1      0          1         
  -> 0AF4010C:1F90      Masq    0      2          1         
TCP  AC1E000B:7ABF rr  
  -> 0AF4010B:1F90      Masq    1      0          1         
TCP  AC1E000B:192B wlc  
  -> AC1E000C:192B      Route   5      0          1         
TCP  C0000201:0050 wlc  
  -> 0AF40201:1F90      Tunnel  1      0          0         
FWM  00000007 rr 
  -> 0AF40202:1F90      Masq    1      0          0         
";

/// As ipset 7.17 prints it, shortened, with sets of kube-router and of somebody else. Names have at most 31 characters.
const SETS: &str = "\
create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
add KUBE-NODE-PORT-TCP 31423
create KUBE-LOOP-BACK hash:ip,port,ip family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x5a763b05
add KUBE-LOOP-BACK 10.244.1.11,tcp:8080,10.244.1.11
create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0xc098ad87
add KUBE-CLUSTER-IP 10.96.67.145,tcp:80
create KUBE-EXTERNAL-IP hash:ip,port family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x41156262
create KUBE-NODE-PORT-SCTP-HASH hash:ip,port family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0xf9678dc9
create KUBE-6-CLUSTER-IP hash:ip,port family inet6 hashsize 1024 maxelem 65536 bucketsize 12 initval 0x69af7794
add KUBE-6-CLUSTER-IP fd00:96::6294,tcp:80
create KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6 hashsize 1024 maxelem 65536 bucketsize 12 initval 0x34d48b97
create KUBE-6-NODE-PORT-LOCAL-SCTP-HAS hash:ip,port family inet6 hashsize 1024 maxelem 65536 bucketsize 12 initval 0xd40d590e
create KUBE-SRC-4PGY5S3TGXFRWPCQ hash:ip family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x30d48b97
create denied hash:net family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0xd40d592e
add denied 192.0.2.0/24
";

const CONNECTIONS: &str = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C6336402 A324 0A604391 0050 0AF4010B 1F90 TIME_WAIT       119
TCP 2001:0db8:0100:0000:0000:0000:0000:0002 E130 fd00:0096:0000:0000:0000:0000:0000:6294 0050 fd00:0244:0001:0000:0000:0000:0000:0011 1F90 ESTABLISHED     899
TCP C6336402 A090 AC1E000B 7ABF 0AF4010B 1F90 FIN_WAIT          3
TCP C6336402 A091 AC1E000B 7ABF 0AF4010B 1F90 ESTABLISHED     899
TCP C6336402 0000 0A604391 0050 0AF4010B 1F90 ASSURED         300
TCP C6336402 A092 AC1E000B 192B AC1E000C 192B ESTABLISHED     899
UDP 0AF40102 8235 0A600014 0035 0AF4010B 0035 UDP               4
UDP 0A600014 8236 0A600014 0035 0AF4010B 0035 UDP               4
IP  C6336402 0000 00000007 0000 0AF40202 0000 NONE              4
";

fn ips(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn marks() -> Marks {
    Marks {
        device: ips(&["10.96.0.20", "10.96.67.145", "fd00:96::6294"]),
        node: ips(&["172.30.0.11", "fd00:30::11", "10.244.1.1"]),
        sets: Some(Sets::parse(SETS)),
    }
}

fn own() -> Servers {
    marks().own(servers(SERVERS).unwrap())
}

fn at(socket: &str, protocol: u8) -> At {
    At { socket: socket.parse().unwrap(), protocol }
}

#[test]
fn services_are_told_from_servers_of_others_and_endpoints_from_those_that_drain() {
    let endpoint = |text: &str| BTreeSet::from([text.parse().unwrap()]);
    let address = |text: &str| Place::Address(text.parse().unwrap());
    let frontend = |place, port, protocol| Frontend { place, port, protocol };
    let expected = Served::from([
        (frontend(address("fd00:96::6294"), 80, 6), endpoint("[fd00:244:1::11]:8080")),
        (frontend(address("10.96.0.20"), 53, 17), BTreeSet::new()),
        (frontend(address("10.96.67.145"), 80, 6), endpoint("10.244.1.11:8080")),
        (frontend(Place::Node(Family::V4), 31_423, 6), endpoint("10.244.1.11:8080")),
    ]);
    assert_eq!(marks().served(&own()), expected);
}

#[test]
fn without_ipset_every_server_at_the_nodes_addresses_counts_as_a_node_port() {
    let blind = Marks { sets: None, ..marks() };
    let more = blind.own(servers(SERVERS).unwrap());
    let more: Vec<_> = more.keys().filter(|at| !own().contains_key(at)).copied().collect();
    assert_eq!(more, [at("172.30.0.11:6443", 6)]);
}

#[test]
fn sets_tell_services_also_when_the_device_is_gone() {
    let interrupted = Marks { device: BTreeSet::new(), ..marks() };
    let found = interrupted.own(servers(SERVERS).unwrap());
    assert!(
        found.contains_key(&at("10.96.67.145:80", 6)) && found.contains_key(&at("[fd00:96::6294]:80", 6)),
        "{found:?}"
    );
}

#[test]
fn its_sets_are_known_by_their_names_of_which_the_kernel_cuts_the_longest() {
    let sets = Sets::parse(SETS);
    let others = ["KUBE-SRC-4PGY5S3TGXFRWPCQ", "denied"];
    let all = SETS.lines().filter_map(|line| line.strip_prefix("create ")?.split(' ').next());
    let expected: BTreeSet<_> = all.filter(|name| !others.contains(name)).map(str::to_owned).collect();
    assert_eq!((sets.names(), sets.names().len()), (&expected, 8));
}

#[test]
fn connections_count_that_would_break_with_their_virtual_server() {
    let found = carried(CONNECTIONS, &own(), &marks()).unwrap();
    let clients: Vec<_> = found.iter().map(|one| one.client.to_string()).collect();
    let expected = ["[2001:db8:100::2]:57648", "198.51.100.2:41104", "198.51.100.2:41105", "10.96.0.20:33334"];
    assert_eq!(clients, expected, "not those that are over, of others, or of datagrams that Weir takes");
    let told = ["172.30.0.11:31423/TCP (2)", "10.96.0.20:53/UDP (1)", "[fd00:96::6294]:80/TCP (1)"];
    assert_eq!(by_server(&found), told);
    assert_eq!(carried(CONNECTIONS, &Servers::new(), &marks()).unwrap(), []);
}

#[test]
fn what_removes_them_names_kube_proxys_virtual_servers_alone() {
    let expected = "-D -t 10.96.67.145:80\n-D -t 10.244.1.1:31423\n-D -t 172.30.0.11:31423\n-D -u 10.96.0.20:53\n-D -t [fd00:96::6294]:80\n";
    let sorted = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(sorted(&removal(&own())), sorted(expected));
    let sctp = Servers::from([(at("10.96.0.20:99", 132), BTreeSet::new())]);
    assert_eq!(removal(&sctp), "-D --sctp-service 10.96.0.20:99\n");
}

#[test]
fn what_is_no_such_text_is_refused_with_its_line() {
    for (text, line) in [("TCP  0A600001 rr", 12), ("ICMP 0A600001:0050 rr", 12), ("  -> 0A600001:0050 Masq", 12)] {
        let lines: Vec<_> = SERVERS.lines().take(11).chain([text]).collect();
        assert_eq!(servers(&lines.join("\n")).unwrap_err().line, line, "{text}");
    }
    let refused = carried("Pro FromIP\nTCP C6336402 A324\n", &own(), &marks()).unwrap_err().to_string();
    assert!(refused.contains("line 2 of /proc/net/ip_vs_conn"), "{refused}");
}
