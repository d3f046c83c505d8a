//! `weir explain SERVICE`: why its new flows go where they go, in words and numbers.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use weir_core::policies;
use weir_telemetry::weights::{EndpointSet, Service, Weights};

use crate::agent;
use crate::args::ExplainArgs;
use crate::exit::Answer;
use crate::output::{Kind, Output};
use crate::weights::{full_name, milliseconds, percent, port};

#[derive(Serialize)]
struct Explanation<'a> {
    items: &'a [Service],
}

/// Runs the command.
pub(crate) fn run(args: &ExplainArgs, socket: &Path, output: &Output) -> Result<Answer> {
    let name = full_name(&args.service, &args.namespace);
    let weights = agent::weights(socket, Some(&name))?;
    if weights.services.is_empty() {
        eprintln!(
            "{name} is not steered on this node: it does not exist, or its shares are fixed; `weir endpoints {name}` shows \
             them, and `weir-agent --help` what steers"
        );
        return Ok(Answer::No);
    }
    let text = if output.is_document() {
        output.document(Kind::Explanation, &Explanation { items: &weights.services })?
    } else {
        words(&weights)
    };
    output.print(&text)?;
    Ok(Answer::Yes)
}

/// The story of all ports of the service.
fn words(weights: &Weights) -> String {
    let mut text = String::new();
    for service in &weights.services {
        // Writing to a string does not fail.
        let _ = story(weights, service, &mut text);
    }
    text
}

fn story(weights: &Weights, service: &Service, text: &mut String) -> std::fmt::Result {
    let Service { namespace, name, policy, offered, local, remote, inbound, open_local, .. } = service;
    writeln!(text, "{namespace}/{name} {}, policy {policy}{}", port(service), wishes(service))?;
    let cpu = weights.node.cpu.map_or_else(|| "unknown".to_owned(), |cpu| format!("{} %", percent(cpu.share)));
    writeln!(text, "  {}: CPU {cpu} of {:.1} cores", weights.node.name, weights.node.cores)?;
    writeln!(
        text,
        "  new flows from here: {offered:.1}/s, of which {local:.1} stayed and {remote:.1} left; {open_local} are open here"
    )?;
    if *inbound > 0.0 {
        writeln!(text, "  new flows from other nodes: {inbound:.1}/s")?;
    }
    if policy == policies::Kind::Maglev.name() {
        writeln!(text, "  nothing is decided: Maglev's table divides, which is the same on all nodes")?;
    } else if service.sets.is_empty() {
        writeln!(text, "  nothing is decided yet: nobody has used it since the agent started, and it is as planned")?;
    }
    service.sets.iter().try_for_each(|set| decision(weights, set, text))
}

fn wishes(service: &Service) -> String {
    let mut text = String::new();
    let mut add = |wish: String| text.push_str(&wish);
    service.target.into_iter().for_each(|target| add(format!(", target {} %", percent(target))));
    if service.max_spill < 1.0 {
        add(format!(", at most {} % may leave", percent(service.max_spill)));
    }
    service.max_rtt.into_iter().for_each(|rtt| add(format!(", not farther than {}", milliseconds(rtt))));
    text
}

fn decision(weights: &Weights, set: &EndpointSet, text: &mut String) -> std::fmt::Result {
    writeln!(text, "  {}: {} % leave the node", set.classes.join(", "), percent(set.spill))?;
    for reason in &set.reasons {
        writeln!(text, "    because {reason}")?;
    }
    for endpoint in &set.endpoints {
        let node = if endpoint.node.is_empty() { "an unknown node" } else { &endpoint.node };
        write!(text, "    {} on {node} gets {} %", endpoint.address, percent(endpoint.share))?;
        let peer = weights.peers.iter().find(|peer| peer.name == endpoint.node);
        if endpoint.ejected {
            let why = if peer.is_some_and(|peer| peer.silent) { "its node answers no probes" } else { "it failed" };
            write!(text, ": ejected, {why}")?;
        }
        writeln!(text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::tests::sample;

    #[test]
    fn the_story_has_the_inputs_the_decision_and_the_reasons() {
        insta::assert_snapshot!(words(&sample()), @r"
        shop/web 80/TCP, policy waterfill, target 80 %, not farther than 20.0ms
          edge-1: CPU 80 % of 4.0 cores
          new flows from here: 80.0/s, of which 50.0 stayed and 30.0 left; 12 are open here
          new flows from other nodes: 4.0/s
          internal, external: 37.5 % leave the node
            because 80.0 flows/s are offered and the node takes 50.0: each costs 1.600 % on top of 0 %; corrected by +0.0 points
            because edge-2 takes 30.0 flows/s of the 75.0 that it could, 0.8 ms away
            because 1 endpoints failed and get nothing for now
            10.244.1.5:8080 on edge-1 gets 62.5 %
            10.244.2.6:8080 on edge-2 gets 37.5 %
            10.244.3.7:8080 on edge-3 gets 0 %: ejected, its node answers no probes
        ");
    }

    #[test]
    fn a_service_that_nobody_uses_is_as_planned() {
        let mut weights = sample();
        weights.services[0].sets.clear();
        assert!(words(&weights).contains("nothing is decided yet"), "{}", words(&weights));
        weights.services[0].policy = "maglev".to_owned();
        assert!(words(&weights).contains("Maglev's table divides"), "{}", words(&weights));
    }
}
