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
const KUBELETS: [&str; 3] = [KUBELETS_FIREWALL, "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"];
/// In table nat it was one of mode ipvs before 1.27.
const KUBELETS_FIREWALL: &str = "KUBE-FIREWALL";

/// How names of kube-router's chains begin, which is in k3s, too: network policies.
const KUBE_ROUTERS: [&str; 3] = ["KUBE-ROUTER-", "KUBE-POD-FW-", "KUBE-NWPLCY-"];

/// A chain that all versions have in mode iptables alone, and one in mode ipvs alone.
const OF_IPTABLES: &str = "KUBE-NODEPORTS";
const OF_IPVS: &str = "KUBE-NODE-PORT";
/// Of table filter, which is written last.
const FORWARD: &str = "KUBE-FORWARD";

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

    fn leads_to(&self, chains: &BTreeSet<&str>) -> bool {
        self.target().is_some_and(|name| chains.contains(name))
    }

    /// Sets that it matches or changes, also where what is in them does not match.
    fn sets(&self) -> impl Iterator<Item = &str> {
        let names = self.words.windows(2).filter(|pair| matches!(&*pair[0], "--match-set" | "--add-set" | "--del-set"));
        names.map(|pair| pair[1].as_str())
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

    /// Whose tables they are.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Whether there are chains of kube-proxy's.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.tables.iter().any(|(name, table)| !removable(name, table).is_empty())
    }

    /// Whether there are some that do not go with virtual servers of IPVS.
    #[must_use]
    pub fn is_of_iptables(&self) -> bool {
        self.has_rules() && (self.has_chain(OF_IPTABLES) || !self.is_of_ipvs())
    }

    /// Whether there are chains that go with virtual servers of IPVS.
    #[must_use]
    pub fn is_of_ipvs(&self) -> bool {
        self.has_chain(OF_IPVS)
    }

    /// Whether kube-proxy has written its rules and not only made their chains.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.tables.get("filter").is_some_and(|table| table.rules.iter().any(|rule| rule.chain == FORWARD))
    }

    fn has_chain(&self, name: &str) -> bool {
        self.tables.values().flat_map(|table| &table.chains).any(|(chain, _)| chain == name)
    }

    /// Sets of `ipset` that rules use which stay when kube-proxy's go.
    #[must_use]
    pub fn sets_that_stay(&self) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        for (name, table) in &self.tables {
            let gone = removable(name, table);
            let stay = table.rules.iter().filter(|rule| !gone.contains(rule.chain.as_str()) && !rule.leads_to(&gone));
            found.extend(stay.flat_map(Rule::sets));
        }
        found
    }

    /// Whether the chain is there that keeps connections alive.
    #[must_use]
    pub fn has_keeper(&self) -> bool {
        self.has_chain(KEEPER)
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
        script.push_str(&self.tables.get("nat").map(|table| removal_of("nat", table)).unwrap_or_default());
        script.push_str("COMMIT\n");
        for (name, table) in self.tables.iter().filter(|(name, _)| *name != "nat") {
            let part = removal_of(name, table);
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

/// Whether a chain is named as kube-proxy's are, and as those of nobody else.
#[must_use]
pub fn is_kube_proxys(table: &str, chain: &str) -> bool {
    is_kubes(chain) && !is_kubelets(table, chain)
}

fn is_kubes(chain: &str) -> bool {
    chain.starts_with(PREFIX) && !KUBE_ROUTERS.iter().any(|other| chain.starts_with(other))
}

fn is_kubelets(table: &str, chain: &str) -> bool {
    KUBELETS.contains(&chain) && (table, chain) != ("nat", KUBELETS_FIREWALL)
}

/// Chains of a table that are kube-proxy's alone. What rules of others lead to stays, with all that it leads to.
fn removable<'a>(table_name: &str, table: &'a Table) -> BTreeSet<&'a str> {
    let builtin: BTreeSet<&str> = table.chains.iter().filter(|(_, own)| *own).map(|(name, _)| name.as_str()).collect();
    let others = |rule: &&Rule| !is_kubes(&rule.chain) && !builtin.contains(rule.chain.as_str());
    let mut open: Vec<&str> =
        table.rules.iter().filter(others).filter_map(Rule::target).filter(|name| is_kubes(name)).collect();
    if open.contains(&MARK_MASQUERADE) {
        open.push(POSTROUTING);
    }
    open.extend(KUBELETS.iter().filter(|name| is_kubelets(table_name, name)));
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

fn removal_of(name: &str, table: &Table) -> String {
    let gone = removable(name, table);
    let mut script = String::new();
    // Naming a chain empties it, so that none leads to another one.
    gone.iter().for_each(|chain| _ = writeln!(script, ":{chain} - [0:0]"));
    let leads = |rule: &&Rule| !gone.contains(rule.chain.as_str()) && rule.leads_to(&gone);
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
mod tests;
