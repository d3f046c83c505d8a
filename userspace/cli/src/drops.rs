//! `weir drops`: why packets left the programs, by hook.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;
use weir_abi as abi;
use weir_abi::names::{hook_name, reason_name, verdict_name};
use weir_datapath::View;

use crate::args::DropsArgs;
use crate::output::{Kind, Output, Row, Tone};

/// From here on a packet did not reach an endpoint.
const FIRST_REFUSAL: usize = 32;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DropRow {
    hook: &'static str,
    reason: &'static str,
    verdict: &'static str,
    packets: u64,
    bytes: u64,
    /// Since the last answer; null in the first one.
    packets_per_second: Option<f64>,
}

impl Row for DropRow {
    const KIND: Kind = Kind::ReasonList;

    fn headers(_wide: bool) -> Vec<&'static str> {
        vec!["HOOK", "REASON", "VERDICT", "PACKETS", "BYTES", "PACKETS/S"]
    }

    fn cells(&self, _wide: bool) -> Vec<String> {
        vec![
            self.hook.to_owned(),
            self.reason.to_owned(),
            self.verdict.to_owned(),
            self.packets.to_string(),
            self.bytes.to_string(),
            self.packets_per_second.map(|rate| format!("{rate:.0}")).unwrap_or_default(),
        ]
    }

    fn name(&self) -> String {
        format!("reason/{}/{}", self.hook, self.reason)
    }

    fn tone(&self) -> Tone {
        match self.packets_per_second {
            Some(rate) if rate > 0.0 && self.verdict == "dropped" => Tone::Alert,
            Some(_) | None => Tone::Plain,
        }
    }
}

/// Counters by hook and reason, without those at zero.
type Counters = Vec<((usize, usize), abi::Counter)>;

fn read(view: &View) -> Result<Counters> {
    let mut counters = Vec::new();
    for hook in 0..abi::HOOK_COUNT {
        for reason in 0..abi::REASON_COUNT {
            let counter = view.counters().counter(hook, reason)?;
            if counter.packets > 0 {
                counters.push(((hook, reason), counter));
            }
        }
    }
    Ok(counters)
}

/// `before` holds the packets of the last answer and how many seconds ago that was.
fn rows(counters: &Counters, all: bool, before: Option<(&Counters, f64)>) -> Vec<DropRow> {
    let old: Option<(HashMap<_, u64>, f64)> =
        before.map(|(old, seconds)| (old.iter().map(|(at, counter)| (*at, counter.packets)).collect(), seconds));
    let row = |((hook, reason), counter): &((usize, usize), abi::Counter)| {
        let rate = old.as_ref().map(|(old, seconds)| {
            let packets = counter.packets.saturating_sub(old.get(&(*hook, *reason)).copied().unwrap_or_default());
            #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
            let packets = packets as f64;
            packets / seconds
        });
        DropRow {
            hook: u32::try_from(*hook).map_or("unknown", hook_name),
            reason: reason_name(*reason),
            verdict: verdict_name(*reason),
            packets: counter.packets,
            bytes: counter.bytes,
            packets_per_second: rate,
        }
    };
    counters.iter().filter(|((_, reason), _)| all || *reason >= FIRST_REFUSAL).map(row).collect()
}

/// The counters between two answers.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    before: Option<(Counters, Instant)>,
}

impl Drops {
    /// The next answer, with rates from the second one on.
    pub(crate) fn frame(&mut self, view: &View, args: &DropsArgs, output: &Output) -> Result<String> {
        let counters = read(view)?;
        let before = self.before.as_ref().map(|(old, at)| (old, at.elapsed().as_secs_f64()));
        let text = output.list(&rows(&counters, args.all, before))?;
        self.before = Some((counters, Instant::now()));
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::tests::plain;

    const fn counter(hook: u32, reason: u32, packets: u64) -> ((usize, usize), abi::Counter) {
        ((hook as usize, reason as usize), abi::Counter { packets, bytes: packets * 60 })
    }

    fn counters(no_route: u64) -> Counters {
        vec![
            counter(abi::HOOK_XDP, abi::REASON_TO_LOCAL, 1_000_000),
            counter(abi::HOOK_NIC_INGRESS, abi::REASON_NO_ENDPOINTS, 3),
            counter(abi::HOOK_NIC_INGRESS, abi::REASON_NO_ROUTE, no_route),
        ]
    }

    #[test]
    fn only_refusals_and_drops_are_shown_unless_all_are_asked_for() {
        let list = |all| plain(Format::Table).list(&rows(&counters(7), all, None)).unwrap();
        insta::assert_snapshot!(anstream::adapter::strip_str(&list(false)), @r"
        HOOK          REASON         VERDICT    PACKETS   BYTES   PACKETS/S
        nic_ingress   no_endpoints   answered   3         180     <none>
        nic_ingress   no_route       dropped    7         420     <none>
        ");
        insta::assert_snapshot!(anstream::adapter::strip_str(&list(true)), @r"
        HOOK          REASON         VERDICT      PACKETS   BYTES      PACKETS/S
        xdp           to_local       translated   1000000   60000000   <none>
        nic_ingress   no_endpoints   answered     3         180        <none>
        nic_ingress   no_route       dropped      7         420        <none>
        ");
    }

    #[test]
    fn what_a_service_does_not_admit_is_dropped_and_what_it_does_not_serve_is_answered() {
        let counters = vec![
            counter(abi::HOOK_XDP, abi::REASON_MID_FLOW, 5),
            counter(abi::HOOK_NIC_INGRESS, abi::REASON_UNUSED_PORT, 2),
            counter(abi::HOOK_NIC_INGRESS, abi::REASON_SOURCE_RANGE, 1),
        ];
        let rows = rows(&counters, false, None);
        let shown: Vec<_> = rows.iter().map(|row| (row.reason, row.verdict)).collect();
        assert_eq!(shown, [("unused_port", "answered"), ("source_range", "dropped")]);
    }

    #[test]
    fn a_second_answer_has_rates() {
        let rows = rows(&counters(27), false, Some((&counters(7), 2.0)));
        let rates: Vec<_> = rows.iter().map(|row| (row.reason, row.packets_per_second)).collect();
        assert_eq!(rates, [("no_endpoints", Some(0.0)), ("no_route", Some(10.0))]);
        assert_eq!(rows[1].tone(), Tone::Alert);
    }
}
