#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The demo: a camera films photographs, a preprocessor makes batches of its frames, a consumer takes
# the batches and draws them, and a viewer looks at the frames on its own: four processes and a
# daemon, about ten seconds. Writes build/demo/*.png and prints rates, latencies and bytes copied.
#
#   BUILD          build folder with dlpackd and examples/ (build)
#   DEMO_SECONDS   length of the film (8)
#   PHOTOS         folder with JPEG or PNG photographs to use instead of scikit-image's
#
# Ends with a status other than 0 when anything is wrong: a process that failed, no frames, a
# payload that was copied.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
build=${BUILD:-$root/build}
out=$build/demo
seconds=${DEMO_SECONDS:-8}
pids=()
tmp=

say() { printf '%s\n' "$*"; }
fail() {
    printf 'demo: %s\n' "$*" >&2
    exit 1
}

clean_up() {
    local pid
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    for pid in "${pids[@]}"; do
        wait "$pid" 2>/dev/null || true
    done
    if [ -n "$tmp" ]; then
        rm -rf "$tmp"
    fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# -- photographs: scikit-image's wheel carries some; only the pictures are taken out of it ---------
find_pip() {
    if python3 -m pip --version >/dev/null 2>&1; then
        pip=(python3 -m pip)
        return
    fi
    if [ ! -x "$root/build/venv/bin/pip" ]; then
        python3 -m venv "$root/build/venv" ||
            fail "needs pip or python3-venv to fetch photographs; or set PHOTOS to a folder of them"
    fi
    pip=("$root/build/venv/bin/pip")
}

fetch_photos() {
    local names=(rocket.jpg astronaut.png coffee.png chelsea.png motorcycle_left.png
        hubble_deep_field.jpg)
    local cache=$root/build/cache/photos name
    photos=()
    for name in "${names[@]}"; do
        photos+=("$cache/$name")
    done
    if [ -f "$cache/.complete" ]; then
        return
    fi
    find_pip
    say "fetching photographs (the scikit-image package, once)"
    mkdir -p "$cache"
    "${pip[@]}" download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$tmp/wheel" scikit-image ||
        fail "could not download scikit-image; set PHOTOS to a folder of JPEG or PNG photographs"
    python3 - "$tmp/wheel" "$cache" "${names[@]}" <<'EOF'
import pathlib, sys, zipfile
wheel_dir, target, *names = sys.argv[1:]
with zipfile.ZipFile(next(pathlib.Path(wheel_dir).glob("*.whl"))) as wheel:
    for name in names:
        pathlib.Path(target, name).write_bytes(wheel.read("skimage/data/" + name))
EOF
    : >"$cache/.complete"
}

own_photos() {
    local file
    photos=()
    for file in "$PHOTOS"/*.jpg "$PHOTOS"/*.jpeg "$PHOTOS"/*.png; do
        if [ -f "$file" ]; then
            photos+=("$file")
        fi
    done
    [ ${#photos[@]} -gt 0 ] || fail "no .jpg, .jpeg or .png in $PHOTOS"
}

start_daemon() {
    export DLX_SOCKET=$tmp/dlpackd.sock
    "$build/dlpackd" --foreground --socket "$DLX_SOCKET" >"$out/dlpackd.log" 2>&1 &
    pids+=($!)
    local i
    for ((i = 0; i < 100; i++)); do
        if "$build/dlxctl" ls >/dev/null 2>&1; then # the file is there before dlpackd listens
            return
        fi
        kill -0 "${pids[0]}" 2>/dev/null || break
        sleep 0.05
    done
    cat "$out/dlpackd.log" >&2
    fail "dlpackd did not start"
}

start() {
    local name=$1
    shift
    timeout $((seconds + 45)) "$build/examples/$name" "$@" >"$out/$name.log" 2>&1 &
    pids+=($!)
    started[$!]=$name
}

wait_for_all() {
    local pid failed=
    for pid in "${!started[@]}"; do
        if ! wait "$pid"; then
            failed+=" ${started[$pid]}"
            cat "$out/${started[$pid]}.log" >&2
        fi
    done
    started=()
    [ -z "$failed" ] || fail "failed:$failed"
}

# value KEY PROGRAM: what the program reported
value() { awk -F= -v key="$1" '$1 == key { print $2 }' "$out/$2.txt"; }

row() {
    printf '  %-30s %8s %8s %10s %10s %6s %8s\n' "$1" "$(value taken "$2")" \
        "$(value take_rate "$2")" "$(value latency_p50_us "$2")" "$(value latency_p99_us "$2")" \
        "$(value lost "$2")" "$(value skipped "$2")"
}

report() {
    local mb
    mb=$(awk -F= '$1 == "published_bytes" { n += $2 } END { printf "%.0f", n / 1e6 }' \
        "$out/camera.txt" "$out/preprocess.txt")
    copied=$(awk -F= '$1 == "copied_bytes" { n += $2 } END { printf "%.0f", n }' \
        "$out/camera.txt" "$out/preprocess.txt")
    say
    printf '  %-30s %8s %8s %10s %10s %6s %8s\n' 'from publish to take' messages per_s p50_us \
        p99_us \
        lost skipped
    row 'camera -> preprocess' preprocess
    row 'camera -> viewer (latest only)' viewer
    row 'preprocess -> consume' consume
    say
    say "  payload published   $mb MB: $(value published camera) frames," \
        "$(value published preprocess) batches of 4"
    say "  payload copied      $copied bytes"
    say "  measured            $(value images consume) images; brightest in batch" \
        "$(value brightest_batch consume), most edges in batch $(value most_edges_batch consume)"
    say "  pictures            ${out#"$PWD"/}/batches.png  (what the consumer received)"
    say "                      ${out#"$PWD"/}/frame.png    (what the viewer saw)"
}

check_report() {
    [ "$copied" = 0 ] || fail "$copied bytes of payload were copied: should be 0"
    [ "$(value published camera)" -ge $((seconds * 30)) ] || fail "the camera stopped early"
    [ "$(value taken preprocess)" -gt 0 ] || fail "no frame came to the preprocessor"
    [ "$(value taken viewer)" -gt 0 ] || fail "no frame came to the viewer"
    [ "$(value taken consume)" -gt 0 ] || fail "no batch came to the consumer"
    [ -s "$out/batches.png" ] || fail "batches.png is missing"
    [ -s "$out/frame.png" ] || fail "frame.png is missing"
}

declare -A started=()
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dlx-demo.XXXXXX")
rm -rf "$out"
mkdir -p "$out"
if [ -n "${PHOTOS:-}" ]; then
    own_photos
else
    fetch_photos
fi
start_daemon

start hello_subscribe
start hello_publish
wait_for_all
[ "$(cat "$out/hello_subscribe.log")" = "2 x 3: 0.0 0.5 1.0 1.5 2.0 2.5" ] ||
    fail "hello_subscribe received: $(cat "$out/hello_subscribe.log")"
say "hello: one process published a tensor, another received it: $(cat "$out/hello_subscribe.log")"

rows=$((${#photos[@]} < 12 ? ${#photos[@]} : 12))
start consume --sheet "$out/batches.png" --rows "$rows" --every $((seconds * 1000 / rows)) \
    --report "$out/consume.txt"
start viewer --snapshot "$out/frame.png" --at $((seconds * 750)) --report "$out/viewer.txt"
start preprocess --subscribers 1 --report "$out/preprocess.txt"
start camera --subscribers 2 --seconds "$seconds" --report "$out/camera.txt" "${photos[@]}"
say "film: pans over ${#photos[@]} photographs (no camera here), 1280x720 RGB, 30 frames/s," \
    "$seconds s"
wait_for_all
report
check_report
