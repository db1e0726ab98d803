#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The conformance suite can fail: each line of `mutants` is a wrong adapter, which the named case
# finds and describes. An adapter that sed leaves as it is passes.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${BUILD:-build}")

# run_wrong COMMANDS ANSWERS OPTION...: the suite with this adapter
run_wrong() {
    local command
    command=$(printf '%q ' tests/conformance/wrong "$1" "$2" "$build/tests/conformance/c")
    tests/conformance/run "${@:3}" "wrong=$command"
}

n=0 n_missed=0
said=$(mktemp)
trap 'rm -f "$said"' EXIT
run_wrong '' '' >"$said" || {
    cat "$said"
    exit 1
}
cat "$said"
while IFS='|' read -r name commands answers words; do
    case $name in '' | '#'*) continue ;; esac
    n=$((n + 1))
    case $words in
    "no answer within") patience=2 ;;
    # What is asked for again and again.
    "expected: ok topic=u"* | "expected: ok publisher:"*) patience=10 ;;
    *) patience=60 ;;
    esac
    if run_wrong "$commands" "$answers" --only "$name" --patience "$patience" >"$said" ||
        ! grep -F "case $name," "$said" >/dev/null || ! grep -F -- "$words" "$said" >/dev/null; then
        n_missed=$((n_missed + 1))
        echo "not caught, or in other words: $name|$commands|$answers|$words"
        cat "$said"
    fi
done <tests/conformance/mutants
echo "$((n - n_missed)) of $n wrong adapters are caught"
[ "$n" -ge 20 ] && [ "$n_missed" = 0 ]
