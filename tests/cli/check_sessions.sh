#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What dlxctl prints: each tests/cli/sessions/*.t is a session at a shell, with all that is printed
# in it. prysk runs them (https://www.prysk.net). `make golden` writes what is printed now into the
# sessions: look at the difference then.
set -euo pipefail
cd "$(dirname "$0")/../.."
SRCDIR=$PWD
BUILD=${BUILD:-$PWD/build}
export SRCDIR BUILD
prysk=build/venv/bin/prysk
if [ ! -x "$prysk" ]; then
    echo "SKIP: no prysk (tools/setup.sh installs it)"
    exit 77
fi
if [ -n "${VALGRIND:-}" ]; then
    echo "SKIP: valgrind is for programs that tests start, and here a shell does"
    exit 77
fi
options=(--shell /bin/bash --color never)
[ "${DLX_GOLDEN:-}" != write ] || options+=(-i -y)
exec "$prysk" "${options[@]}" tests/cli/sessions/*.t
