#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What the Python package does with tensors on GPUs, once more with an extension that uses
# libdlx.so, as that of a distribution does: so libdlx.so loads libdlx-gpu.so.0. Other tests have
# both in one file, as a wheel does.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${BUILD:-build}")
# shellcheck source=tests/package/harness_python.sh
. tests/package/harness_python.sh
if [ ! -e "$build/tests/standin/libcuda.so.1" ]; then
    echo "SKIP: no cuda.h: the stand-in for NVIDIA's driver was not built"
    exit 77
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cp -r "$build/python/dlx" "$tmp/"
cp "$build/tests/shared/_dlx.abi3.so" "$tmp/dlx/"
objdump -p "$tmp/dlx/_dlx.abi3.so" | grep 'NEEDED *libdlx.so.0$' >/dev/null ||
    { echo "the extension does not need libdlx.so.0"; exit 1; }
export LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
run_pytest "$tmp" python/tests/test_gpu*.py
