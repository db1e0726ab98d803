# SPDX-License-Identifier: Apache-2.0
"""The programs of python/examples do what they say, on a daemon of the test."""
import os
import subprocess
import sys

import pytest
from conftest import PATIENCE

EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "examples")


@pytest.mark.parametrize("needs, name, args, says", [
    ("numpy", "cameras.py", ["3"], "60 frames of 3 cameras, in order; the rest ran, too"),
    ("torch", "weights.py", ["demo"], "weights: 1118272 bytes, shared memory: 1122304"),
    ("torch", "loader.py", ["fork"], "fork: 20 batches of 393216 bytes from 2 workers"),
    ("torch", "loader.py", ["spawn"], "spawn: 20 batches of 393216 bytes from 2 workers"),
])
def test_example(daemon, needs, name, args, says):
    pytest.importorskip(needs)
    done = subprocess.run([sys.executable, os.path.join(EXAMPLES, name), *args], capture_output=True, text=True, timeout=3 * PATIENCE)
    assert done.returncode == 0 and says in done.stdout, done.stdout + done.stderr
