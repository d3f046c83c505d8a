//! kube-proxy's chains of iptables: what they serve, and how they go without a trace on anything else. Read is what
//! `iptables-save` prints, written is what `iptables-restore --noflush` takes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use weir_core::model::Family;

use crate::served::{Frontend, Place, Served, protocol_number};

/// How names of Kubernetes' chains begin.
const PREFIX: &str = "KUBE-";

/// Chains of the kubelet, which makes them anew at any rate: kubernetes' `pkg/kubelet/kubelet_network_linux.go`.
const KUBELETS: [&str; 3] = ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"];

/// Its rules do what a mark asks for that others may set, too.
const MARK_MASQUERADE: &str = "KUBE-MARK-MASQ";
const POSTROUTING: &str = "KUBE-POSTROUTING";

/// The chain that stays until the last connection has ended that kube-proxy has begun. Without a single rule that asks for
/// connection tracking the kernel would stop to translate these. Nothing leads to it.
pub const KEEPER: &str = "WEIR-MIGRATION";

/// The text cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line} of iptables-save cannot be read: {text:?}")]
pub struct Unreadable {
    line: usize,
    text: String,
}

/// One rule.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Rule {
    chain: String,
    /// As it was printed, without `-A `.
    text: String,
    words: Vec<String>,
}

impl Rule {
    /// The word after an option. An option that is negated is none.
    fn option(&self, name: &str) -> Option<&str> {
        let at = self.words.iter().position(|word| word == name)?;
        let negated = at.checked_sub(1).is_some_and(|before| self.words[before] == "!");
        (!negated).then(|| self.words.get(at + 1).map(String::as_str)).flatten()
    }

    fn target(&self) -> Option<&str> {
        self.option("-j").or_else(|| self.option("-g"))
    }

    /// Where it matches, of those that one frontend has to itself.
    fn frontend(&self, family: Family) -> Option<Frontend> {
        let protocol = protocol_number(self.option("-p")?)?;
        let port = self.option("--dport")?.parse().ok()?;
        let place = match self.option("-d") {
            Some(network) => {
                let (address, length) = network.split_once('/').unwrap_or((network, ""));
                let address: IpAddr = address.parse().ok()?;
                let whole = if address.is_ipv4() { "32" } else { "128" };
                // `-d 127.0.0.0/8` of node ports at loopback.
                if !length.is_empty() && length != whole {
                    return None;
                }
                Place::Address(address)
            }
            None => Place::Node(family),
        };
        Some(Frontend { place, port, protocol })
    }
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Table {
    /// Chains and whether they are the kernel's own, in their order.
    chains: Vec<(String, bool)>,
    rules: Vec<Rule>,
}

/// All tables of a family.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tables {
    family: Family,
    tables: BTreeMap<String, Table>,
}

impl Tables {
    /// Reads what `iptables-save` of a family prints.
    ///
    /// # Errors
    /// The first line that is none of its.
    pub fn parse(family: Family, text: &str) -> Result<Self, Unreadable> {
        let mut tables: BTreeMap<String, Table> = BTreeMap::new();
        let mut current: Option<&mut Table> = None;
        for (number, line) in text.lines().enumerate() {
            let unreadable = || Unreadable { line: number + 1, text: line.to_owned() };
            match line.split_at_checked(1) {
                None | Some(("#", _)) => {}
                Some(("*", name)) => current = Some(tables.entry(name.trim().to_owned()).or_default()),
                Some((":", rest)) => {
                    let mut words = rest.split_whitespace();
                    let (name, policy) = words.next().zip(words.next()).ok_or_else(unreadable)?;
                    let table = current.as_mut().ok_or_else(unreadable)?;
                    table.chains.push((name.to_owned(), policy != "-"));
                }
                Some(_) if line == "COMMIT" => current = None,
                Some(_) => {
                    let text = line.strip_prefix("-A ").ok_or_else(unreadable)?;
                    let words = words(text).ok_or_else(unreadable)?;
                    let chain = words.first().cloned().ok_or_else(unreadable)?;
                    let table = current.as_mut().ok_or_else(unreadable)?;
                    table.rules.push(Rule { chain, text: text.to_owned(), words });
                }
            }
        }
        Ok(Self { family, tables })
    }

    /// Whether there are chains of kube-proxy's.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.tables.values().any(|table| !removable(table).is_empty())
    }

    /// Whether the chain is there that keeps connections alive.
    #[must_use]
    pub fn has_keeper(&self) -> bool {
        self.tables.values().flat_map(|table| &table.chains).any(|(name, _)| name == KEEPER)
    }

    /// What kube-proxy serves.
    #[must_use]
    pub fn served(&self) -> Served {
        let mut served = Served::new();
        for rule in self.tables.get("nat").iter().flat_map(|table| &table.rules) {
            let serves = matches!(rule.chain.as_str(), "KUBE-SERVICES" | "KUBE-NODEPORTS")
                && rule.target().is_some_and(|target| target.starts_with(PREFIX) && target != MARK_MASQUERADE);
            if let Some((frontend, target)) = rule.frontend(self.family).filter(|_| serves).zip(rule.target()) {
                served.entry(frontend).or_default().extend(self.endpoints(target));
            }
        }
        // Of those without an endpoint.
        for rule in self.tables.get("filter").iter().flat_map(|table| &table.rules) {
            let refuses = matches!(rule.chain.as_str(), "KUBE-SERVICES" | "KUBE-EXTERNAL-SERVICES")
                && matches!(rule.target(), Some("REJECT" | "DROP"));
            if let Some(frontend) = rule.frontend(self.family).filter(|_| refuses) {
                served.entry(frontend).or_default();
            }
        }
        served
    }

    /// Endpoints that a chain of table nat leads to.
    fn endpoints(&self, chain: &str) -> BTreeSet<SocketAddr> {
        let rules = self.tables.get("nat").map_or(&[][..], |table| &table.rules);
        let (mut open, mut seen, mut found) = (vec![chain], BTreeSet::new(), BTreeSet::new());
        while let Some(chain) = open.pop() {
            if !seen.insert(chain) {
                continue;
            }
            for rule in rules.iter().filter(|rule| rule.chain == chain) {
                found.extend(rule.option("--to-destination").and_then(|text| text.parse::<SocketAddr>().ok()));
                open.extend(rule.target().filter(|target| target.starts_with(PREFIX)));
            }
        }
        found
    }

    /// What takes kube-proxy's chains away, and the rules that lead to them. Nothing else changes, but that [`KEEPER`] comes.
    /// `None`: there are none. Table nat goes first, so that the keeper is there before a rule goes.
    #[must_use]
    pub fn removal(&self) -> Option<String> {
        if !self.has_rules() {
            return None;
        }
        let mut script = format!("*nat\n:{KEEPER} - [0:0]\n-A {KEEPER} -m conntrack --ctstate ESTABLISHED -j RETURN\n");
        script.push_str(&self.tables.get("nat").map(removal_of).unwrap_or_default());
        script.push_str("COMMIT\n");
        for (name, table) in self.tables.iter().filter(|(name, _)| *name != "nat") {
            let part = removal_of(table);
            if !part.is_empty() {
                let _ = write!(script, "*{name}\n{part}COMMIT\n");
            }
        }
        Some(script)
    }
}

/// What takes [`KEEPER`] away.
#[must_use]
pub fn keeper_removal() -> String {
    format!("*nat\n:{KEEPER} - [0:0]\n-X {KEEPER}\nCOMMIT\n")
}

/// Chains of a table that are kube-proxy's alone. What rules of others lead to stays, with all that it leads to.
fn removable(table: &Table) -> BTreeSet<&str> {
    let is_kubes = |name: &str| name.starts_with(PREFIX);
    let builtin: BTreeSet<&str> = table.chains.iter().filter(|(_, own)| *own).map(|(name, _)| name.as_str()).collect();
    let others = |rule: &&Rule| !is_kubes(&rule.chain) && !builtin.contains(rule.chain.as_str());
    let mut open: Vec<&str> =
        table.rules.iter().filter(others).filter_map(Rule::target).filter(|name| is_kubes(name)).collect();
    if open.contains(&MARK_MASQUERADE) {
        open.push(POSTROUTING);
    }
    open.extend(KUBELETS);
    let mut kept = BTreeSet::new();
    while let Some(chain) = open.pop() {
        if kept.insert(chain) {
            let own = table.rules.iter().filter(|rule| rule.chain == chain);
            open.extend(own.filter_map(Rule::target).filter(|name| is_kubes(name)));
        }
    }
    let names = table.chains.iter().map(|(name, _)| name.as_str());
    names.filter(|name| is_kubes(name) && !kept.contains(name)).collect()
}

fn removal_of(table: &Table) -> String {
    let gone = removable(table);
    let mut script = String::new();
    // Naming a chain empties it, so that none leads to another one.
    gone.iter().for_each(|chain| _ = writeln!(script, ":{chain} - [0:0]"));
    let leads =
        |rule: &&Rule| !gone.contains(rule.chain.as_str()) && rule.target().is_some_and(|name| gone.contains(name));
    table.rules.iter().filter(leads).for_each(|rule| _ = writeln!(script, "-D {}", rule.text));
    gone.iter().for_each(|chain| _ = writeln!(script, "-X {chain}"));
    script
}

/// The words of a rule. A word with spaces stands between double quotes, in which a backslash makes the next character count as
/// it is: xtables_save_string of iptables. `None`: a quote is not closed.
fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut characters = text.chars().peekable();
    loop {
        while characters.next_if_eq(&' ').is_some() {}
        let Some(first) = characters.next() else { return Some(words) };
        let mut word = String::new();
        if first == '"' {
            loop {
                match characters.next()? {
                    '"' => break,
                    '\\' => word.push(characters.next()?),
                    other => word.push(other),
                }
            }
        } else {
            word.push(first);
            word.extend(std::iter::from_fn(|| characters.next_if(|next| *next != ' ')));
        }
        words.push(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kube-proxy 1.36 writes it, with a rule of somebody else in each place.
    const SAVED: &str = r#"# Generated by iptables-save v1.8.9 (nf_tables)
*mangle
:PREROUTING ACCEPT [0:0]
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A INPUT -s 192.0.2.1/32 -m comment --comment "not \"ours\"" -j DROP
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "shop/idle:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30081 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP
-A KUBE-SERVICES -d 10.96.0.30/32 -p tcp -m comment --comment "shop/idle:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
:KUBE-EXT-AAAA - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-1111 - [0:0]
:KUBE-SEP-2222 - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAA - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -j DOCKER
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A DOCKER -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
-A KUBE-EXT-AAAA -m comment --comment "masquerade traffic for shop/web:http external destinations" -j KUBE-MARK-MASQ
-A KUBE-EXT-AAAA -j KUBE-SVC-AAAA
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m comment --comment "shop/web:http" -m tcp --dport 30080 -m nfacct --nfacct-name  localhost_nps_accepted_pkts -j KUBE-EXT-AAAA
-A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http" -m tcp --dport 30080 -j KUBE-EXT-AAAA
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SEP-1111 -s 10.244.1.5/32 -m comment --comment "shop/web:http" -j KUBE-MARK-MASQ
-A KUBE-SEP-1111 -p tcp -m comment --comment "shop/web:http" -m tcp -j DNAT --to-destination 10.244.1.5:8080
-A KUBE-SEP-2222 -p tcp -m comment --comment "shop/web:http" -m tcp -j DNAT --to-destination 10.244.2.6:8080
-A KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-AAAA
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-AAAA ! -s 10.244.0.0/16 -d 10.96.0.20/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-AAAA -m comment --comment "shop/web:http -> 10.244.1.5:8080" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-1111
-A KUBE-SVC-AAAA -m comment --comment "shop/web:http -> 10.244.2.6:8080" -j KUBE-SEP-2222
COMMIT
"#;

    fn saved() -> Tables {
        Tables::parse(Family::V4, SAVED).unwrap()
    }

    #[test]
    fn what_it_serves_is_read_from_chain_to_chain() {
        let at = |place, port| Frontend { place, port, protocol: 6 };
        let address = |text: &str| Place::Address(text.parse().unwrap());
        let both: BTreeSet<SocketAddr> =
            ["10.244.1.5:8080", "10.244.2.6:8080"].map(|text| text.parse().unwrap()).into();
        let expected = Served::from([
            (at(address("10.96.0.20"), 80), both.clone()),
            (at(address("10.96.0.30"), 80), BTreeSet::new()),
            (at(Place::Node(Family::V4), 30_080), both),
            (at(Place::Node(Family::V4), 30_081), BTreeSet::new()),
        ]);
        assert_eq!(saved().served(), expected);
    }

    #[test]
    fn what_removes_it_names_its_chains_and_the_rules_that_lead_there_and_nothing_else() {
        let expected = "\
*nat
:WEIR-MIGRATION - [0:0]
-A WEIR-MIGRATION -m conntrack --ctstate ESTABLISHED -j RETURN
:KUBE-EXT-AAAA - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-1111 - [0:0]
:KUBE-SEP-2222 - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAA - [0:0]
-D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-D POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-X KUBE-EXT-AAAA
-X KUBE-MARK-MASQ
-X KUBE-NODEPORTS
-X KUBE-POSTROUTING
-X KUBE-SEP-1111
-X KUBE-SEP-2222
-X KUBE-SERVICES
-X KUBE-SVC-AAAA
COMMIT
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
-D INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES
-D FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-X KUBE-EXTERNAL-SERVICES
-X KUBE-FORWARD
-X KUBE-SERVICES
COMMIT
*mangle
:KUBE-PROXY-CANARY - [0:0]
-X KUBE-PROXY-CANARY
COMMIT
";
        assert_eq!(saved().removal().unwrap(), expected);
    }

    #[test]
    fn chains_stay_that_rules_of_others_lead_to_and_so_does_what_acts_on_their_mark() {
        let used = SAVED.replace("-A DOCKER -p tcp", "-A DOCKER -j KUBE-MARK-MASQ\n-A DOCKER -p tcp");
        let removal = Tables::parse(Family::V4, &used).unwrap().removal().unwrap();
        let spared = ["KUBE-MARK-MASQ", "KUBE-POSTROUTING"];
        assert!(spared.iter().all(|chain| !removal.contains(&format!("-X {chain}\n"))), "{removal}");
        assert!(!removal.contains("-D POSTROUTING") && removal.contains("-X KUBE-SVC-AAAA\n"), "{removal}");
    }

    #[test]
    fn the_kubelets_chains_and_those_of_others_are_no_reason_to_remove_anything() {
        let others = "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n";
        let tables = Tables::parse(Family::V4, others).unwrap();
        assert_eq!((tables.has_rules(), tables.removal()), (false, None));
    }

    #[test]
    fn what_is_no_such_text_is_refused_with_its_line() {
        for (text, line) in [("*nat\nhello\n", 2), ("-A INPUT -j DROP\n", 1), ("*nat\n-A INPUT --comment \"x\n", 2)] {
            assert_eq!(Tables::parse(Family::V4, text).unwrap_err().line, line, "{text}");
        }
    }
}
