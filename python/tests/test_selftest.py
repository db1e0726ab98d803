# SPDX-License-Identifier: Apache-2.0
"""python -m dlx.selftest: over what is surely here; and that it would tell what is wrong."""
import json
import subprocess
import sys

import pytest
from dlx import _frameworks, _interop, selftest


def test_the_frameworks_that_are_always_there(tmp_path):
    path = tmp_path / "results"
    done = subprocess.run([sys.executable, "-m", "dlx.selftest", "--only", "NumPy,memoryview,dlx,CuPy", "--json", path],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(path.read_text())
    assert _interop.present(results) == ["NumPy", "memoryview", "dlx"] and "absent" in results["frameworks"]["CuPy"]
    assert len(results["cases"]) == 3 * len(selftest.CASES)
    assert "| float32 | view | good | good |" in done.stdout and "0 failures" in done.stdout
    for row in results["cases"]:
        if row["sent"]["outcome"] == "sent":
            assert row["taken"]["dlx"]["outcome"] == "good"


@pytest.mark.parametrize("sent, taken, says", [
    ({"outcome": "sent"}, {"outcome": "good"}, []),
    ({"outcome": "sent"}, {"outcome": "WRONG", "words": "values"}, ["dlx does not take float32, plain of NumPy: WRONG, values"]),
    ({"outcome": "sent"}, {"outcome": "CRASH", "words": "SIGSEGV"}, ["dlx does not take float32, plain of NumPy: CRASH, SIGSEGV"]),
    ({"outcome": "sent"}, {"outcome": "refused", "words": "E"}, ["dlx does not take float32, plain of NumPy: refused, E"]),
    ({"outcome": "refused", "words": "E"}, None, ["NumPy does not give float32, plain: refused, E"]),
])
def test_what_is_a_failure(sent, taken, says):
    row = {"producer": "NumPy", "dtype": "float32", "layout": "plain", "sent": sent, "taken": {"dlx": taken} if taken else {}}
    assert list(selftest.failures({"cases": [row]})) == says


def test_a_worker_that_crashes_is_told_and_replaced(c):
    worker = selftest.Worker("dlx", "take", None)
    try:
        assert "version" in worker.greet()
        worker.process.kill()
        worker.ask(("float32", "plain", "float32"))
        assert worker.answer() == {"outcome": "CRASH", "words": "SIGKILL"} and "version" in worker.hello
    finally:
        worker.end()


def test_wrong_values_are_seen(c, pair):
    pub, sub = pair
    raw, shape = selftest.expected("float32", "plain")
    from dlx._dlx import tensor_from_bytes
    for sent, outcome in ((raw, "good"), (raw[:-1] + b"\x07", "WRONG")):
        pub.publish(tensor_from_bytes(sent, shape, "float32"))
        assert selftest.take(_frameworks.Dlx(), sub, "float32", "plain", "float32")["outcome"] == outcome
