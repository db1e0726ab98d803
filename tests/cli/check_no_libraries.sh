#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A dlxctl without libzip, ncurses, libmicrohttpd, libpng, chafa and libbpf, as the wheel has it: no
# help names .npz, what dlxctl says of a zip archive names PyTorch's files, too, `dlxctl top` has no
# screen, `dlxctl serve` and `dlxctl trace` say what is missing, and `dlxctl view` draws by
# characters.
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
    echo "check_no_libraries: $*"
    exit 1
}
read -ra flags < <(pkg-config --cflags --libs jansson)
mapfile -t sources < <(printf '%s\n' cli/*.c | grep -v '\.bpf\.c$')
"${CC:-cc}" -std=gnu11 -D_GNU_SOURCE -DDLX_NO_ZIP -DDLX_NO_NCURSES -DDLX_NO_MICROHTTPD \
    -DDLX_NO_PNG -DDLX_NO_CHAFA -DDLX_NO_BPF -DDLX_VERSION_STRING='"0"' -I. -Iinclude -I"$build" \
    -o "$tmp/dlxctl" "${sources[@]}" "$build/libdlx.so" "-Wl,-rpath,$build" "${flags[@]}" -lm

mapfile -t commands < <(sed -nE 's/^ *\{"([a-z-]+)", cmd_.*/\1/p' cli/main.c)
[ "${#commands[@]}" -ge 10 ] || fail "${#commands[@]} commands in cli/main.c"
for command in '' "${commands[@]}"; do
    # shellcheck disable=SC2086 # no command is no word
    "$tmp/dlxctl" $command --help >"$tmp/help"
    if grep -n npz "$tmp/help"; then fail "the help of '$command' has .npz"; fi
done
"$tmp/dlxctl" save topic file.png >"$tmp/said" 2>&1 && fail "file.png is saved"
grep -qF 'it must end in .npy or .safetensors, or' "$tmp/said" || fail "$(cat "$tmp/said")"

"$tmp/dlxctl" --version >"$tmp/said"
lacks='libzip (.npz), ncurses (the screen of top), libmicrohttpd (serve)'
lacks+=', libbpf (trace), libpng (pictures of serve), chafa (the graphics of view)'
grep -qFx "built without $lacks" "$tmp/said" ||
    fail "$(cat "$tmp/said")"

export DLX_SOCKET=$tmp/s DLX_AUTOSPAWN=no
"$build/dlpackd" --socket "$DLX_SOCKET" --ready-fd 3 3>"$tmp/ready" 2>"$tmp/log" &
daemon=$!
trap 'kill "$daemon" || true; wait "$daemon" || true; rm -rf "$tmp"' EXIT
until [ -s "$tmp/ready" ]; do kill -0 "$daemon" || fail "dlpackd: $(cat "$tmp/log")"; done
"$tmp/dlxctl" pub topic tests/data/npz/reference.npz >"$tmp/said" 2>&1 && fail ".npz is published"
grep -qF "reference.npz: is a zip archive, as .npz and PyTorch's .pt files are" "$tmp/said" ||
    fail "$(cat "$tmp/said")"
"$tmp/dlxctl" top --once --interval 10ms >"$tmp/said" || fail "top --once: $(cat "$tmp/said")"
"$tmp/dlxctl" top >"$tmp/said" 2>&1 && fail "there is a screen"
grep -qF 'this dlxctl was built without ncurses' "$tmp/said" || fail "$(cat "$tmp/said")"
"$tmp/dlxctl" serve --listen 127.0.0.1:0 >"$tmp/said" 2>&1 && fail "metrics are served"
grep -qF 'this dlxctl was built without libmicrohttpd' "$tmp/said" || fail "$(cat "$tmp/said")"
"$tmp/dlxctl" pub picture --retain=1 --dtype=uint8 --shape=2,2 - < <(printf '\0\377\0\377') ||
    fail "pub picture"
"$tmp/dlxctl" view --once picture >"$tmp/said" || fail "view: $(cat "$tmp/said")"
grep -qxE ' {20,}@{20,}' "$tmp/said" || fail "$(cat "$tmp/said")"
"$tmp/dlxctl" view --once --graphics=blocks picture >"$tmp/said" 2>&1 && fail "blocks are drawn"
grep -qF 'this dlxctl was built without chafa' "$tmp/said" || fail "$(cat "$tmp/said")"
"$tmp/dlxctl" trace >"$tmp/said" 2>&1 && fail "there are traces"
grep -qF 'this dlxctl was built without libbpf, clang or bpftool' "$tmp/said" ||
    fail "$(cat "$tmp/said")"
echo "check_no_libraries: the help of ${#commands[@]} commands"
