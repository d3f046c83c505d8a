#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Brings what a make verb needs on Debian 12 or later: packages, the API server of the tests, cargo-deny.
#
#   deploy/dev/bootstrap.sh [base|test|bench|lint]...      (default: base)
#
# It installs only what is missing; when nothing is, it makes no call to apt and takes a few milliseconds. What it builds
# lies in ${WEIR_CACHE:-~/.cache/weir}/bin. Run it as root or as a user of sudo.
set -euo pipefail

readonly DENY_VERSION=0.20.2

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
	tcpdump                             tcpdump"
readonly BENCH="$TEST
	nft                                 nftables
	wrk                                 wrk"
readonly LINT="$BASE
	clang-format-19                     clang-format-19
	shellcheck                          shellcheck"

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

# Tests start an etcd of their own; the package's service would hold the port and run for nothing.
keep_etcd_service_off() {
	case $1 in
	before) if command -v systemctl >/dev/null; then as_root systemctl mask --quiet etcd.service; fi ;;
	after) if ! command -v systemctl >/dev/null; then as_root update-rc.d etcd disable; fi ;;
	*) die "keep_etcd_service_off: before or after, not '$1'" ;;
	esac
}

install_packages() {
	local packages etcd=false
	mapfile -t packages < <(missing <<<"$1")
	[[ ${#packages[@]} -gt 0 ]] || return 0
	command -v apt-get >/dev/null || die "this is no Debian: install ${packages[*]} or what your system calls them"
	say APT "${packages[*]}"
	case " ${packages[*]} " in *" etcd-server "*) etcd=true ;; esac
	if $etcd; then keep_etcd_service_off before; fi
	# RUNLEVEL=1 keeps maintainer scripts from starting services where there is no systemd.
	local apt=(env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -q -y -o DPkg::Lock::Timeout=300)
	quietly as_root "${apt[@]}" update || die "apt-get update failed: see above, mend the package sources and try again"
	quietly as_root "${apt[@]}" install --no-install-recommends "${packages[@]}" ||
		die "apt-get could not install ${packages[*]}: see above (Debian 12 or later is needed)"
	if $etcd; then keep_etcd_service_off after; fi
	mapfile -t packages < <(missing <<<"$1")
	[[ ${#packages[@]} == 0 ]] || die "installed, but still not found: what ${packages[*]} should bring"
}

# Holds a lock, so that two builds at a time do not write one file.
locked() {
	mkdir -p "$cache/bin"
	exec 9>"$cache/lock"
	flock 9
}

apiserver_is() { [[ "$("$cache/bin/kube-apiserver" --version 2>/dev/null)" == "Kubernetes $1" ]]; }

need_apiserver() {
	local version output
	version=$(awk '$1 == "require" && $2 == "k8s.io/kubernetes" { print $3 }' "$here/tools/go.mod")
	[[ -n $version ]] || die "$here/tools/go.mod does not say which k8s.io/kubernetes it requires"
	apiserver_is "$version" && return 0
	command -v go >/dev/null || die "go is not in PATH: install Go 1.21 or later from https://go.dev/dl to build kube-apiserver"
	locked
	apiserver_is "$version" && return 0
	say GO "kube-apiserver $version (some minutes, once)"
	output=$cache/bin/kube-apiserver.new
	(cd "$here/tools" && quietly go build -trimpath -o "$output" \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" k8s.io/kubernetes/cmd/kube-apiserver) ||
		die "kube-apiserver $version does not build: see above"
	mv "$output" "$cache/bin/kube-apiserver"
}

deny_is() { [[ "$("$cache/bin/cargo-deny" --version 2>/dev/null)" == "cargo-deny $DENY_VERSION" ]]; }

need_deny() {
	deny_is && return 0
	locked
	deny_is && return 0
	say CARGO "cargo-deny $DENY_VERSION (a minute or two, once)"
	# Its own profile optimises for minutes of link time; a check that takes a second does not need it.
	quietly env -u CARGO_TARGET_DIR CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
		CARGO_PROFILE_RELEASE_OPT_LEVEL=1 cargo install --locked --force --no-track --root "$cache" \
		cargo-deny --version "$DENY_VERSION" || die "cargo-deny $DENY_VERSION does not build: see above"
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
			need_apiserver
			;;
		bench)
			install_packages "$BENCH"
			need_apiserver
			;;
		lint)
			install_packages "$LINT"
			need_rust
			need_clippy_and_rustfmt
			need_deny
			;;
		*) die "unknown group '$group': base, test, bench or lint" ;;
		esac
		need_rust
	done
}

main "$@"
