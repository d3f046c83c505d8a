//! A small reader of BTF (Documentation/bpf/btf.rst): structs and enumerations of a compiled object, with sizes resolved.

use std::collections::BTreeMap;

use object::{Object, ObjectSection};

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const DECL_TAG: u32 = 17;
const ENUM64: u32 = 19;

/// A field: name, offset and size in bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// A struct: its size, and its fields in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Struct {
    pub(crate) size: usize,
    pub(crate) fields: Vec<Field>,
}

/// What an object's BTF says.
#[derive(Debug, Default)]
pub(crate) struct Btf {
    pub(crate) structs: BTreeMap<String, Struct>,
    pub(crate) enums: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Btf {
    /// Reads the `.BTF` section of an object in this machine's byte order.
    pub(crate) fn of_object(bytes: &[u8]) -> Self {
        let file = object::File::parse(bytes).unwrap();
        let section = file.section_by_name(".BTF").expect("the object has BTF");
        let types = parse(section.data().unwrap());
        let mut btf = Self::default();
        for one in types.iter().filter(|one| !one.name.is_empty()) {
            match one.kind {
                STRUCT => drop(btf.structs.insert(one.name.clone(), structure(&types, one))),
                ENUM | ENUM64 => drop(btf.enums.insert(one.name.clone(), one.values.clone())),
                _ => {}
            }
        }
        btf
    }
}

/// A type with what this reader needs of it.
#[derive(Debug, Default)]
struct Type {
    name: String,
    kind: u32,
    /// Size in bytes, or the id of the type that this one refers to.
    size_or_type: usize,
    /// Arrays: type and number of elements.
    array: (usize, usize),
    /// Structs: name, type and offset in bits.
    members: Vec<(String, usize, usize)>,
    /// Enumerations.
    values: BTreeMap<String, u64>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn index(bytes: &[u8], at: usize) -> usize {
    word(bytes, at).try_into().unwrap()
}

/// All types by id; 0 is void.
fn parse(bytes: &[u8]) -> Vec<Type> {
    assert_eq!(word(bytes, 0) & 0xffff, 0xeb9f, "BTF of this machine's byte order");
    let header = index(bytes, 4);
    let part = |at: usize| &bytes[header + index(bytes, at)..][..index(bytes, at + 4)];
    let (mut rest, strings) = (part(8), part(16));
    let text = |offset: usize| {
        let end = strings[offset..].iter().position(|c| *c == 0).unwrap();
        String::from_utf8(strings[offset..offset + end].to_vec()).unwrap()
    };
    let mut types = vec![Type::default()];
    while !rest.is_empty() {
        let info = word(rest, 4);
        let (kind, count, flag) = (info >> 24 & 0x1f, (info & 0xffff) as usize, info >> 31 == 1);
        let mut one = Type { name: text(index(rest, 0)), kind, size_or_type: index(rest, 8), ..Type::default() };
        let tail = &rest[12..];
        let entries = |size: usize| tail[..count * size].chunks_exact(size);
        let length = match kind {
            ARRAY => {
                one.array = (index(tail, 0), index(tail, 8));
                12
            }
            STRUCT | UNION => {
                // With the flag, the highest byte is a bitfield's width: headers of protocols have such, the ABI has none.
                let bits = |m| if flag { index(m, 8) & 0x00ff_ffff } else { index(m, 8) };
                one.members = entries(12).map(|m| (text(index(m, 0)), index(m, 4), bits(m))).collect();
                count * 12
            }
            ENUM => {
                one.values = entries(8).map(|v| (text(index(v, 0)), u64::from(word(v, 4)))).collect();
                count * 8
            }
            ENUM64 => {
                let wide = |v| u64::from(word(v, 4)) | u64::from(word(v, 8)) << 32;
                one.values = entries(12).map(|v| (text(index(v, 0)), wide(v))).collect();
                count * 12
            }
            INT | VAR | DECL_TAG => 4,
            FUNC_PROTO => count * 8,
            DATASEC => count * 12,
            _ => 0,
        };
        rest = &tail[length..];
        types.push(one);
    }
    types
}

fn size(types: &[Type], id: usize) -> usize {
    let one = &types[id];
    match one.kind {
        PTR => 8,
        ARRAY => size(types, one.array.0) * one.array.1,
        TYPEDEF | VOLATILE | CONST | RESTRICT => size(types, one.size_or_type),
        INT | STRUCT | UNION | ENUM | ENUM64 => one.size_or_type,
        kind => panic!("a field of kind {kind} has no size"),
    }
}

fn structure(types: &[Type], one: &Type) -> Struct {
    let field = |(name, id, bits): &(String, usize, usize)| Field {
        name: name.clone(),
        offset: bits / 8,
        size: size(types, *id),
    };
    Struct { size: one.size_or_type, fields: one.members.iter().map(field).collect() }
}
