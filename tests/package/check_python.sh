#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The Python package of the build folder: python/tests with pytest.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${BUILD:-build}")
# shellcheck source=tests/package/harness_python.sh
. tests/package/harness_python.sh
run_pytest "$build/python" --durations=3 python/tests
