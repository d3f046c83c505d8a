#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Brings what a make verb needs on Debian 12 or later: packages, the API server of the tests, cargo-deny, and for the
# conformance cluster the rest of Kubernetes, CoreDNS and a file system for containers; another kernel for vm.sh.
#
#   deploy/dev/bootstrap.sh [base|test|bench|conformance|deploy|lint|docs|static|package|vm]...      (default: base)
#
# It installs only what is missing; when nothing is, it makes no call to apt and takes a few milliseconds. What it
# builds lies in ${WEIR_CACHE:-~/.cache/weir}. Run it as root or as a user of sudo.
set -euo pipefail

readonly DENY_VERSION=0.20.2
readonly MDBOOK_VERSION=0.5.2
readonly CARGO_DEB_VERSION=3.8.0
# What the pods of the conformance tests run. The DNS tests want glibc, as Debian has it.
readonly IMAGE_SUITE=bookworm
IMAGE_PACKAGES=busybox,ca-certificates,conntrack,curl,dnsutils,iproute2,iptables,netcat-openbsd
readonly IMAGE_PACKAGES+=,nginx-light,procps,wget

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${WEIR_CACHE:-${HOME:?HOME is not set: set it, or set WEIR_CACHE}/.cache/weir}
# Where Debian keeps administrators' commands, which users do not have in their path.
PATH=$PATH:/usr/sbin:/sbin

# What is looked for, and the package that brings it. A path is a file, anything else a command.
readonly BASE="
	clang-19                            clang-19
	llvm-strip-19                       llvm-19
	gcc                                 gcc
	/usr/include/stdio.h                libc6-dev
	/usr/include/linux/bpf.h            linux-libc-dev
	/usr/include/bpf/bpf_helpers.h      libbpf-dev
	/etc/ssl/certs/ca-certificates.crt  ca-certificates
	make                                make
	git                                 git
	curl                                curl
	ps                                  procps
	ip                                  iproute2
	ethtool                             ethtool
	bpftool                             bpftool"
readonly TEST="$BASE
	etcd                                etcd-server
	tcpdump                             tcpdump
	nft                                 nftables
	iptables                            iptables
	groff                               groff-base"
readonly BENCH="$TEST
	wrk                                 wrk
	ab                                  apache2-utils
	hey                                 hey
	iperf3                              iperf3"
readonly CONFORMANCE="$TEST
	containerd                          containerd
	runc                                runc
	/usr/lib/cni/bridge                 containernetworking-plugins
	conntrack                           conntrack
	debootstrap                         debootstrap
	nsenter                             util-linux"
readonly LINT="$BASE
	clang-format-19                     clang-format-19
	shellcheck                          shellcheck"
# Static programs: a C compiler for the parts that are no Rust.
readonly STATIC="$BASE
	musl-gcc                            musl-tools"
# The page is looked at in a real browser.
readonly BROWSER="
	chromium                            chromium
	node                                nodejs
	npm                                 npm"

# A virtual machine with another kernel, and what our own lacks: IPVS.
readonly VM="
	qemu-system-x86_64                  qemu-system-x86
	modprobe                            kmod
	cpio                                cpio
	setpriv                             util-linux
	ipvsadm                             ipvsadm
	ipset                               ipset"

say() { printf '  %-8s %s\n' "$1" "$2"; }

die() {
	echo "bootstrap: $*" >&2
	exit 1
}

# Runs a command whose output matters only when it fails.
quietly() {
	local log
	log=$(mktemp)
	if ! "$@" >"$log" 2>&1 </dev/null; then
		tail -n 30 "$log" >&2
		rm -f "$log"
		return 1
	fi
	rm -f "$log"
}

as_root() {
	if [[ $(id -u) == 0 ]]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "'$*' needs root: run as root or install sudo"
	fi
}

need_rust() {
	command -v cargo >/dev/null ||
		die "cargo is not in PATH: install Rust from https://rustup.rs (under sudo: sudo -E env \"PATH=\$PATH\" make ...)"
}

# Prints the packages that are missing out of a list of pairs.
missing() {
	local wanted package
	while read -r wanted package; do
		[[ -n $wanted ]] || continue
		case $wanted in
		/*) [[ -e $wanted ]] || echo "$package" ;;
		*) command -v "$wanted" >/dev/null || echo "$package" ;;
		esac
	done
}

# Tests start daemons of their own; the package's service would hold a port or run for nothing.
keep_service_off() {
	local when=$1 service=$2
	case $when in
	before) if command -v systemctl >/dev/null; then as_root systemctl mask --quiet "$service.service"; fi ;;
	after) if ! command -v systemctl >/dev/null; then as_root update-rc.d "$service" disable; fi ;;
	*) die "keep_service_off: before or after, not '$when'" ;;
	esac
}

install_packages() {
	local packages package services=() service
	mapfile -t packages < <(missing <<<"$1")
	[[ ${#packages[@]} -gt 0 ]] || return 0
	command -v apt-get >/dev/null || die "this is no Debian: install ${packages[*]} or what your system calls them"
	say APT "${packages[*]}"
	for package in "${packages[@]}"; do
		case $package in
		etcd-server) services+=(etcd) ;;
		containerd) services+=(containerd) ;;
		esac
	done
	for service in "${services[@]}"; do keep_service_off before "$service"; done
	# RUNLEVEL=1 keeps maintainer scripts from starting services where there is no systemd.
	local apt=(env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -q -y -o DPkg::Lock::Timeout=300)
	quietly as_root "${apt[@]}" update || die "apt-get update failed: see above, mend the package sources and try again"
	quietly as_root "${apt[@]}" install --no-install-recommends "${packages[@]}" ||
		die "apt-get could not install ${packages[*]}: see above (Debian 12 or later is needed)"
	for service in "${services[@]}"; do keep_service_off after "$service"; done
	mapfile -t packages < <(missing <<<"$1")
	[[ ${#packages[@]} == 0 ]] || die "installed, but still not found: what ${packages[*]} should bring"
}

# Holds a lock, so that two builds at a time do not write one file.
locked() {
	mkdir -p "$cache/bin"
	exec 9>"$cache/lock"
	flock 9
}

# The version of a module that another module requires.
required() {
	local version
	version=$(awk -v module="$2" '$1 == "require" && $2 == module { print $3 }
		$1 == module && NF == 2 { print $2 }' "$1/go.mod")
	[[ -n $version ]] || die "$1/go.mod does not say which $2 it requires"
	echo "$version"
}

# Builds Go programs into the cache, once for each version: go_programs MODULE_DIRECTORY VERSION NAME=PACKAGE...
# A name with .test is a program of tests.
go_programs() {
	local module=$1 version=$2 program name package verb
	shift 2
	for program in "$@"; do
		name=${program%%=*} package=${program#*=}
		! is_built "$name" "$version" || continue
		command -v go >/dev/null || die "go is not in PATH: install Go 1.21 or later from https://go.dev/dl to build $name"
		locked
		! is_built "$name" "$version" || continue
		say GO "$name $version (some minutes, once)"
		verb=(build)
		[[ $name != *.test ]] || verb=(test -c)
		(cd "$module" && quietly go "${verb[@]}" -trimpath -o "$cache/bin/$name.new" \
			-gcflags=all=-dwarf=false -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" "$package") ||
			die "$name $version does not build: see above"
		mv "$cache/bin/$name.new" "$cache/bin/$name"
		echo "$version" >"$cache/bin/.$name.version"
	done
}

is_built() { [[ -x $cache/bin/$1 && $(cat "$cache/bin/.$1.version" 2>/dev/null) == "$2" ]]; }

# Builds Kubernetes' programs out of the module in tools: NAME is cmd/NAME, NAME=PATH another path in its tree.
need_kubernetes() {
	local version program programs=()
	version=$(required "$here/tools" k8s.io/kubernetes)
	for program in "$@"; do
		case $program in
		*=*) programs+=("${program%%=*}=k8s.io/kubernetes/${program#*=}") ;;
		*) programs+=("$program=k8s.io/kubernetes/cmd/$program") ;;
		esac
	done
	go_programs "$here/tools" "$version" "${programs[@]}"
}

need_ginkgo() {
	local module=github.com/onsi/ginkgo/v2
	go_programs "$here/tools" "$(required "$here/tools" $module)" "ginkgo=$module/ginkgo"
}

need_coredns() {
	local module=github.com/coredns/coredns
	go_programs "$here/coredns" "$(required "$here/coredns" $module)" "coredns=$module"
}

need_helm() {
	local module=helm.sh/helm/v4
	go_programs "$here/helm" "$(required "$here/helm" $module)" "helm=$module/cmd/helm"
}

# promtool out of Debian's Prometheus. The package is only unpacked: installed, it would run a server.
need_promtool() {
	local program=$cache/bin/promtool work
	[[ ! -x $program ]] || return 0
	locked
	[[ ! -x $program ]] || return 0
	say APT "promtool, out of the package prometheus"
	work=$(mktemp -d "$cache/promtool.XXXXXX")
	(
		cd "$work"
		quietly as_root apt-get -q update
		# Its own user may not write to root's cache.
		quietly apt-get -q -o APT::Sandbox::User= download prometheus
		quietly dpkg-deb -x prometheus_*.deb .
	) || die "apt-get could not bring the package prometheus: see above"
	mv "$work/usr/bin/promtool" "$program"
	rm -rf "$work"
}

# The kernel that vm.sh starts.
need_kernel() {
	[[ ! -e $cache/vm ]] || return 0
	locked
	[[ ! -e $cache/vm ]] || return 0
	say APT "the kernel of the virtual machine"
	quietly as_root apt-get -q update || die "apt-get update failed: see above, mend the package sources and try again"
	quietly "$here/vm/kernel.sh" "$cache/vm" || die "there is no kernel for the virtual machine: see above"
}

# The layer that all images of the conformance cluster share: a small Debian with the commands that test pods run.
need_base_layer() {
	local layer=$cache/images/base.tar work
	[[ ! -e $layer ]] || return 0
	locked
	[[ ! -e $layer ]] || return 0
	say IMAGE "base of the test images (a minute, once)"
	mkdir -p "$cache/images"
	work=$(mktemp -d "$cache/images/base.XXXXXX")
	if ! quietly as_root debootstrap --variant=minbase --include="$IMAGE_PACKAGES" "$IMAGE_SUITE" "$work/root" ||
		! (cd "$work/root" && quietly as_root rm -rf var/cache/apt var/lib/apt/lists usr/share/{doc,man,locale,info}) ||
		! as_root tar --numeric-owner --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -C "$work/root" -cf - . \
			>"$work/base.tar"; then
		as_root rm -rf "$work"
		die "the base of the test images cannot be made: see above"
	fi
	mv "$work/base.tar" "$layer"
	as_root rm -rf "$work"
}

deny_is() { [[ "$("$cache/bin/cargo-deny" --version 2>/dev/null)" == "cargo-deny $DENY_VERSION" ]]; }

need_deny() {
	deny_is && return 0
	locked
	deny_is && return 0
	say CARGO "cargo-deny $DENY_VERSION (a minute or two, once)"
	# A check of a second needs no optimised program, which takes twice as long to build.
	quietly env -u CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG=false \
		cargo install --debug --locked --force --no-track --root "$cache" \
		cargo-deny --version "$DENY_VERSION" || die "cargo-deny $DENY_VERSION does not build: see above"
}

mdbook_is() { [[ "$("$cache/bin/mdbook" --version 2>/dev/null)" == "mdbook v$MDBOOK_VERSION" ]]; }

need_mdbook() {
	mdbook_is && return 0
	locked
	mdbook_is && return 0
	say CARGO "mdbook $MDBOOK_VERSION (a minute or two, once)"
	quietly env -u CARGO_TARGET_DIR CARGO_PROFILE_RELEASE_OPT_LEVEL=1 cargo install --locked --force --no-track --root "$cache" \
		mdbook --version "$MDBOOK_VERSION" || die "mdbook $MDBOOK_VERSION does not build: see above"
}

cargo_deb_is() { [[ "$("$cache/bin/cargo-deb" --version 2>/dev/null)" == "cargo-deb $CARGO_DEB_VERSION" ]]; }

need_cargo_deb() {
	cargo_deb_is && return 0
	locked
	cargo_deb_is && return 0
	say CARGO "cargo-deb $CARGO_DEB_VERSION (a minute or two, once)"
	quietly env -u CARGO_TARGET_DIR CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
		cargo install --locked --force --no-track --root "$cache" cargo-deb --version "$CARGO_DEB_VERSION" ||
		die "cargo-deb $CARGO_DEB_VERSION does not build: see above"
}

# Rust's library for programs without a C library of the system's.
need_static_rust() {
	local target
	target=$(uname -m)-unknown-linux-musl
	[[ ! -d $(rustc --print sysroot)/lib/rustlib/$target/lib ]] || return 0
	command -v rustup >/dev/null || die "Rust's library for $target is missing, and there is no rustup to bring it"
	say RUSTUP "$target"
	quietly rustup target add "$target" || die "rustup cannot add the target $target: see above"
}

need_clippy_and_rustfmt() {
	cargo clippy --version >/dev/null 2>&1 || die "cargo clippy is missing: rustup component add clippy"
	cargo fmt --version >/dev/null 2>&1 || die "cargo fmt is missing: rustup component add rustfmt"
}

main() {
	local group
	[[ $# -gt 0 ]] || set -- base
	for group in "$@"; do
		case $group in
		base) install_packages "$BASE" ;;
		test)
			install_packages "$TEST"
			need_kubernetes kube-apiserver kube-proxy kubectl
			;;
		bench)
			install_packages "$BENCH"
			need_kubernetes kube-apiserver kube-proxy
			;;
		conformance)
			install_packages "$CONFORMANCE"
			need_kubernetes kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl kube-proxy e2e.test=test/e2e
			need_ginkgo
			need_helm
			# These run in containers, whose C library is another.
			export CGO_ENABLED=0
			need_kubernetes agnhost=test/images/agnhost regression-issue-74839=test/images/regression-issue-74839
			need_coredns
			need_base_layer
			;;
		# The tests of the deployment that take a whole cluster.
		deploy)
			main test conformance package docs
			install_packages "$BROWSER"
			need_promtool
			;;
		lint)
			install_packages "$LINT"
			need_rust
			need_clippy_and_rustfmt
			need_deny
			;;
		docs)
			install_packages "$BASE"
			need_rust
			need_mdbook
			;;
		static)
			install_packages "$STATIC"
			need_rust
			need_static_rust
			;;
		package)
			main static
			need_cargo_deb
			;;
		vm)
			install_packages "$VM"
			need_kernel
			;;
		*) die "unknown group '$group': base, test, bench, conformance, deploy, lint, docs, static, package or vm" ;;
		esac
		need_rust
	done
}

main "$@"
