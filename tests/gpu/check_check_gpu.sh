#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/check-gpu: it skips where there is no driver and no GPU, runs stories on a driver, counts a
# skip as no pass, and takes neither a crash nor silence for one. No program is forgotten.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${BUILD:-$PWD/build}
standin=$build/tests/standin/libcuda.so.1
if [ ! -e "$standin" ]; then
    echo "SKIP: no cuda.h: the stand-in for NVIDIA's driver was not built"
    exit 77
fi
if [ -n "${SAN:-}" ]; then
    echo "SKIP: a program without sanitizers cannot load the stand-in"
    exit 77
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

python=/usr/bin/python3
run() { # STATUS DRIVER PROGRAM...: its output is then in $tmp/out
    local want=$1 driver=$2 status=0
    CHECK_GPU_DRIVER=$driver MAKE_PROGRAMS=true MAKE_PYTHON=true PYTHON=$python BUILD=$tmp \
        tools/check-gpu "${@:3}" >"$tmp/out" 2>&1 || status=$?
    [ "$status" = "$want" ] || fail "status $status, not $want"
}
fail() {
    echo "check-gpu: $1"
    cat "$tmp/out"
    exit 1
}
says() { grep -Eq -- "$1" "$tmp/out" || fail "does not say: $1"; }

# Each program whose stories run on any driver is among those of `make check-gpu`.
sed -nE '/^CHECK_GPU_PROGRAMS :=/,/[^\\]$/p' mk/tests.mk >"$tmp/out"
while read -r program; do
    says "\\b$(basename "$program" .c)\\b"
done < <(grep -lE 'dlx_test_gpu_add(_loop)?\(' tests/gpu/{test,e2e}_*.c)

mkdir -p "$tmp/tests/standin"
for file in test_gpu_memory e2e_gpu; do ln -s "$build/tests/$file" "$tmp/tests/"; done
ln -s "$build/dlpackd" "$build/dlxctl" "$build/python" "$tmp/"

run 0 "$tmp/none/libcuda.so.1" test_gpu_memory
says '^check-gpu: skipped: .*cannot open shared object'
[ "$(wc -l <"$tmp/out")" = 1 ] || fail 'says more than one line'
CUDA_VISIBLE_DEVICES='' run 0 "$standin" test_gpu_memory
says '^check-gpu: skipped: cuInit: CUDA_ERROR_NO_DEVICE'

run 0 "$standin" test_gpu_memory
says '^check-gpu: Stand-in GPU 0 \(1 of them\)'
says '^skipped an_arena_that_cannot_be_made_leaves_nothing: needs calls of the driver that fail'
says '^skipped an_arena_is_whole_pieces_of_zeros_on_its_device: needs two GPUs'
says '^passed  memory_of_cudamalloc_is_shared_whole_and_once \(0\)'
with_one=$(grep -c '^passed ' "$tmp/out")
says " $with_one stories passed, 0 failed, "
STANDIN_DEVICES=2 run 0 "$standin" test_gpu_memory
with_two=$(grep -c '^passed ' "$tmp/out")
says " $with_two stories passed, 0 failed, "
if [ "$with_one" -lt 10 ] || [ "$with_two" -le "$with_one" ]; then
    fail "$with_one stories passed on one GPU, and $with_two on two"
fi

# A story that fails: the second call of the driver for memory does.
STANDIN_FAIL=cuMemAlloc:1:1:2 run 1 "$standin" test_gpu_memory
says '^FAILED  memory_of_cudamalloc_is_shared_whole_and_once \(0\): .*cuMemAlloc'

for how in 'true' 'kill -SEGV $$'; do
    printf '#!/bin/sh\n%s\n' "$how" >"$tmp/tests/liar"
    chmod +x "$tmp/tests/liar"
    run 1 "$standin" liar
    says '^FAILED  liar: ended with status'
done
CHECK_GPU_SECONDS=0 run 1 "$standin" test_gpu_memory
says '^FAILED  test_gpu_memory: did not start within 0 s'

# Frameworks: what Python has not is skipped in words; its tests count like stories.
printf '#!/bin/sh\nexec /usr/bin/python3 -S -I "$@"\n' >"$tmp/bare"
chmod +x "$tmp/bare"
python=$tmp/bare run 0 "$standin" test_gpu_memory
says '^skipped .* has no numpy'
n_skipped=$(grep -c '^skipped ' "$tmp/out")
says " $with_one stories passed, 0 failed, $n_skipped skipped"
if /usr/bin/python3 -c 'import sys, pytest, numpy; sys.exit(sys.version_info < (3, 11))'; then
    cat >"$tmp/test_x.py" <<'EOF'
import pytest

def test_is_well(): pass

@pytest.mark.parametrize("x", [1, 2])
def test_is_skipped(x): pytest.skip("no such framework")
EOF
    CHECK_GPU_PYTESTS=$tmp/test_x.py run 0 "$standin" test_gpu_memory
    says '^passed  test_is_well'
    says '^skipped no such framework \(2 stories\)'
    says " $((with_one + 1)) stories passed, 0 failed, $((n_skipped + 1)) skipped"
    echo 'def test_fails(): assert False, "for a reason"' >>"$tmp/test_x.py"
    CHECK_GPU_PYTESTS=$tmp/test_x.py run 1 "$standin" test_gpu_memory
    says '^FAILED  test_fails - AssertionError: for a reason'
    says " $((with_one + 1)) stories passed, 1 failed, $((n_skipped + 1)) skipped"
    CHECK_GPU_PYTESTS=$tmp/none.py run 1 "$standin" test_gpu_memory
    says '^FAILED  ended with status 4'
fi
