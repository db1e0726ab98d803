#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A dlxctl without libzip, as the wheel has it: no help names .npz, and what dlxctl says of a zip
# archive names PyTorch's files, too.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${BUILD:-$PWD/build}
if [ -n "${SAN:-}" ]; then
    echo "SKIP: the library of this build needs a sanitizer"
    exit 0
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() {
    echo "check_no_zip: $*"
    exit 1
}
read -ra flags < <(pkg-config --cflags --libs jansson)
"${CC:-cc}" -std=gnu11 -D_GNU_SOURCE -DDLX_NO_ZIP -DDLX_VERSION_STRING='"0"' -I. -Iinclude \
    -o "$tmp/dlxctl" cli/*.c "$build/libdlx.so" "-Wl,-rpath,$build" "${flags[@]}" -lm

mapfile -t commands < <(sed -nE 's/^ *\{"([a-z-]+)", cmd_.*/\1/p' cli/main.c)
[ "${#commands[@]}" -ge 10 ] || fail "${#commands[@]} commands in cli/main.c"
for command in '' "${commands[@]}"; do
    # shellcheck disable=SC2086 # no command is no word
    "$tmp/dlxctl" $command --help >"$tmp/help"
    if grep -n npz "$tmp/help"; then fail "the help of '$command' has .npz"; fi
done
"$tmp/dlxctl" save topic file.png >"$tmp/said" 2>&1 && fail "file.png is saved"
grep -qF 'it must end in .npy or .safetensors, or' "$tmp/said" || fail "$(cat "$tmp/said")"

export DLX_SOCKET=$tmp/s DLX_AUTOSPAWN=no
"$build/dlpackd" --socket "$DLX_SOCKET" --ready-fd 3 3>"$tmp/ready" 2>"$tmp/log" &
daemon=$!
trap 'kill "$daemon" || true; wait "$daemon" || true; rm -rf "$tmp"' EXIT
until [ -s "$tmp/ready" ]; do kill -0 "$daemon" || fail "dlpackd: $(cat "$tmp/log")"; done
"$tmp/dlxctl" pub topic tests/data/npz/reference.npz >"$tmp/said" 2>&1 && fail ".npz is published"
grep -qF "reference.npz: is a zip archive, as .npz and PyTorch's .pt files are" "$tmp/said" ||
    fail "$(cat "$tmp/said")"
echo "check_no_zip: the help of ${#commands[@]} commands"
