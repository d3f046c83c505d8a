//! What the agent may do with the API: the least that it needs, so that tests meet a missing right before users do.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::Result;
use crate::apiserver::User;
use crate::objects::Objects;

/// Name of the role and of its binding.
const NAME: &str = "weir-agent";
/// The API group of roles.
const RBAC: &str = "rbac.authorization.k8s.io";

/// The rights to follow Services, EndpointSlices and Nodes, without which nothing is served, and ServiceCIDRs.
#[must_use]
pub fn to_watch() -> Vec<PolicyRule> {
    on_watched(&["list", "watch"])
}

/// The rights to publish events about them: `get` is for the uid, which ties an event to its object.
#[must_use]
pub fn to_report() -> Vec<PolicyRule> {
    let mut rules = on_watched(&["get"]);
    rules.push(rule("events.k8s.io", &["events"], &["create"]));
    rules
}

/// The rights to ask metrics-server about nodes that run no agent.
#[must_use]
pub fn to_fall_back() -> Vec<PolicyRule> {
    vec![rule("metrics.k8s.io", &["nodes"], &["list"])]
}

/// Lets [`User::Agent`] do what the rules say and nothing else, whatever it was allowed before.
///
/// # Errors
/// When the server refuses.
pub fn allow_agent(objects: &Objects, rules: Vec<PolicyRule>) -> Result<()> {
    let metadata = ObjectMeta { name: Some(NAME.into()), ..ObjectMeta::default() };
    objects.apply(&ClusterRole { metadata: metadata.clone(), rules: Some(rules), aggregation_rule: None })?;
    let agent =
        Subject { api_group: Some(RBAC.into()), kind: "User".into(), name: User::Agent.name().into(), namespace: None };
    let role_ref = RoleRef { api_group: RBAC.into(), kind: "ClusterRole".into(), name: NAME.into() };
    objects.apply(&ClusterRoleBinding { metadata, role_ref, subjects: Some(vec![agent]) })?;
    Ok(())
}

fn on_watched(verbs: &[&str]) -> Vec<PolicyRule> {
    vec![
        rule("", &["services", "nodes"], verbs),
        rule("discovery.k8s.io", &["endpointslices"], verbs),
        rule("networking.k8s.io", &["servicecidrs"], verbs),
    ]
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}
