# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# For scripts that source this in the root folder of the project: a folder $tmp, the socket of a
# daemon in it, and programs in the background, all of which end with the script.
#
#   skip WORDS         ends the script, which counts as skipped
#   needs LIBRARY      skips it if dlxctl was built without this library
#   processes+=(PID)   the process ends with the script
#   fail WORDS         ends the script, which has failed, and shows what programs have said: show()
#   eventually COMMAND...   runs it until it succeeds, for 30 s at most
build=${BUILD:-$PWD/build}
skip() {
    echo "SKIP: $*"
    exit 77
}
if [ -n "${VALGRIND:-}" ]; then skip "valgrind is for programs that tests start, not a shell"; fi
needs() {
    if "$build/dlxctl" --version | grep -- "$1" >/dev/null; then
        skip "dlxctl was built without $1 (tools/setup.sh installs what it needs)"
    fi
}
tmp=$(mktemp -d)
export DLX_SOCKET=$tmp/s DLX_AUTOSPAWN=no
processes=()
clean() {
    [ ${#processes[@]} -eq 0 ] || kill "${processes[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$tmp"
}
trap clean EXIT
show() { tail -n 40 "$tmp"/*.said 2>/dev/null || true; }
fail() {
    echo "$(basename "$0" .sh): $*"
    show
    exit 1
}
eventually() {
    local end=$((SECONDS + 30))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || fail "not within 30 s: $*"
        sleep 0.05 # lint-allow: sleep: before the next look
    done
}
