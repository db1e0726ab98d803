#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# bench/run-gpu: every row of the table has its name, a value and its bar, and one that cannot be
# had has the reason instead. On the stand-in driver: the values mean nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${BUILD:-$PWD/build}
if [ ! -e "$build/tests/standin/libcuda.so.1" ]; then
    echo "SKIP: no cuda.h: the stand-in for NVIDIA's driver was not built"
    exit 77
fi
if [ -n "${SAN:-}" ]; then
    echo "SKIP: a program without sanitizers cannot load the stand-in"
    exit 77
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/tests"
for file in tests/standin tests/gpu_bench tests/gpu_probe dlpackd dlpackd-keeper; do
    ln -s "$build/$file" "$tmp/$file"
done

fail() {
    echo "bench-gpu: $1"
    cat "$tmp/out"
    exit 1
}
run() { # INTEROP_PYTHON
    BUILD=$tmp QUICK=1 INTEROP_PYTHON=$1 bench/run-gpu --standin >"$tmp/out" 2>&1 ||
        fail "status $?"
}

# A Python whose PyTorch took 4 s.
printf '#!/bin/sh\necho 4000000000\n' >"$tmp/python"
chmod +x "$tmp/python"
run "$tmp/python"
/usr/bin/python3 - "$tmp/bench-gpu-standin.json" <<'EOF' || fail 'a row is not as the table says'
import json, sys

got = json.load(open(sys.argv[1]))
rows = (
    "gpu_handoff_us gpu_vs_torch_mp gpu_statedict gpu_overlap gpu_overlap_sum"
    " gpu_kernel_to_kernel_us gpu_kernel_to_kernel_p99_us gpu_weights_16gb gpu_weights_16gb_peak"
    " gpu_beside_waiting gpu_crash_arenas gpu_reuse_wrong gpu_ctx_mib gpu_kill_residue_mib"
    " gpu_asking_10us gpu_asking_cpu_50us"
).split()
for name in rows:
    value = got.get(name)
    assert isinstance(value, (int, float)), f"{name}: {value}, {got.get(name + '_reason')}"
sizes = [got["gpu_handoff_us_1KiB"], got["gpu_handoff_us_8GiB"]]
assert got["gpu_handoff_us"] == max(sizes), (got["gpu_handoff_us"], sizes)
assert 0 < got["gpu_vs_torch_mp"] < 0.5, got["gpu_vs_torch_mp"]  # of 4 s
assert got["gpu_reuse_wrong"] == 0, got["gpu_reuse_wrong"]  # of fewer words, but the same code
assert got["gpu_statedict"] > 0 and got["gpu_overlap"] > 0
assert "gpu_vs_torch_mp_reason" not in got and got["not_a_measurement"]
EOF

run "$tmp/none"
/usr/bin/python3 - "$tmp/bench-gpu-standin.json" \
    <<'EOF' || fail 'a row without a value has no reason'
import json, sys

got = json.load(open(sys.argv[1]))
assert got["gpu_vs_torch_mp"] is None, got["gpu_vs_torch_mp"]
assert "torch" in got["gpu_vs_torch_mp_reason"], got["gpu_vs_torch_mp_reason"]
EOF
