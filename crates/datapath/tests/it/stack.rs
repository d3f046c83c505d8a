//! The stack that each program needs, as the kernel counts that takes most of it. Needs no root.

use std::collections::{BTreeMap, BTreeSet};

use aya_obj::Object;
use aya_obj::generated::bpf_insn;

/// Bytes for all functions that call each other (`MAX_BPF_STACK` in include/linux/filter.h).
const MOST: u32 = 512;
/// Bytes of a function are rounded up to these (`check_max_stack_depth` in kernel/bpf/verifier.c, Linux 6.1; less since 6.8).
const STEP: u32 = 32;
/// Functions that call each other (`MAX_CALL_FRAMES` in include/linux/bpf_verifier.h).
const FRAMES: usize = 8;

const R10: u8 = 10;
const CALL: u8 = 0x85;
const LOAD_IMM64: u8 = 0x18;
const MOVE64: u8 = 0xbf;
const ADD64_IMM: u8 = 0x07;
/// What `src_reg` is where a call or a loop names a function of the program's own (include/uapi/linux/bpf.h).
const PSEUDO_CALL: u8 = 1;
const PSEUDO_FUNC: u8 = 4;

/// The instructions of each program with all the functions that it calls.
fn programs() -> Vec<(String, Vec<bpf_insn>)> {
    let linked = |(_, bytes): (_, &[u8])| {
        let mut object = Object::parse(bytes).unwrap();
        let text = object.functions.keys().map(|(section, _)| *section).collect();
        object.relocate_calls(&text).unwrap();
        let functions = &object.functions;
        let programs = object.programs.iter();
        programs
            .map(|(name, it)| (name.clone(), functions[&it.function_key()].instructions.clone()))
            .collect::<Vec<_>>()
    };
    weir_datapath::objects().into_iter().flat_map(linked).collect()
}

/// The function that an instruction calls, or has the kernel call: where it begins.
fn callee(at: usize, instruction: &bpf_insn) -> Option<usize> {
    let names = matches!((instruction.code, instruction.src_reg()), (CALL, PSEUDO_CALL) | (LOAD_IMM64, PSEUDO_FUNC));
    names.then(|| usize::try_from(i64::try_from(at).unwrap() + 1 + i64::from(instruction.imm)).unwrap())
}

/// Bytes of the stack that these instructions reach.
fn depth(function: &[bpf_insn]) -> u32 {
    let mut copies = BTreeSet::new();
    let reached = function.iter().map(|instruction| match (instruction.code & 7, instruction.code) {
        (1, _) if instruction.src_reg() == R10 => -i32::from(instruction.off),
        (2 | 3, _) if instruction.dst_reg() == R10 => -i32::from(instruction.off),
        (_, MOVE64) if instruction.src_reg() == R10 => {
            copies.insert(instruction.dst_reg());
            0
        }
        (_, ADD64_IMM) if copies.remove(&instruction.dst_reg()) => -instruction.imm,
        // Whatever else writes a register: arithmetic and loads do.
        (0 | 1 | 4 | 7, _) => {
            copies.remove(&instruction.dst_reg());
            0
        }
        _ => 0,
    });
    u32::try_from(reached.max().unwrap_or(0).max(1)).unwrap().next_multiple_of(STEP)
}

/// Of a program's functions, by where they begin: the stack that each needs, and whom it calls.
fn functions(program: &[bpf_insn]) -> BTreeMap<usize, (u32, BTreeSet<usize>)> {
    let callees = |range: std::ops::Range<usize>| range.filter_map(|at| callee(at, &program[at]));
    let starts: BTreeSet<usize> = callees(0..program.len()).chain([0]).collect();
    let ends = starts.iter().copied().skip(1).chain([program.len()]);
    let function = |(start, end)| (start, (depth(&program[start..end]), callees(start..end).collect()));
    starts.iter().copied().zip(ends).map(function).collect()
}

/// The most bytes, and the most functions, that are in use at once from a function on.
fn deepest(functions: &BTreeMap<usize, (u32, BTreeSet<usize>)>, from: usize) -> (u32, usize) {
    let (own, callees) = &functions[&from];
    let below: Vec<_> = callees.iter().map(|callee| deepest(functions, *callee)).collect();
    let bytes = below.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
    (own + bytes, 1 + below.iter().map(|(_, frames)| *frames).max().unwrap_or(0))
}

#[test]
fn all_programs_fit_the_stack_of_the_kernel_that_counts_most() {
    let programs = programs();
    assert!(programs.len() > 4, "{}", programs.len());
    for (name, program) in programs {
        let (bytes, frames) = deepest(&functions(&program), 0);
        println!("{name}: {bytes} bytes, {frames} functions");
        assert!(bytes <= MOST, "{name} needs {bytes} bytes of stack, of {MOST}");
        assert!(frames <= FRAMES, "{name} calls {frames} functions in turn, of {FRAMES}");
    }
}

#[test]
fn of_functions_that_call_each_other_the_deepest_way_counts() {
    let instruction = |code, dst, src, off, imm| {
        let registers = bpf_insn::new_bitfield_1(dst, src);
        bpf_insn { code, _bitfield_align_1: [], _bitfield_1: registers, off, imm }
    };
    let call = |imm| instruction(CALL, 0, PSEUDO_CALL, 0, imm);
    let program = [
        // 0: stores 40 bytes deep, which are 64, and calls 3 and 5
        instruction(0x7b, R10, 1, -40, 0),
        call(1),
        call(2),
        // 3: makes a pointer to 8 bytes, which are 32
        instruction(MOVE64, 2, R10, 0, 0),
        instruction(ADD64_IMM, 2, 0, 0, -8),
        // 5: loads from 100 bytes deep, which are 128
        instruction(0x79, 1, R10, -100, 0),
    ];
    assert_eq!(deepest(&functions(&program), 0), (64 + 128, 2));
}
