#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The probes of common/probes.h: libdlx.so, a program that is linked with libdlx.a, the Python
# extension and dlpackd have a note for each of theirs, with as many arguments as the header says,
# in forms that libbpf reads, and each is one nop. A build with -DDLX_NO_PROBES has none.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() {
    echo "check_probes: $*"
    exit 1
}
read -ra cc <<<"${CC:-gcc}"
san=()
if [ -n "${SAN:-}" ]; then san=(-fsanitize="$SAN"); fi
if ! echo '#include <sys/sdt.h>' | "${cc[@]}" -E - >/dev/null 2>&1; then
    echo "SKIP: no sys/sdt.h: this build has no probes (tools/setup.sh installs it)"
    exit 0
fi

# PROVIDER NAME N, a line each.
sed -nE 's/.*DLX_PROBE([0-9])\((libdlx|dlpackd), ([a-z]+), .*/\2 \3 \1/p' common/probes.h |
    sort >"$tmp/declared"
[ "$(wc -l <"$tmp/declared")" = 8 ] || fail "common/probes.h declares: $(cat "$tmp/declared")"
while read -r provider name _; do
    grep -qF "| \`$provider:$name\` |" docs/TRACE.md || fail "docs/TRACE.md lacks $provider:$name"
done <"$tmp/declared"

# PROVIDER NAME LOCATION ARGUMENT..., a line for each place of a probe.
notes() {
    readelf -n "$1" 2>/dev/null | awk '
        $1 == "Provider:" { provider = $2 }
        $1 == "Name:" { name = $2 }
        $1 == "Location:" { place = substr($2, 1, length($2) - 1) }
        $1 == "Arguments:" { $1 = ""; print provider, name, place $0 }'
}

# 4@%eax, -4@$2, 8@-16(%rbp): what libbpf 1.1 reads on x86-64. Other machines write other forms.
form='-?[1248]@([$]-?[0-9]+|%[a-z0-9]+|-?[0-9]*[(]%[a-z0-9]+[)])'
n_places=0
check() { # FILE PROVIDER
    notes "$1" >"$tmp/notes"
    awk -v of="$2" '$1 == of { print $1, $2, NF - 3 }' "$tmp/notes" | sort -u >"$tmp/found"
    grep "^$2 " "$tmp/declared" | diff - "$tmp/found" >"$tmp/differs" ||
        fail "$1: the header (<) and the file (>) differ: $(cat "$tmp/differs")"
    while read -r _ name place arguments; do
        end=$(printf '0x%x' $((place + 4)))
        objdump -d --no-show-raw-insn --start-address="$place" --stop-address="$end" "$1" \
            >"$tmp/code"
        awk -F'\t' 'NF == 2 { exit $2 !~ /^nop *$/ }' "$tmp/code" ||
            fail "$1: $name at $place is no nop: $(tail -n 2 "$tmp/code")"
        n_places=$((n_places + 1))
        [ "$(uname -m)" = x86_64 ] || continue
        for argument in $arguments; do
            [[ $argument =~ ^$form$ ]] || fail "$1: libbpf does not read '$argument' of $name"
        done
    done <"$tmp/notes"
}

read -ra pbc < <(pkg-config --libs libprotobuf-c)
cat >"$tmp/static.c" <<'END'
#include <dlx/dlx.h>
int main(void)
{
    struct dlx_client *c;
    struct dlx_publisher *p;
    struct dlx_subscription *s;
    struct dlx_message *m = NULL;
    if (dlx_connect(NULL, &c) < 0 || dlx_publisher_new(c, "t", NULL, &p) < 0 ||
        dlx_subscribe(c, "t", NULL, &s) < 0)
        return 1;
    (void)dlx_publish(p, NULL, NULL, NULL);
    (void)dlx_take(s, 0, &m);
    dlx_message_unref(m);
    return 0;
}
END
"${cc[@]}" "${san[@]}" -Iinclude -o "$tmp/static" "$tmp/static.c" "$build/libdlx.a" "${pbc[@]}" \
    -pthread -Wl,-s
check "$build/libdlx.so" libdlx
check "$tmp/static" libdlx
check "$build/dlpackd" dlpackd
if [ -e "$build/python/dlx/_dlx.abi3.so" ]; then check "$build/python/dlx/_dlx.abi3.so" libdlx; fi

"${cc[@]}" -std=c11 -D_GNU_SOURCE -DDLX_NO_PROBES -Iinclude -I. -I"$build" -O2 -fPIC -c \
    -o "$tmp/without.o" client/publish/publish.c
notes "$tmp/without.o" >"$tmp/notes"
[ ! -s "$tmp/notes" ] || fail "-DDLX_NO_PROBES leaves probes: $(cat "$tmp/notes")"
echo "check_probes: $(wc -l <"$tmp/declared") probes, $n_places places"
