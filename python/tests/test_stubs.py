# SPDX-License-Identifier: Apache-2.0
"""The stubs and docstrings say what is there, and each error code has its exception."""

import ast
import os
import re

import dlx
import pytest
from dlx import _dlx, _errors

HEADER = os.path.join(os.path.dirname(__file__), "../../include/dlx/error.h")
STUBS = os.path.join(os.path.dirname(dlx.__file__), "_dlx.pyi")


def stub_names():
    with open(STUBS, encoding="utf-8") as f:
        tree = ast.parse(f.read())
    names = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = {
                x.name if isinstance(x, ast.FunctionDef) else x.target.id
                for x in node.body
                if isinstance(x, (ast.FunctionDef, ast.AnnAssign))
            }
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = set()
    return names


@pytest.mark.parametrize(
    "cls",
    ["Connection", "Publisher", "Subscription", "Message", "NamedMessage", "TreeMessage", "Tensor"],
)
def test_stubs_and_docstrings_are_complete(cls):
    real = {
        k
        for k in vars(getattr(_dlx, cls))
        if not k.startswith("__") or k in ("__dlpack__", "__dlpack_device__", "__iter__")
    }
    stub = stub_names()[cls]
    assert {k for k in real if not k.startswith("_as")} <= stub
    # or of a base class
    assert {k for k in stub if not k.startswith("__")} <= set(dir(getattr(_dlx, cls)))
    for name in real:
        assert name.startswith("_") or getattr(_dlx, cls).__dict__[name].__doc__, (
            f"{cls}.{name} has no docstring"
        )
    assert getattr(dlx, cls).__doc__ and getattr(dlx, cls).__module__ == "dlx"


def test_functions_are_in_the_stubs():
    functions = {
        k
        for k in vars(_dlx)
        if callable(getattr(_dlx, k)) and not isinstance(getattr(_dlx, k), type)
    }
    assert {k for k in functions if not k.startswith("__")} <= set(stub_names())
    for name in dlx.__all__:
        assert getattr(dlx, name) and (name == "__version__" or getattr(dlx, name).__doc__)


def test_each_counter_is_explained(pair):
    for handle in pair:
        unexplained = [
            key
            for key in handle.stats()
            if not re.search(rf"\b{key}\b", type(handle).stats.__doc__)
        ]
        assert unexplained == []


def test_each_error_code_has_an_exception_of_its_own_or_is_named_here():
    with open(HEADER, encoding="utf-8") as f:
        codes = re.findall(r"^    X\((\w+), (-\d+),", f.read(), re.MULTILINE)
    plain = {"READ_ONLY", "PUBLISHER_NOT_RESPONDING", "KERNEL", "SYSTEM", "INTERRUPTED"}
    assert {name for name, _ in codes} == set(_errors._OF_CODE) | plain
    for name, number in codes:
        error = _errors.make(int(number), name, "")
        assert (type(error) is dlx.Error) == (name in plain), name
        assert (error.code, error.name) == (int(number), name)
