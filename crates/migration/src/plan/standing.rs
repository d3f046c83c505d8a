//! How each step stands, by the facts.

use weir_core::stage::Stage;

use super::{Consent, Facts, Standing, StepKind};

/// The agent looks at the file now and then.
const NOT_FOLLOWED: &str = "the agent has not followed yet: does it run, and is its --state-dir the same?";

/// Nothing is known of what such an agent serves.
const UNSEEN: &str =
    "an agent runs whose maps are not those that this weir knows: use the one of the agent's own version";

/// The first of many, which say enough.
const SHOWN: usize = 3;

/// How a step stands.
pub(super) fn of(kind: StepKind, facts: &Facts, consent: Consent) -> Standing {
    match kind {
        StepKind::Preflight => preflight(facts),
        StepKind::TakeOver => take_over(facts),
        StepKind::Verify => verify(facts, consent),
        StepKind::StopKubeProxy => stop_kube_proxy(facts),
        StepKind::RemoveRules => remove_rules(facts, consent),
        StepKind::Finish => finish(facts, consent),
        StepKind::RulesComplete => rules_complete(facts, consent),
        StepKind::Drain => drain(facts, consent),
        StepKind::Drained => drained(facts, consent),
        StepKind::StopAgent => stop_agent(facts),
        StepKind::Detach => detach(facts),
    }
}

fn done(what: impl Into<String>) -> Standing {
    Standing::Done(what.into())
}

fn due(what: impl Into<String>) -> Standing {
    Standing::Due(what.into())
}

fn waits(what: impl Into<String>) -> Standing {
    Standing::Waits(what.into())
}

fn preflight(facts: &Facts) -> Standing {
    if facts.agent_runs && !facts.pinned {
        return waits(UNSEEN);
    }
    if !facts.agent_runs {
        return waits("no agent runs on this node: start weir-agent with --service-proxy-name weir, beside kube-proxy");
    }
    let modes = if facts.modes.is_empty() { "no rules of kube-proxy".to_owned() } else { facts.modes.join(" and ") };
    done(format!("an agent runs; {modes}"))
}

fn take_over(facts: &Facts) -> Standing {
    match facts.stage {
        Stage::Usual | Stage::Drain => due("have Weir take new connections to all Services, beside kube-proxy's rules"),
        // Who was beside kube-proxy before shows it by what is in the maps alone.
        Stage::TakeOver if !facts.in_force || facts.lacks_all => waits(NOT_FOLLOWED),
        Stage::TakeOver | Stage::Alone => done(format!("Weir serves {} frontends", facts.frontends)),
    }
}

fn shown(all: &[String]) -> String {
    let mut text = all.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    if all.len() > SHOWN {
        text.push_str(&format!("; and {} more", all.len() - SHOWN));
    }
    text
}

fn verify(facts: &Facts, consent: Consent) -> Standing {
    if facts.modes.is_empty() {
        return done("nothing to compare");
    }
    if facts.differences.is_empty() {
        return done("Weir's maps have every frontend and endpoint of kube-proxy's rules");
    }
    // Whoever does not follow the cluster any more has endpoints that are gone.
    let old = facts.kube_proxies.is_empty() && facts.of_age == facts.differences.len();
    if old || consent.force {
        return done(format!("let pass: {}", shown(&facts.differences)));
    }
    waits(shown(&facts.differences))
}

fn stop_kube_proxy(facts: &Facts) -> Standing {
    match facts.kube_proxies.first() {
        None => done("no kube-proxy runs on this node"),
        Some(process) => waits(format!(
            "kube-proxy runs (process {process}) and would put its rules back: take it off this node, for example by a label that \
             its DaemonSet's affinity keeps away from"
        )),
    }
}

fn remove_rules(facts: &Facts, consent: Consent) -> Standing {
    if facts.modes.is_empty() {
        return done("no rules of kube-proxy");
    }
    let what = format!("remove kube-proxy's rules ({}) and nothing else", facts.modes.join(" and "));
    match facts.carried {
        0 => due(what),
        count if consent.finish => due(format!("{what}; {count} connections that IPVS carries break")),
        count => waits(format!(
            "{count} connections that kube-proxy has begun go on by IPVS, and would end with its virtual servers: {}; run this again, \
             or cut them by --finish",
            shown(&facts.carried_at)
        )),
    }
}

fn finish(facts: &Facts, consent: Consent) -> Standing {
    if facts.stage == Stage::Alone {
        return match (facts.has_keeper, facts.in_force) {
            (true, _) => due("remove what has kept kube-proxy's connections alive"),
            (false, false) => waits(NOT_FOLLOWED),
            (false, true) => done("Weir serves alone"),
        };
    }
    match facts.theirs {
        _ if consent.finish => due("have Weir serve alone; connections that kube-proxy has begun break"),
        Some(0) => due("have Weir serve alone: kube-proxy's last connection is over"),
        Some(count) => waits(format!(
            "{count} connections that kube-proxy has begun go on, or ended less than two minutes ago; run this again, or cut \
             them by --finish"
        )),
        None => waits("the kernel does not show /proc/net/nf_conntrack: once old connections have ended, say --finish"),
    }
}

fn rules_complete(facts: &Facts, consent: Consent) -> Standing {
    if facts.agent_runs && !facts.pinned {
        return waits(UNSEEN);
    }
    // Before, it may be about to serve, or is looked for in the wrong place.
    if facts.frontends == 0 && facts.stage == Stage::Drain {
        return done("Weir serves nothing");
    }
    if facts.kube_proxies.is_empty() && !consent.force {
        return waits("kube-proxy does not run on this node: start it; it makes its rules beside Weir");
    }
    if facts.modes.is_empty() {
        return waits("kube-proxy has made no rules yet");
    }
    if facts.differences.is_empty() {
        return done("kube-proxy's rules have every frontend and endpoint of Weir's maps");
    }
    if consent.force {
        return done(format!("let pass: {}", shown(&facts.differences)));
    }
    waits(shown(&facts.differences))
}

fn drain(facts: &Facts, consent: Consent) -> Standing {
    if facts.stage != Stage::Drain {
        return due("leave new connections to kube-proxy; Weir carries its own on");
    }
    if facts.pinned && (!facts.in_force || facts.frontends > 0) {
        // Nobody follows; what is served nevertheless is not taken away unasked.
        return match (facts.agent_runs, consent.finish) {
            (true, _) => waits(NOT_FOLLOWED),
            (false, true) => done("no agent runs: what its programs still serve is kube-proxy's with the last step"),
            (false, false) => {
                waits("no agent runs that could follow: start it, or have its programs let go by --finish")
            }
        };
    }
    done("new connections are kube-proxy's")
}

fn drained(facts: &Facts, consent: Consent) -> Standing {
    if facts.ours == 0 {
        return done("no flow of Weir's goes on");
    }
    if consent.finish {
        return done(format!("{} flows of Weir's break", facts.ours));
    }
    waits(format!("{} flows that Weir has begun go on; run this again, or cut them by --finish", facts.ours))
}

fn stop_agent(facts: &Facts) -> Standing {
    if facts.agent_runs {
        return waits("weir-agent runs: take it off this node; it would attach its programs again");
    }
    done("no agent runs on this node")
}

fn detach(facts: &Facts) -> Standing {
    if facts.left || facts.has_keeper {
        return due("detach Weir's programs and remove its maps");
    }
    done("nothing of Weir's is left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_differences_the_first_are_told() {
        let differences: Vec<_> = (1..=5).map(|number| number.to_string()).collect();
        assert_eq!(shown(&differences), "1; 2; 3; and 2 more");
    }
}
