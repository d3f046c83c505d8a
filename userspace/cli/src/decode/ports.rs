//! Maps of source ports, and of SYNs that wait for one, from bytes.

use std::mem::offset_of;

use weir_abi as abi;
use weir_core::source_ports::PortSet;
use weir_datapath::RawEntry;

use super::{Value, number, word};

/// Key and value of `snat_counters`, from bytes: the index; the running number, and the ticks in which a port was taken too soon, and none was found.
pub(crate) fn snat_counter((index, counter): &RawEntry) -> (Value, Value) {
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(u32::MAX, |bytes| u32::from_ne_bytes(*bytes));
    let fields = [
        ("next", offset_of!(abi::SnatCounter, next)),
        ("pressed", offset_of!(abi::SnatCounter, pressed)),
        ("longSearch", offset_of!(abi::SnatCounter, long_search)),
    ];
    (number(word(index)), Value::Fields(fields.map(|(name, at)| (name, number(word(&counter[at..])))).into()))
}

/// Key and value of `first_syns`, from bytes: the index, and how many SYNs are noted there.
pub(crate) fn first_syns((index, tags): &RawEntry) -> (Value, Value) {
    let index = index.as_slice().try_into().map_or(u32::MAX, u32::from_ne_bytes);
    (number(index), Value::Fields(vec![("syns", number(tags.iter().map(|tag| u32::from(*tag != 0)).sum::<u32>()))]))
}

/// Key and value of `snat_kept`, from bytes: the index, and the ports that are kept there.
pub(crate) fn snat_kept((index, line): &RawEntry) -> (Value, Value) {
    let index = index.as_slice().try_into().map_or(u32::MAX, u32::from_ne_bytes);
    let entries = line.as_chunks().0.iter().map(|bytes| u32::from_ne_bytes(*bytes)).filter(|entry| *entry != 0);
    (number(index), Value::Fields(vec![("ports", Value::List(entries.map(|entry| number(entry & 0xffff)).collect()))]))
}

/// Key and value of `displaced`, from bytes: the index, the slots of the backends and the source ports of connections without a place, and of how many
/// the answers are.
pub(crate) fn displaced((index, line): &RawEntry) -> (Value, Value) {
    let index = index.as_slice().try_into().map_or(u32::MAX, u32::from_ne_bytes);
    let backends = 1 << (abi::DISPLACED_TICK - abi::DISPLACED_BACKEND);
    let (flows, answers) = line.split_at(line.len().min(offset_of!(abi::Displaced, answers)));
    let entries = flows.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).filter(|entry| *entry != 0);
    let answers = answers.as_chunks::<{ size_of::<u32>() }>().0.iter().filter(|entry| **entry != [0; 4]).count();
    let connection = |entry: u64| {
        let fields = [("backend", entry >> abi::DISPLACED_BACKEND & (backends - 1)), ("snat_port", entry & 0xffff)];
        Value::Fields(fields.map(|(name, value)| (name, number(value))).into())
    };
    let connections = Value::List(entries.map(connection).collect());
    (
        number(index),
        Value::Fields(vec![
            ("connections", connections),
            ("answers", number(u64::try_from(answers).unwrap_or(u64::MAX))),
        ]),
    )
}

/// Key and value of `snat_next`, from bytes: the index, and the port that follows from each of its numbers.
pub(crate) fn snat_next((index, next): &RawEntry) -> (Value, Value) {
    let index = index.as_slice().try_into().map_or(u32::MAX, u32::from_ne_bytes);
    let ports = next.as_chunks().0.iter().map(|bytes| number(u16::from_ne_bytes(*bytes)));
    (number(index), Value::Fields(vec![("next", Value::List(ports.collect()))]))
}

/// Key and value of `snat_ports`, from bytes: the index, ports at which answers may arrive, and those among them that no
/// new flow may take.
pub(crate) fn snat_ports((index, ports): &RawEntry) -> (Value, Value) {
    let index = index.as_slice().try_into().map_or(u32::MAX, u32::from_ne_bytes);
    let first = u16::try_from(index << abi::SNAT_WORD_BITS).unwrap_or_default();
    let shown = |bits: &[u8; size_of::<u64>()]| {
        let bits = u64::from_ne_bytes(*bits);
        let set: PortSet = (0..64).filter(|place| bits >> place & 1 != 0).map(|place: u16| first + place).collect();
        word(set.to_string())
    };
    (number(index), Value::Fields(["answers", "left"].into_iter().zip(ports.as_chunks().0.iter().map(shown)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key and value of what a map has at an index.
    fn shown(decode: impl Fn(&RawEntry) -> (Value, Value), index: u32, value: Vec<u8>) -> [serde_json::Value; 2] {
        let (index, value) = decode(&(index.to_ne_bytes().to_vec(), value));
        [index, value].map(|value| serde_json::to_value(value).unwrap())
    }

    #[test]
    fn what_a_flood_displaced_shows_where_each_connection_went_and_no_empty_place() {
        let connection = |tag: u64, tick: u64, backend: u64, port: u64| {
            let [tag, tick, backend] =
                [(tag, abi::DISPLACED_TAG), (tick, abi::DISPLACED_TICK), (backend, abi::DISPLACED_BACKEND)]
                    .map(|(value, place)| value << place);
            tag | tick | backend | port
        };
        let mut line = [0u64; abi::DISPLACED_WAYS];
        line[3] = connection(0xffff, 0xff, 0x00ff_fffe, 0);
        line[9] = connection(0, 1, 7, 40_000);
        let expected = serde_json::json!({"connections": [
            {"backend": 0x00ff_fffe, "snat_port": 0},
            {"backend": 7, "snat_port": 40_000},
        ], "answers": 2});
        let mut answers = [0u32; abi::DISPLACED_WAYS];
        answers[0] = 0xffff_ff00;
        answers[31] = 1;
        let flows = line.iter().flat_map(|entry| entry.to_ne_bytes());
        let bytes = flows.chain(answers.iter().flat_map(|entry| entry.to_ne_bytes())).collect();
        assert_eq!(shown(displaced, 5, bytes), [5.into(), expected]);
    }

    #[test]
    fn ports_that_are_kept_are_those_of_entries_that_there_are() {
        let line = [0u32, 0x1234_0000 | 1024, 0, 0xffff_ffff];
        let bytes = line.iter().flat_map(|entry| entry.to_ne_bytes()).collect();
        assert_eq!(shown(snat_kept, 2, bytes), [2.into(), serde_json::json!({"ports": [1024, 65_535]})]);
    }

    #[test]
    fn source_ports_are_shown_as_ranges_of_the_numbers_that_they_have() {
        let words = [0b1111u64, 0b0110];
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let expected = serde_json::json!({"answers": "640-643", "left": "641-642"});
        assert_eq!(shown(snat_ports, 10, bytes), [10.into(), expected]);
    }
}
