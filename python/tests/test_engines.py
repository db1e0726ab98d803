# SPDX-License-Identifier: Apache-2.0
"""examples/engines.py: engines swap the weights that they serve, and see whole versions only."""

import os
import re
import subprocess
import sys

import pytest
from conftest import PATIENCE, until
from test_gpu import STANDIN, use_standin

ENGINES = os.path.join(os.path.dirname(__file__), "..", "examples", "engines.py")
LINE = re.compile(
    r"engine (\d+): version (\d+), (\d+) requests served, (\d+) with mixed weights; "
    r"memory: ([\d.]+) MiB of its own, ([\d.]+) MiB shared"
)


def run_engines(n_engines, n_versions, mib, n_requests=20, device="cpu"):
    """The versions that each engine served with, and the memory of all versions."""
    options = f"--device {device} --engines {n_engines} --versions {n_versions} --mib {mib:.0f}"
    command = [sys.executable, ENGINES, *options.split(), "--requests", str(n_requests)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE)
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    lines = [tuple(map(float, x)) for x in LINE.findall(said)]
    seen = [(int(engine), int(version)) for engine, version, *_ in lines]
    each = [(i, v) for v in range(1, n_versions + 1) for i in range(n_engines)]
    last = [(i, n_versions) for i in range(n_engines + 1)]  # and the late one
    assert seen == each + last, said
    assert all(n_mixed == 0 for *_, n_mixed, _, _ in lines), said
    assert all(n >= n_requests * v for _, v, n, *_ in lines[:-1]), said  # it served without a pause
    assert all(shared >= mib for *_, shared in lines), said
    (used,) = re.findall(rf"{n_versions} versions of {mib:.1f} MiB were in ([\d.]+) MiB", said)
    # The served version, the next one, and the one that an engine has yet to release.
    assert mib <= float(used) <= 3 * mib + 4, said
    return lines


def test_engines_serve_whole_versions_and_memory_of_old_ones_comes_back(c):
    lines = run_engines(3, 8, 6.0)
    assert all(shared <= 12.0 for *_, shared in lines), lines
    until(lambda: c.daemon()["shared_bytes"] == 0, "the end of what was retained")


@pytest.fixture
def standin(tmp_path, monkeypatch):
    use_standin(tmp_path, monkeypatch)


@pytest.mark.skipif(not STANDIN.exists(), reason="no cuda.h: no stand-in driver was built")
def test_engines_do_so_on_a_gpu_too(standin, c, monkeypatch):
    """On the stand-in driver, with tests/standin_torch in the place of PyTorch."""
    tests = os.path.dirname(__file__)
    path = [os.path.join(tests, "standin_torch"), tests, os.environ["PYTHONPATH"]]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    lines = run_engines(2, 4, 6.0, n_requests=5, device="cuda:0")
    assert all((own, shared) == (0.0, 6.0) for *_, own, shared in lines), lines
    until(lambda: c.daemon()["shared_bytes"] == 0, "the end of what was retained")
