#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What systemd says of the units of systemd/: that it understands every line of them, and how
# exposed the services of the system are, at most 1.0 of 10, or 1.3 with the network of other
# machines.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${BUILD:-build}")
command -v systemd-analyze >/dev/null || {
    echo "SKIP: no systemd-analyze: tools/setup.sh --lint installs it"
    exit 0
}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_RUNTIME_DIR=$tmp # a manager for users has one

# systemd asks only whether the program of a unit can be executed. `make` does not build dlx-bridge.
mkdir "$tmp/bin"
ln -s "$build/dlpackd" "$build/dlpackd-keeper" "$build/dlxctl" "$tmp/bin"
ln -s "$(type -P true)" "$tmp/bin/dlx-bridge"

for manager in system user; do
    mkdir "$tmp/$manager"
    for unit in systemd/"$manager"/*; do
        sed -e "s|@bindir@|$tmp/bin|g" -e 's|@sysconfdir@|/etc|g' "$unit" \
            >"$tmp/$manager/${unit##*/}"
    done
    # It speaks of other units of this machine, too. An unknown line is only a warning.
    status=0
    systemd-analyze --$manager --man=no --recursive-errors=no verify "$tmp/$manager"/* \
        >"$tmp/said" 2>&1 || status=$?
    if [ $status != 0 ] || grep -E 'dlpackd|dlx-bridge' "$tmp/said" >/dev/null; then
        cat "$tmp/said"
        echo "systemd-analyze verify: units for the $manager manager: status $status"
        exit 1
    fi
done
for service in "$tmp"/system/*.service; do
    tenths=10
    if [ "${service##*/}" = dlx-bridge.service ]; then tenths=13; fi
    systemd-analyze security --offline=yes --no-pager --threshold=$tenths "$service" \
        >"$tmp/said" || {
        grep -v '✓' "$tmp/said"
        exit 1
    }
    tail -n 1 "$tmp/said"
done
