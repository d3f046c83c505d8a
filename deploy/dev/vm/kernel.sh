#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Unpacks Debian's kernel, its modules and a shell for vm.sh, without installing any of it. bootstrap.sh calls it.
#
#   deploy/dev/vm/kernel.sh DIRECTORY      it is made when everything is in it
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin
# The oldest Linux that we promise to run on.
readonly SERIES=6.1
# Two thirds of the modules are for hardware that the machine does not have.
readonly LEFT_OUT="sound drivers/gpu drivers/infiniband drivers/media drivers/staging"

directory=$1

die() {
	echo "kernel: $*" >&2
	exit 1
}

[[ $(uname -m) == x86_64 ]] || die "the virtual machine is for x86_64, and this is $(uname -m)"
package=$(apt-cache --names-only search "^linux-image-${SERIES//./\\.}\\.[0-9-]*-amd64\$" | cut -d ' ' -f 1 | sort -V | tail -n 1)
[[ -n $package ]] || die "no package has Linux $SERIES: add Debian 12 (bookworm) to the package sources"
release=${package#linux-image-}

mkdir -p "$(dirname "$directory")"
work=$(mktemp -d "$directory.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/vm"
cd "$work"
# Its own user may not write to root's cache.
apt-get -q -o APT::Sandbox::User= download "$package" busybox-static
for archive in *.deb; do dpkg-deb -x "$archive" .; done
mv "boot/vmlinuz-$release" vm/vmlinuz
mv bin/busybox lib vm
for modules in $LEFT_OUT; do rm -rf "vm/lib/modules/$release/kernel/$modules"; done
depmod --basedir vm "$release"
echo "$release" >vm/release
mv vm "$directory"
