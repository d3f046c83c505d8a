#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command as root on Debian's Linux 6.1: in a virtual machine that sees this system's files and changes none.
#
#   deploy/dev/vm.sh COMMAND...
#
# The command has the same working directory and environment, but no input and no network. Its output comes out on stdout
# as it is written, and its exit status is the script's. What it writes is kept in memory and gone with the machine.
# Kernel modules load by themselves or by modprobe. `make bootstrap-vm` brings what is needed.
#
#   WEIR_VM_LIMIT=seconds   after which the machine is stopped, with status 124 (3600)
#   WEIR_VM_MEMORY=MiB      half of it for what the command writes (4096)
#   WEIR_VM_CPUS=number     processors (2)
#   WEIR_VM_ACCEL=kvm|tcg   by hardware, or emulated and 10 to 20 times slower (kvm where it works)
#
# It needs no root; but files that the user may not read cannot be read in there either.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin
readonly LIMIT=${WEIR_VM_LIMIT:-3600}
readonly MEMORY=${WEIR_VM_MEMORY:-4096}
readonly CPUS=${WEIR_VM_CPUS:-2}
# Seconds for a machine that only starts and ends. Where KVM hangs, it is not waited for longer.
readonly PROBE_LIMIT=20
# How much longer than on hardware tests wait for something in an emulated machine.
readonly PATIENCE=10
# What the root file system is made of.
readonly EARLY_MODULES="virtio_pci 9pnet_virtio 9p overlay"
readonly COMMAND_LINE="console=ttyS0 loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${WEIR_CACHE:-${HOME:?HOME is not set: set it, or set WEIR_CACHE}/.cache/weir}/vm

die() {
	echo "vm: $*" >&2
	exit 1
}

# shellcheck disable=SC2317 # The trap calls it.
cleanup() {
	if [[ -n ${machine:-} ]]; then
		kill "$machine" 2>/dev/null || :
		wait "$machine" 2>/dev/null || :
	fi
	[[ -z ${work:-} ]] || rm -rf "$work"
}

# The first file system: a shell, the early modules in their order, and the script that mounts the real one.
initramfs() {
	local root=$work/initramfs module verb path
	mkdir -p "$root"/{bin,dev,proc,sys,host,rw,root,modules}
	cp "$cache/busybox" "$root/bin/busybox"
	cp "$here/vm/init.sh" "$root/init"
	for module in $EARLY_MODULES; do
		modprobe --show-depends --dirname "$cache" --set-version "$release" "$module" || die "the kernel has no module $module"
	done >"$work/modules"
	while read -r verb path; do
		[[ $verb == insmod && ! -e $root/modules/${path##*/} ]] || continue
		cp "$path" "$root/modules"
		echo "${path##*/}" >>"$root/modules/order"
	done <"$work/modules"
	(cd "$root" && find . | cpio --quiet -o -H newc) >"$work/initramfs.cpio"
}

# What the machine's bash runs.
command_file() {
	export -p
	printf 'cd %q || exit 1\n' "$PWD"
	printf 'exec'
	printf ' %q' "$@"
	echo
}

# Starts a machine and waits for its end: boot kvm|tcg SECONDS WORDS_FOR_INIT...
boot() {
	local accel=$1 limit=$2 status=0 output reader options
	shift 2
	# QEMU takes a stdout without a stdin for closed, and cannot open one that is a socket.
	exec {output}> >(exec cat)
	reader=$!
	# shellcheck disable=SC2054 # The commas are QEMU's.
	options=(
		-machine q35 -smp "$CPUS" -m "$MEMORY" -nodefaults -no-user-config -display none -no-reboot
		-kernel "$cache/vmlinuz" -initrd "$work/initramfs.cpio" -append "$COMMAND_LINE $*"
		-virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"
		-device virtio-serial-pci
		-chardev "file,id=output,path=/dev/fd/$output" -device virtserialport,chardev=output,name=output
		-chardev "file,id=status,path=$work/status" -device virtserialport,chardev=status,name=status
		-chardev "file,id=console,path=$work/console" -serial chardev:console)
	case $accel in
	kvm) options+=(-accel kvm -cpu host) ;;
	# Five levels of page tables only cost time.
	tcg) options+=(-accel "tcg,thread=multi,tb-size=1024" -cpu "max,la57=off") ;;
	*) die "WEIR_VM_ACCEL is kvm or tcg, not '$accel'" ;;
	esac
	# Each ends with the one that started it, even if that is killed.
	setpriv --pdeathsig TERM timeout --foreground --kill-after=5 "$limit" \
		setpriv --pdeathsig KILL qemu-system-x86_64 "${options[@]}" </dev/null 2>"$work/errors" &
	machine=$!
	wait "$machine" 2>/dev/null || status=$?
	machine=
	# The rest of the output.
	exec {output}>&-
	wait "$reader" || :
	return "$status"
}

# Says in $accel whether KVM works, where nobody has said it. What was found out is kept until this system starts anew.
find_accelerator() {
	local system
	[[ -z $accel ]] || return 0
	accel=tcg
	[[ -w /dev/kvm ]] || return 0
	system=$(</proc/sys/kernel/random/boot_id)
	if [[ $(head -n 1 "$cache/accelerator" 2>/dev/null) != "$system" ]]; then
		! boot kvm "$PROBE_LIMIT" weir.probe || ! grep -q 'weir: up' "$work/console" || accel=kvm
		printf '%s\n' "$system" "$accel" >"$cache/accelerator"
	fi
	accel=$(tail -n 1 "$cache/accelerator")
}

[[ $# -gt 0 ]] || die "no command: deploy/dev/vm.sh COMMAND..."
release=$(cat "$cache/release" 2>/dev/null) || die "there is no kernel in $cache: run make bootstrap-vm"
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
work=$(mktemp -d)
initramfs
accel=${WEIR_VM_ACCEL:-}
find_accelerator
[[ $accel != tcg ]] || export WEIR_TEST_PATIENCE=${WEIR_TEST_PATIENCE:-$PATIENCE}
command_file "$@" >"$work/command"
status=0
boot "$accel" "$LIMIT" "weir.run=$here/vm/run.sh" "weir.command=$work/command" \
	"weir.modules=$cache/lib/modules/$release" || status=$?
if [[ $status == 124 ]]; then
	echo "vm: stopped after $LIMIT s; WEIR_VM_LIMIT=seconds gives it more" >&2
	exit 124
fi
if [[ $status != 0 || ! -s $work/status ]]; then
	cat "$work/errors" >&2
	tail -n 40 "$work/console" >&2 || :
	die "the machine ended before the command did: above is what its console showed last"
fi
exit "$(cat "$work/status")"
