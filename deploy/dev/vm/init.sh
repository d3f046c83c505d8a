#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
#
# The first program of the machine that vm.sh starts: mounts the host's files, read-only below a layer of memory that takes
# what is written, and goes on there with run.sh. vm.sh says by words of the kernel's command line where things are.
# shellcheck shell=dash
set -eu

# The value of one of these words.
option() { busybox sed -n "s|.* $1=\([^ ]*\).*|\1|p" /proc/cmdline; }

busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
# There was no console before, so nothing is open.
exec </dev/console >/dev/console 2>&1
if busybox grep -q weir.probe /proc/cmdline; then
	echo "weir: up"
	busybox poweroff -f
fi
while read -r module; do
	busybox insmod "/modules/$module"
done </modules/order

busybox mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 host /host
busybox mount -t tmpfs -o mode=755 rw /rw
busybox mkdir /rw/upper /rw/work
busybox mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work root /root
modules=$(option weir.modules)
run=$(option weir.run)
busybox mkdir -p "/root/lib/modules/${modules##*/}"
busybox mount --bind "/host$modules" "/root/lib/modules/${modules##*/}"
for directory in proc sys dev; do
	busybox mount --move "/$directory" "/root/$directory"
done
exec busybox switch_root /root /bin/bash "$run"
