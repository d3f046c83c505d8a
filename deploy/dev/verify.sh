#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A second opinion on the BPF objects: loads each one with bpftool (libbpf), where the agent uses another loader, and
# prints the size of every program. With WALKED=1 also how many instructions the verifier walked, which is known from its
# log alone: writing that takes the kernel more than a minute.
#
#   [WALKED=1] deploy/dev/verify.sh OBJECT...
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin
readonly BPFFS=/sys/fs/bpf
readonly PINS=$BPFFS/weir-verify-$$

die() {
	echo "verify: $*" >&2
	exit 1
}

cleanup() {
	rm -rf "$PINS" "$PINS-log"
	[[ -z ${work:-} ]] || rm -rf "$work"
}

# Prints a number out of a line of flat JSON.
number() { sed -nE "s/.*\"$1\":([0-9]+).*/\1/p" <<<"$2"; }

# Prints "program instructions" for each program of an object, from the verifier's own log. Best effort: kernels before
# 6.4 refuse a program whose log outgrows the buffer, though they accept the program without a log.
walked() {
	bpftool --debug prog loadall "$1" "$PINS-log" 2>&1 | awk -v q="'" '
		/^libbpf: prog .*BEGIN PROG LOAD LOG/ { split($0, part, q); name = part[2] }
		/^processed [0-9]+ insns/ { print name, $2 }' || :
	rm -rf "$PINS-log"
}

verify() {
	local object=$1 pin name info count
	if ! bpftool prog loadall "$object" "$PINS" >"$work/load" 2>&1; then
		tail -n 60 "$work/load" >&2
		die "$object does not load: the verifier's last words are above"
	fi
	: >"$work/walked"
	[[ ${WALKED:-} != 1 ]] || walked "$object" >"$work/walked"
	for pin in "$PINS"/*; do
		name=${pin##*/}
		info=$(bpftool -j prog show pinned "$pin")
		count=$(awk -v name="$name" '$1 == name { n = $2 } END { print n ? n : "-" }' "$work/walked")
		printf '  %-8s %-16s %-24s %8s %8s %10s\n' VERIFY "$(basename "$object")" "$name" \
			"$(number bytes_xlated "$info")" "$(number bytes_jited "$info")" "$count"
	done
	rm -rf "$PINS"
}

[[ $# -gt 0 ]] || die "no object to load: is there any bpf/*.bpf.c?"
[[ $(id -u) == 0 ]] || die "loading BPF programs needs root: sudo make verify"
command -v bpftool >/dev/null || die "bpftool is missing: run make bootstrap"
trap cleanup EXIT
work=$(mktemp -d)
mountpoint -q "$BPFFS" || mount -t bpf bpf "$BPFFS" || die "cannot mount bpffs at $BPFFS: is it a BPF kernel?"

printf '  %-8s %-16s %-24s %8s %8s %10s\n' "" OBJECT PROGRAM XLATED JITED WALKED
for object in "$@"; do
	verify "$object"
done
