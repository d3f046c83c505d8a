#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The second program of the machine that vm.sh starts, on the host's files: mounts what a running system has, runs the
# command, tells its exit status and switches off.
set -u
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# The device of a port that vm.sh has named. There is no udev to link it by its name.
port() {
	local name
	for name in /sys/class/virtio-ports/*/name; do
		[[ $(<"$name") != "$1" ]] || echo "/dev/$(basename "${name%/name}")"
	done
}

switch_off() {
	echo o >/proc/sysrq-trigger
	sleep infinity
}

mount -t tmpfs -o mode=755 run /run
mkdir /run/lock /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf -o mode=700 bpf /sys/fs/bpf
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
ip link set lo up
# These nobody asks for: the ports, and settings that a node has from the start.
modprobe -a virtio_console nf_conntrack br_netfilter
output=$(port output)
status=$(port status)
[[ -c $output && -c $status ]] || switch_off
bash "$(sed -n 's|.* weir.command=\([^ ]*\).*|\1|p' /proc/cmdline)" >"$output" 2>&1 </dev/null
echo $? >"$status"
switch_off
