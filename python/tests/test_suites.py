# SPDX-License-Identifier: Apache-2.0
"""The DLPack tests of other projects, as their packages bring them, with every tensor sent through
another process.
"""

import json
import os
import pathlib
import subprocess
import sys

import dlx
import pytest
from conftest import PATIENCE

ROOT = pathlib.Path(__file__).resolve().parents[2]
TVM_FFI = ROOT / "build/cache/tvm-ffi-tests/tests/python"

# Tests that cannot pass through another process, by function, and why. All others have to.
OTHER_MEMORY = "what arrives is other memory than what was sent, and keeps no reference to it"
DIFFERENCES = {
    "numpy": {
        "test_from_dlpack_refcount": OTHER_MEMORY,
        "test_copy": OTHER_MEMORY,
        "test_writeable": "what arrives is read-only, though what was sent was not",
    },
    "tvm_ffi": {
        "test_tensor_data_ptr": OTHER_MEMORY,
        "test_non_contiguous_tensor_attributes": "what arrives is row-major",
    },
}


def python_with(*modules):
    """The first Python that has them, of the one that runs and that of tools/setup.sh."""
    for python in (sys.executable, ROOT / "build/venv/bin/python"):
        code = (
            f"import {', '.join(modules)}, numpy; assert numpy.lib.NumpyVersion(numpy.__version__) "
            f">= '2.1.0'"
        )
        if (
            os.path.exists(python)
            and subprocess.run([python, "-c", code], capture_output=True).returncode == 0
        ):
            return python
    pytest.skip(
        f"no Python has {', '.join(modules)} and NumPy 2.1 or newer (tools/setup.sh installs them)"
    )


def run_suite(python, folder, files):
    """How each test ended, as in through.py. The daemon is that of the test."""
    report = pathlib.Path(os.environ["TMPDIR"]) / "report"
    path = [os.path.dirname(os.path.dirname(dlx.__file__)), os.path.dirname(__file__)]
    # tvm-ffi keeps what it compiles there
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": os.environ["TMPDIR"],
    }
    if "asan" in env.get("LD_PRELOAD", ""):
        # which looks for what throws C++ exceptions when the process starts
        env["LD_PRELOAD"] += " libstdc++.so.6"
    options = [
        "-q",
        "-c",
        "/dev/null",
        "--rootdir",
        folder,
        "--noconftest",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [python, "-m", "pytest", *options, "-p", "through", "--through-report", report, *files],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
    )
    assert done.returncode in (0, 1) and report.exists(), done.stdout + done.stderr
    return json.loads(report.read_text()), done.stdout


def check_suite(name, results, at_least, text):
    """Returns the tests that differ: none would, if the tensors came from this process."""

    def function(test):
        return test.split("::")[-1].partition("[")[0]

    sent = [x for x in results if results[x]["n_sent"]]
    failed = [x for x in results if results[x]["outcome"] == "failed"]
    assert len(sent) >= at_least, sent
    assert not [x for x in failed if function(x) not in DIFFERENCES[name]], text
    # By the assertion that names the difference, and not because the tensor was refused.
    assert all(results[x]["words"].endswith("AssertionError") for x in failed), text
    passed = sum(results[x]["outcome"] == "passed" for x in results)
    print(
        f"{name}: {len(results)} tests, {passed} passed, {len(failed)} differ, {len(sent)} sent "
        f"tensors"
    )
    return failed


def test_the_suite_of_numpy(daemon):
    python = python_with("pytest")
    code = "import numpy, os; print(os.path.dirname(numpy.__file__))"
    folder = pathlib.Path(
        subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    file = folder / "_core/tests/test_dlpack.py"
    if not file.exists():
        pytest.skip("this NumPy came without its tests")
    results, text = run_suite(python, file.parent, [file])
    assert check_suite("numpy", results, 60, text)


def test_the_suite_of_tvm_ffi(daemon):
    if not TVM_FFI.exists():
        pytest.skip("the tests of tvm-ffi are not there (tools/setup.sh fetches them)")
    python = python_with("pytest", "tvm_ffi")
    names = (
        "tensor",
        "container_dlpack_conversion",
        "structural",
        "function",
        "dataclass_hash",
        "dataclass_repr",
    )
    results, text = run_suite(python, TVM_FFI, [f"test_{x}.py" for x in names])
    assert check_suite("tvm_ffi", results, 10, text)


@pytest.mark.parametrize(
    "row, says",
    [
        ({"outcome": "failed", "n_sent": 1, "words": "x.py:1: AssertionError"}, False),
        ({"outcome": "failed", "n_sent": 1, "words": "x.py:1: BufferError"}, False),
        ({"outcome": "passed", "n_sent": 1, "words": ""}, True),
        ({"outcome": "passed", "n_sent": 0, "words": ""}, False),
    ],
)
@pytest.mark.parametrize("name", ["test_copy", "test_ndim0"])
def test_results_that_are_failures_of_a_suite(row, says, name):
    results = {f"test_dlpack.py::TestDLPack::{name}[x]": row}
    if says or (name == "test_copy" and row["words"].endswith("AssertionError")):
        check_suite("numpy", results, 1, "")
    else:
        with pytest.raises(AssertionError):
            check_suite("numpy", results, 1, "")
