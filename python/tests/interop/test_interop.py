# SPDX-License-Identifier: Apache-2.0
"""exchange.py: over what is surely here; and that it would tell what is wrong."""

import json
import subprocess
import sys

import exchange
import frameworks
import pytest
import tables
from dlx import _dlx


def run(*args):
    command = [sys.executable, exchange.__file__, *args]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_frameworks_that_are_always_there(tmp_path):
    path = tmp_path / "results"
    done = run("--only", "NumPy,memoryview,dlx,CuPy", "--json", path)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(path.read_text())
    assert tables.present(results) == ["NumPy", "memoryview", "dlx"]
    assert "absent" in results["frameworks"]["CuPy"]
    assert len(results["cases"]) == 3 * len(exchange.CASES)
    assert "| float32 | view | good | good |" in done.stdout and "0 failures" in done.stdout
    for row in results["cases"]:
        if row["sent"]["outcome"] == "sent":
            assert row["taken"]["dlx"]["outcome"] == "good"


@pytest.mark.parametrize(
    "sent, taken, says",
    [
        ("sent", "good", []),
        ("sent", "WRONG, x", ["dlx does not take float32, plain of NumPy: WRONG, x"]),
        ("sent", "CRASH, x", ["dlx does not take float32, plain of NumPy: CRASH, x"]),
        ("sent", "refused, x", ["dlx does not take float32, plain of NumPy: refused, x"]),
        ("refused, x", None, ["NumPy does not give float32, plain: refused, x"]),
    ],
)
def test_outcomes_that_are_failures(sent, taken, says):
    def result(text):
        return dict(zip(("outcome", "words"), text.split(", "), strict=False))

    row = {"producer": "NumPy", "dtype": "float32", "layout": "plain", "sent": result(sent)}
    row["taken"] = {"dlx": result(taken)} if taken else {}
    assert list(exchange.failures({"cases": [row]})) == says


def test_refusals_are_a_list_for_each_framework_in_100_columns():
    text = "BufferError: " + "`no` such | type " * 10
    said = tables.refused(
        [
            ("A", "takes", ["int4", "bool"], text),
            ("B", "gives", ["empty"], "E"),
            ("A", "gives", ["0-d"], "E"),
        ]
    )
    assert said.startswith("### A\n\n- takes int4, bool: `BufferError: 'no' such | type ")
    assert said.endswith("\n- gives 0-d: `E`\n\n### B\n\n- gives empty: `E`\n")
    assert max(map(len, said.split("\n"))) in range(80, 101)


def test_a_worker_that_crashes_is_told_and_replaced(c):
    worker = exchange.Worker("dlx", "take", None)
    try:
        assert "version" in worker.greet()
        worker.process.kill()
        worker.ask(("float32", "plain", "float32"))
        assert worker.answer() == {"outcome": "CRASH", "words": "SIGKILL"}
        assert "version" in worker.hello
    finally:
        worker.end()


@pytest.mark.parametrize(
    "sent, as_type, renamed, outcome",
    [
        (b"\1\0\1\1", "bool", "uint8", "good"),  # it got better
        (b"\1\0\1\1", "uint8", "uint8", "good"),  # it is as it was
        (b"\1\0\1\1", "int8", "uint8", "WRONG"),
        (b"\1\0\1\1", "uint8", "bool", "WRONG"),  # no rename to bool is known
        (b"\0\0\1\1", "bool", "uint8", "WRONG"),
    ],
)
def test_a_framework_may_get_better(pair, monkeypatch, sent, as_type, renamed, outcome):
    """A framework that gave a type as another one may give it as itself from a later version on."""
    pub, sub = pair
    monkeypatch.setattr(exchange, "expected", lambda dtype, layout: (bytes([1, 0, 1, 1]), (4,)))
    pub.publish(_dlx.tensor_from_bytes(sent, (4,), as_type))
    said = exchange.take(frameworks.Dlx(), sub, "bool", "plain", renamed)
    assert said["outcome"] == outcome and said.get("arrived", as_type) == as_type


@pytest.mark.parametrize(
    "sent, padded, outcome",
    [
        (bytes([1, 2, 3]), True, "good"),
        (bytes([0x21, 0x03]), False, "good"),
        (bytes([0x12, 0x30]), False, "WRONG"),
        (bytes([1, 2, 4]), True, "WRONG"),
    ],
)
def test_packed_and_padded_elements_say_the_same(pair, monkeypatch, sent, padded, outcome):
    pub, sub = pair
    monkeypatch.setattr(exchange, "expected", lambda dtype, layout: (bytes([1, 2, 3]), (3,)))
    pub.publish(_dlx.tensor_from_bytes(sent, (3,), "int4", padded))
    assert exchange.take(frameworks.Dlx(), sub, "int4", "plain", "int4")["outcome"] == outcome


def test_a_framework_may_have_a_python_of_its_own(tmp_path):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$3" >>{tmp_path}/ran\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    done = run("--only", "memoryview,dlx", "--python", f"memoryview={program}")
    assert done.returncode == 0, done.stdout + done.stderr
    # one publishes, one takes
    assert (tmp_path / "ran").read_text().split() == ["memoryview", "memoryview"]
    done = run("--python", f"dlx={tmp_path}/none")
    assert done.returncode == 2 and f"--python dlx={tmp_path}/none" in done.stderr


def test_the_words_of_an_error_are_one_line_that_can_be_read():
    assert exchange.words(ValueError("no\nreally")) == "ValueError: no"
    mxnet = (
        'Traceback (most recent call last):\n  File "tensor_blob.h"\n'
        "Unknown DLDataType{\x06, \b, 1}"
    )
    assert exchange.words(ValueError(mxnet)) == "ValueError: Unknown DLDataType{\\x06, \\x08, 1}"


def test_wrong_values_are_seen(c, pair):
    pub, sub = pair
    raw, shape = exchange.expected("float32", "plain")
    for sent, outcome in ((raw, "good"), (raw[:-1] + b"\x07", "WRONG")):
        pub.publish(_dlx.tensor_from_bytes(sent, shape, "float32"))
        assert (
            exchange.take(frameworks.Dlx(), sub, "float32", "plain", "float32")["outcome"]
            == outcome
        )


def test_a_table_that_is_too_wide_is_cut_and_keeps_its_first_column():
    head = ["types", *(f"framework {i}" for i in range(12))]
    rows = [[name, *("view" for _ in range(12))] for name in ("bool", "int8")]
    parts = tables.table(head, rows).split("\n\n")
    lines = [[x.strip() for x in line.split("|")[1:-1]] for p in parts for line in p.splitlines()]
    assert len(parts) > 1 and max(map(len, tables.table(head, rows).splitlines())) <= 100
    assert [x for line in lines if line[0] == "types" for x in line[1:]] == head[1:]
    assert [x[0] for x in lines] == ["types", "---", "bool", "int8"] * len(parts)
    assert tables.table(head[:3], [row[:3] for row in rows]).count("types") == 1
