#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# include/dlpack/dlpack.h against the real dlpack.h that the PyPI package apache-tvm-ffi installs:
# sizes, offsets, enumerators, macros, prototypes, as C11 and as C++17, each header in programs of
# its own. Then the test is tested: altered copies of our header have to be caught.
#
#   CC, CXX_FOR_HEADERS    the compilers (gcc, g++)
#   DLPACK_INCLUDEDIR      a folder with the real dlpack/dlpack.h, instead of build/venv's
#   DLX_REQUIRE_ABI=1      fail, rather than skip, without a real header
set -euo pipefail
cd "$(dirname "$0")/../.."
read -ra cc <<<"${CC:-gcc}"
cxx=(g++)
case ${cc[0]} in *clang*) cxx=("${cc[0]/clang/clang++}") ;; esac

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# facts <include folder> <output>: what the header there says, first to C, then to C++
facts() {
    "${cc[@]}" -std=c11 -Wall -Wextra -Werror -I"$1" -o "$tmp/prog" \
        tests/package/abi/dlpack_facts.c || return
    { echo "C11" && "$tmp/prog"; } >"$2" || return
    "${cxx[@]}" -x c++ -std=c++17 -Wall -Wextra -Werror -I"$1" -o "$tmp/prog" \
        tests/package/abi/dlpack_facts.c || return
    { echo "C++17" && "$tmp/prog"; } >>"$2"
}

# names <include folder>: every enumerator, macro and typedef the header brings, to notice what the
# facts do not list
names() {
    printf '#include <dlpack/dlpack.h>\n' >"$tmp/names.c"
    {
        "${cc[@]}" -E -P -I"$1" "$tmp/names.c" | grep -oE '\b(kDL|DL[A-Z])[A-Za-z0-9_]*\b'
        "${cc[@]}" -E -dM -I"$1" "$tmp/names.c" | grep -oE '\bDLPACK_[A-Z_]+\b'
    } | sort -u
}

real=${DLPACK_INCLUDEDIR:-}
if [ -z "$real" ] && [ -x build/venv/bin/python ]; then
    real=$(build/venv/bin/python -m tvm_ffi.config --dlpack-includedir 2>/dev/null || true)
fi
if [ -z "$real" ] || [ ! -f "$real/dlpack/dlpack.h" ]; then
    echo "SKIP: no real dlpack.h (build/venv has no apache-tvm-ffi; tools/setup.sh installs it)"
    [ -z "${DLX_REQUIRE_ABI:-}" ] && exit 0 || exit 1
fi
if cmp -s include/dlpack/dlpack.h "$real/dlpack/dlpack.h"; then
    echo "the 'real' header is ours: nothing would be compared" >&2
    exit 1
fi

facts include "$tmp/ours"
facts "$real" "$tmp/real"
diff -u "$tmp/real" "$tmp/ours" || {
    echo "include/dlpack/dlpack.h differs from $real/dlpack/dlpack.h" >&2
    exit 1
}
names include >"$tmp/names.ours"
names "$real" >"$tmp/names.real"
diff -u "$tmp/names.real" "$tmp/names.ours" || {
    echo "include/dlpack/dlpack.h has other names than $real/dlpack/dlpack.h" >&2
    exit 1
}
n_facts=$(wc -l <"$tmp/ours")
[ "$n_facts" -gt 180 ] || {
    echo "only $n_facts facts compared" >&2
    exit 1
}

# Altered copies: `description|sed expression`. Each has to change what is printed, or not to
# compile.
n_caught=0
while IFS='|' read -r what expression; do
    [ -n "$what" ] || continue
    rm -rf "$tmp/bad" && mkdir -p "$tmp/bad/dlpack"
    sed -E "$expression" include/dlpack/dlpack.h >"$tmp/bad/dlpack/dlpack.h"
    if cmp -s include/dlpack/dlpack.h "$tmp/bad/dlpack/dlpack.h"; then
        echo "alteration '$what' changes nothing: mend the script" >&2
        exit 1
    fi
    if facts "$tmp/bad" "$tmp/altered" >/dev/null 2>&1 &&
        diff -q "$tmp/real" "$tmp/altered" >/dev/null &&
        diff -q <(names "$tmp/bad") "$tmp/names.real" >/dev/null; then
        echo "not caught: $what" >&2
        exit 1
    fi
    n_caught=$((n_caught + 1))
done <<'LIST'
an enumerator's value|s/kDLROCM = 10,/kDLROCM = 11,/
a device is missing|/kDLTrn = 18/d
a device is new|s/kDLTrn = 18,/kDLTrn = 18, kDLNew = 19,/
a type code|s/kDLBool = 6U/kDLBool = 7U/
a flag's bit|s/(READ_ONLY) \(1UL << 0UL\)/\1 (1UL << 3UL)/
a flag's width|s/(IS_COPIED) \(1UL << 1UL\)/\1 (1U << 1U)/
the minor version|s/(DLPACK_MINOR_VERSION) 3/\1 2/
fields swapped|s/uint64_t flags;/DLTensor dl_tensor;/;s/^ +DLTensor dl_tensor;$/    uint64_t flags;/
a field's width|s/int32_t ndim/int64_t ndim/
a field's sign|s/int32_t ndim/uint32_t ndim/
a field's name|s/byte_offset;/offset_bytes;/
a pointee|s/int64_t \*strides/int32_t *strides/
lanes narrower|s/uint16_t lanes/uint8_t lanes/
a function's argument|s/void \*py_object, DLTensor \*out/void *py_object, DLTensor **out/
two functions swapped|s/DLPackManaged\w+NoSync( managed_tensor_to)/DLPackCurrentWorkStream\1/
the include guard|s/DLPACK_DLPACK_H_/OTHER_GUARD_H_/
LIST
[ "$n_caught" -eq 16 ]
echo "$n_facts facts and $(wc -l <"$tmp/names.ours") names equal, $n_caught alterations caught"
