#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs cargo test with the given arguments and sums up: passed, failed, ignored, and what was skipped and why.
#
#   deploy/dev/test.sh --workspace | -p PACKAGE [-- FILTER]
#
# A test that cannot run prints a line that starts with "SKIPPED:". cargo hides the output of tests that pass, so it is
# asked for here, counted, and left out of what people see. All of it is in target/test.log; V=1 shows it as it comes.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
log=target/test.log
mkdir -p target

packages=()
while [[ $# -gt 0 && $1 != -- ]]; do
	packages+=("$1")
	shift
done
[[ $# == 0 ]] || shift

# Leaves suites, failures and their output; drops the tests that passed and what they printed.
brief() {
	sed -u -E \
		-e '/^successes:$/,/^(failures:$|test result:)/d' \
		-e '/^(running [0-9]+ tests?|test .* \.\.\. (ok|ignored.*)|test result: ok.*)$/d' \
		-e '/^ +Finished /d; /^$/d' \
		-e 's|^ +Running (unittests )?([^ ]+) \(.*/(.*)-[0-9a-f]+\)|  TEST     \3 (\2)|' \
		-e 's/^ +Doc-tests (.*)/  TEST     \1 (documentation)/'
}

show() { if [[ ${V:-} == 1 ]]; then cat; else brief; fi; }

printf '  %-8s %s\n' CARGO "tests of ${packages[*]}"
quiet=(--quiet)
[[ ${V:-} != 1 ]] || quiet=()
cargo test "${quiet[@]}" --no-fail-fast --no-run "${packages[@]}"

# Tests wait for agents, API servers and clocks for much of their time.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) + 1))}
status=0
cargo test --no-fail-fast "${packages[@]}" -- --show-output "$@" 2>&1 </dev/null | tee "$log" | show || status=$?

read -r passed failed ignored < <(awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
	END { print passed + 0, failed + 0, ignored + 0 }' "$log")
skipped=$(grep -c 'SKIPPED: ' "$log" || :)
echo
if [[ $skipped -gt 0 ]]; then
	echo "  skipped:"
	sed -n 's/.*SKIPPED: /    /p' "$log" | sort | uniq -c | sed -E 's/^ *([0-9]+) +(.*)/    \1 x \2/'
fi
[[ $ignored == 0 ]] || echo "  $ignored take minutes and are run by name (#[ignore])"
[[ $status == 0 ]] || echo "  failed: the whole output is in $log" >&2
echo "$passed passed, $failed failed, $skipped skipped"
exit "$status"
