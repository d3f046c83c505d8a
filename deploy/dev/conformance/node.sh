#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The first process of a node of the conformance cluster: process 1 in namespaces of its own (pid, mount, UTS), in the
# node's network namespace. When it ends, the kernel ends all others and takes the node's mounts down.
#
#   node.sh NAME DIRECTORY
#
# Inside, /run, /var/lib and /var/log are the node's own: containerd, kubelet and CNI plugins use their usual paths.
set -euo pipefail

name=$1
directory=$2

# Before /proc is the node's own: the process id as the machine counts.
read -r pid _ </proc/self/stat
echo "$name" >/proc/sys/kernel/hostname
mount -t proc proc /proc
mount -t tmpfs run /run
# As on hosts with systemd, among the mounts of this node: pods may ask to see what is mounted later.
mount --make-rshared /
mkdir /run/lock /run/netns
mkdir "$directory/lib" "$directory/log"
mount --bind "$directory/lib" /var/lib
mount --bind "$directory/log" /var/log

echo "$pid" >"$directory/init.new"
mv "$directory/init.new" "$directory/init"
# The shell stays: it reaps what containers leave.
sleep infinity &
wait
