#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The connectors of dlx.contrib, with the Python that has what each of them connects: the programs
# and packages of `tools/setup.sh --connectors` and `--interop`.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${BUILD:-build}")
if [ -n "${SAN:-}" ]; then
    echo "SKIP: the connectors are Python, which check_python runs with sanitizers"
    exit 77
fi

ran=
home=$(mktemp -d) # Ray writes into it
trap 'rm -rf "$home"' EXIT
check() { # PYTHON MODULE TEST...
    local modules="import pytest, numpy, $2"
    if [ -x "$1" ] && "$1" -c "$modules" 2>/dev/null; then
        ran=yes
        # Actors of Ray import the tests by their names.
        env -u DLX_AUTOSPAWN PYTHONPATH="$build/python:$PWD/python/tests" \
            PYTHONDONTWRITEBYTECODE=1 HOME="$home" \
            "$1" -X dev -m pytest -q -rs -p no:cacheprovider "${@:3}"
    else
        echo "SKIP: $1 has no $2 with pytest and NumPy (tools/setup.sh --connectors;" \
            "--interop for PyTorch): ${*:3}"
    fi
}
check build/venv/bin/python ray python/tests/test_contrib_ray.py
check build/venv/bin/python torch python/tests/test_{contrib_torch,weights}.py
# Without vLLM the tests that need PyTorch alone run. vLLM takes minutes, and pins a PyTorch.
check "${VLLM_PYTHON:-build/venv/bin/python}" torch \
    python/tests/test_contrib_vllm.py python/tests/test_contrib_vllm_transfer.py
# Its Python code is that of the system's Python.
check /usr/bin/python3 gi.repository.Gst python/tests/test_contrib_gstreamer.py
if [ -z "$ran" ]; then exit 77; fi
