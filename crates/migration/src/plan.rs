//! Which steps lead from kube-proxy to Weir and back, and how far a node is. A step is done when the facts say so: nothing
//! else is remembered, so whoever was interrupted begins where it was, and doing it twice does nothing.

mod standing;

use weir_core::stage::Stage;

/// Which way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// From kube-proxy to Weir.
    ToWeir,
    /// From Weir to kube-proxy.
    ToKubeProxy,
}

/// What was found on the node.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Facts {
    /// An agent holds the pin directory.
    pub agent_runs: bool,
    /// Weir's maps are pinned, in the layout that we know.
    pub pinned: bool,
    /// The pin directory is there, whatever is in it.
    pub left: bool,
    /// What the file says.
    pub stage: Stage,
    /// Whether the maps show it in force.
    pub in_force: bool,
    /// How kube-proxy makes the rules that were found: `iptables`, `ipvs`, `nftables`; none if there are no rules.
    pub modes: Vec<&'static str>,
    /// Processes called kube-proxy in the node's network namespace.
    pub kube_proxies: Vec<u32>,
    /// Whatever keeps the other side from having all that it needs, in words, in the direction that was asked for.
    pub differences: Vec<String>,
    /// How many of these may come from kube-proxy's rules being older than Weir's maps.
    pub of_age: usize,
    /// Frontends in Weir's maps.
    pub frontends: usize,
    /// Whether kube-proxy's rules have frontends, and Weir's maps none of them.
    pub lacks_all: bool,
    /// Whether what keeps kube-proxy's connections alive is there.
    pub has_keeper: bool,
    /// Connections that kube-proxy has begun and that go on; `None` if the kernel does not show them.
    pub theirs: Option<usize>,
    /// How many of kube-proxy's connections end with its virtual servers of IPVS.
    pub carried: usize,
    /// At which virtual servers, in words.
    pub carried_at: Vec<String>,
    /// Flows that Weir has begun and that go on.
    pub ours: usize,
}

/// What the operator has decided.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Consent {
    /// Connections of the proxy before need not end first: they break.
    pub finish: bool,
    /// Differences, and a kube-proxy that is not seen, are no obstacle.
    pub force: bool,
}

/// A step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StepKind {
    /// An agent runs; kube-proxy's rules are of a kind that is known.
    Preflight,
    /// Weir serves, beside kube-proxy's rules.
    TakeOver,
    /// Weir's maps have all that kube-proxy's rules have.
    Verify,
    /// kube-proxy has been stopped.
    StopKubeProxy,
    /// kube-proxy's rules are gone. Those of IPVS carry connections, whose end comes first.
    RemoveRules,
    /// kube-proxy's connections have ended; Weir serves alone.
    Finish,
    /// kube-proxy runs, and its rules have all that Weir's maps have.
    RulesComplete,
    /// Weir takes no new flows.
    Drain,
    /// Weir's flows have ended.
    Drained,
    /// The agent has been stopped.
    StopAgent,
    /// Weir's programs and maps are gone.
    Detach,
}

impl StepKind {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Preflight => "preflight",
            Self::TakeOver => "take-over",
            Self::Verify => "verify",
            Self::StopKubeProxy => "stop-kube-proxy",
            Self::RemoveRules => "remove-rules",
            Self::Finish => "finish",
            Self::RulesComplete => "rules-complete",
            Self::Drain => "drain",
            Self::Drained => "drained",
            Self::StopAgent => "stop-agent",
            Self::Detach => "detach",
        }
    }
}

/// How a step stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Standing {
    /// It is done; with what shows it.
    Done(String),
    /// To be done by us; what that would be.
    Due(String),
    /// It takes time, or somebody else; for what.
    Waits(String),
}

/// A step and how it stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Step {
    /// Which.
    pub kind: StepKind,
    /// How it stands, by the facts as they are.
    pub standing: Standing,
}

/// All steps in their order. The first that is not done comes next.
#[must_use]
pub fn steps(direction: Direction, facts: &Facts, consent: Consent) -> Vec<Step> {
    let kinds: &[StepKind] = match direction {
        Direction::ToWeir => &[
            StepKind::Preflight,
            StepKind::TakeOver,
            StepKind::Verify,
            StepKind::StopKubeProxy,
            StepKind::RemoveRules,
            StepKind::Finish,
        ],
        Direction::ToKubeProxy => {
            &[StepKind::RulesComplete, StepKind::Drain, StepKind::Drained, StepKind::StopAgent, StepKind::Detach]
        }
    };
    kinds.iter().map(|kind| Step { kind: *kind, standing: standing::of(*kind, facts, consent) }).collect()
}

/// The step that comes next; `None`: all are done.
#[must_use]
pub fn next(steps: &[Step]) -> Option<&Step> {
    steps.iter().find(|step| !matches!(step.standing, Standing::Done(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside kube-proxy, before anything was done.
    fn beside() -> Facts {
        Facts {
            agent_runs: true,
            pinned: true,
            left: true,
            in_force: true,
            modes: vec!["nftables"],
            kube_proxies: vec![7],
            theirs: Some(2),
            ..Facts::default()
        }
    }

    fn taken_over() -> Facts {
        Facts { stage: Stage::TakeOver, frontends: 12, ..beside() }
    }

    fn alone() -> Facts {
        Facts { stage: Stage::Alone, modes: vec![], kube_proxies: vec![], theirs: Some(0), ours: 5, ..taken_over() }
    }

    /// The step that comes next and whether it is ours to do.
    fn next_of(direction: Direction, facts: &Facts, consent: Consent) -> Option<(StepKind, bool)> {
        let steps = steps(direction, facts, consent);
        next(&steps).map(|step| (step.kind, matches!(step.standing, Standing::Due(_))))
    }

    fn to_weir(facts: &Facts) -> Option<(StepKind, bool)> {
        next_of(Direction::ToWeir, facts, Consent::default())
    }

    fn back(facts: &Facts) -> Option<(StepKind, bool)> {
        next_of(Direction::ToKubeProxy, facts, Consent::default())
    }

    #[test]
    fn on_the_way_to_weir_nothing_is_removed_before_weir_serves_all_of_it_and_kube_proxy_is_stopped() {
        assert_eq!(to_weir(&Facts { agent_runs: false, ..beside() }), Some((StepKind::Preflight, false)));
        assert_eq!(to_weir(&beside()), Some((StepKind::TakeOver, true)));
        assert_eq!(to_weir(&Facts { in_force: false, ..taken_over() }), Some((StepKind::TakeOver, false)));
        let lacking = Facts { differences: vec!["x".into()], ..taken_over() };
        assert_eq!(to_weir(&lacking), Some((StepKind::Verify, false)));
        assert_eq!(to_weir(&taken_over()), Some((StepKind::StopKubeProxy, false)));
        let stopped = Facts { kube_proxies: vec![], ..taken_over() };
        assert_eq!(to_weir(&stopped), Some((StepKind::RemoveRules, true)));
        let removed = Facts { modes: vec![], has_keeper: true, ..stopped };
        assert_eq!(to_weir(&removed), Some((StepKind::Finish, false)), "two connections go on");
        assert_eq!(to_weir(&Facts { theirs: Some(0), ..removed.clone() }), Some((StepKind::Finish, true)));
        assert_eq!(to_weir(&Facts { theirs: None, ..removed.clone() }), Some((StepKind::Finish, false)));
        let told = Facts { stage: Stage::Alone, in_force: false, ..removed };
        assert_eq!(to_weir(&told), Some((StepKind::Finish, true)), "the keeper is to go");
        assert_eq!(to_weir(&Facts { has_keeper: false, ..told }), Some((StepKind::Finish, false)));
        assert_eq!(to_weir(&alone()), None);
    }

    #[test]
    fn rules_that_grew_old_since_kube_proxy_stopped_are_let_pass_but_no_frontend_that_weir_lacks() {
        let stopped = Facts { kube_proxies: vec![], differences: vec!["x".into()], of_age: 1, ..taken_over() };
        assert_eq!(to_weir(&stopped), Some((StepKind::RemoveRules, true)));
        let lacking = Facts { of_age: 0, ..stopped.clone() };
        assert_eq!(to_weir(&lacking), Some((StepKind::Verify, false)));
        let consent = Consent { force: true, finish: false };
        assert_eq!(next_of(Direction::ToWeir, &lacking, consent), Some((StepKind::RemoveRules, true)));
        let follows = Facts { kube_proxies: vec![7], ..stopped };
        assert_eq!(to_weir(&follows), Some((StepKind::Verify, false)), "its rules are as new as they can be");
    }

    #[test]
    fn virtual_servers_stay_until_the_connections_that_they_carry_have_ended() {
        let carried_at = vec!["10.96.0.10:80/TCP (2)".to_owned()];
        let carries = Facts { kube_proxies: vec![], modes: vec!["ipvs"], carried: 2, carried_at, ..taken_over() };
        assert_eq!(to_weir(&carries), Some((StepKind::RemoveRules, false)));
        let steps = steps(Direction::ToWeir, &carries, Consent::default());
        let Some(Step { standing: Standing::Waits(why), .. }) = next(&steps) else { panic!("{steps:?}") };
        assert!(why.contains("2 connections") && why.contains("10.96.0.10:80/TCP (2)"), "{why}");
        let consent = Consent { finish: true, force: false };
        assert_eq!(next_of(Direction::ToWeir, &carries, consent), Some((StepKind::RemoveRules, true)));
        let ended = Facts { carried: 0, carried_at: vec![], ..carries };
        assert_eq!(to_weir(&ended), Some((StepKind::RemoveRules, true)));
    }

    #[test]
    fn on_the_way_back_weir_lets_go_when_kube_proxy_has_all_and_leaves_when_its_flows_have_ended() {
        assert_eq!(back(&alone()), Some((StepKind::RulesComplete, false)));
        let runs = Facts { kube_proxies: vec![7], ..alone() };
        assert_eq!(back(&runs), Some((StepKind::RulesComplete, false)), "no rules yet");
        let rules = Facts { modes: vec!["iptables"], ..runs };
        assert_eq!(
            back(&Facts { differences: vec!["x".into()], ..rules.clone() }),
            Some((StepKind::RulesComplete, false))
        );
        assert_eq!(back(&rules), Some((StepKind::Drain, true)));
        let told = Facts { stage: Stage::Drain, ..rules };
        assert_eq!(back(&told), Some((StepKind::Drain, false)), "the agent has not followed");
        let drains = Facts { frontends: 0, ..told };
        assert_eq!(back(&drains), Some((StepKind::Drained, false)));
        let ended = Facts { ours: 0, ..drains.clone() };
        assert_eq!(back(&ended), Some((StepKind::StopAgent, false)));
        let consent = Consent { finish: true, force: false };
        assert_eq!(next_of(Direction::ToKubeProxy, &drains, consent), Some((StepKind::StopAgent, false)));
        let stopped = Facts { agent_runs: false, ..ended };
        assert_eq!(back(&stopped), Some((StepKind::Detach, true)));
        let half = Facts { pinned: false, ..stopped };
        assert_eq!(back(&half), Some((StepKind::Detach, true)), "what it was in the middle of, or another version's");
        assert_eq!(back(&Facts { left: false, ..half }), None);
    }

    #[test]
    fn whose_maps_are_not_seen_is_neither_relied_on_nor_let_go() {
        let unseen = Facts { pinned: false, in_force: false, frontends: 0, ours: 0, ..alone() };
        assert_eq!(back(&unseen), Some((StepKind::RulesComplete, false)), "an agent of another version serves");
        let runs = Facts { kube_proxies: vec![7], modes: vec!["iptables"], ..unseen.clone() };
        assert_eq!(back(&runs), Some((StepKind::RulesComplete, false)));
        assert_eq!(to_weir(&Facts { stage: Stage::Usual, ..runs }), Some((StepKind::Preflight, false)));
        let elsewhere = Facts { agent_runs: false, ..unseen };
        assert_eq!(back(&elsewhere), Some((StepKind::RulesComplete, false)), "nobody else serves");
    }

    #[test]
    fn an_agent_that_was_beside_kube_proxy_before_has_followed_once_it_has_one_of_its_frontends() {
        let waits = Facts { lacks_all: true, differences: vec!["x".into()], ..taken_over() };
        assert_eq!(to_weir(&waits), Some((StepKind::TakeOver, false)));
        let consent = Consent { force: true, finish: true };
        assert_eq!(
            next_of(Direction::ToWeir, &waits, consent),
            Some((StepKind::TakeOver, false)),
            "not by force, either"
        );
    }

    #[test]
    fn the_way_back_from_an_agent_that_is_gone_ends_what_goes_on_by_its_programs() {
        let gone =
            Facts { agent_runs: false, kube_proxies: vec![7], modes: vec!["iptables"], stage: Stage::Drain, ..alone() };
        assert_eq!(back(&gone), Some((StepKind::Drain, false)));
        let consent = Consent { finish: true, force: false };
        assert_eq!(next_of(Direction::ToKubeProxy, &gone, consent), Some((StepKind::Detach, true)));
        let runs = Facts { agent_runs: true, ..gone };
        assert_eq!(next_of(Direction::ToKubeProxy, &runs, consent), Some((StepKind::Drain, false)));
    }

    #[test]
    fn who_has_turned_back_may_turn_again() {
        let drains = Facts { stage: Stage::Drain, frontends: 0, ..beside() };
        assert_eq!(to_weir(&drains), Some((StepKind::TakeOver, true)));
        let halfway = Facts { has_keeper: true, modes: vec![], kube_proxies: vec![], ..taken_over() };
        assert_eq!(back(&halfway), Some((StepKind::RulesComplete, false)));
    }
}
