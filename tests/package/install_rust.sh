#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What `make install-rust` puts somewhere: the programs run, dlxctl finds them, the unit names them,
# and the licences of what they contain are there. Each file is in one Debian package, and `make
# uninstall` takes all of them away. tools/check-rust runs it, on the programs of the tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
fail() {
    echo "install_rust: $*" >&2
    exit 1
}
# As debian/rules has it.
make=(make --no-print-directory RUST_BUILT=1 RUST_PROFILE=dev "DESTDIR=$top" PREFIX=/usr
    SYSTEMUNITDIR=/lib/systemd/system)
"${make[@]}" install-rust >"$top/said" 2>&1 || fail "$(cat "$top/said")"
rm "$top/said"

version=$(sed -n 's/^VERSION := //p' Makefile)
cp "$DLX_BUILD/dlxctl" "$top/usr/bin/"
for name in record play bridge; do
    said=$(LD_LIBRARY_PATH=$DLX_BUILD "$top/usr/bin/dlxctl" $name --version)
    [ "$said" = "dlx-$name $version" ] || fail "dlxctl $name --version prints '$said'"
done
rm "$top/usr/bin/dlxctl"
unit=$top/lib/systemd/system/dlx-bridge.service
grep -qx 'ExecStart=/usr/bin/dlx-bridge --config=/etc/dlx-bridge/bridge.toml' "$unit" ||
    fail "the unit has $(grep ExecStart "$unit")"
for package in record bridge; do
    for crate in $([ $package = bridge ] && echo zenoh || echo mcap zstd-sys) libc; do
        grep -qE "^  $crate [0-9]" "$top/usr/share/doc/dlx-$package/LICENCES" ||
            fail "the licences of dlx-$package lack $crate"
    done
done

n_files=0
while read -r file; do
    n_files=$((n_files + 1))
    packages=()
    for list in debian/*.install; do
        package=${list##*/}
        while read -r pattern; do
            # shellcheck disable=SC2053 # it is a pattern
            if [[ $file == $pattern || $file == $pattern/* ]]; then
                packages+=("${package%.install}")
            fi
        done <"$list"
    done
    [ "${#packages[@]}" = 1 ] || fail "$file is in the packages: ${packages[*]:-none}"
done < <(cd "$top" && find . -type f -printf '%P\n')
while read -r pattern; do
    [ -e "$top/$pattern" ] || fail "a package has $pattern, which is not installed"
done < <(cat debian/dlx-{bridge,record}.install)

"${make[@]}" uninstall >/dev/null 2>&1
left=$(find "$top" -type f -o -type d -name "dlx-*")
[ -z "$left" ] || fail "left are $left"
echo "install_rust: $n_files files, each in one package"
