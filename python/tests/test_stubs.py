# SPDX-License-Identifier: Apache-2.0
"""The stubs and docstrings match the module; error codes, counters and the daemon's lists are the
same in C, in Python and in the JSON of dlxctl.
"""

import ast
import inspect
import json
import os
import re
import subprocess

import dlx
import pytest
from dlx import _dlx, _errors

HEADERS = os.path.join(os.path.dirname(__file__), "../../include/dlx")
STUBS = os.path.join(os.path.dirname(dlx.__file__), "_dlx.pyi")


def header(name):
    with open(os.path.join(HEADERS, name), encoding="utf-8") as f:
        return f.read()


def members(file, struct):
    body = re.search(rf"^struct {struct} {{\n(.*?)^}};", header(file), re.MULTILINE | re.DOTALL)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    return set(re.findall(r"(\w+)(?:\[.*?\])?;", body)) - {"size"}


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
    [
        "Connection",
        "Publisher",
        "Subscription",
        "Caller",
        "Service",
        "Observer",
        "Request",
        "Message",
        "NamedMessage",
        "TreeMessage",
        "Tensor",
    ],
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


@pytest.fixture
def handles(c, pair):
    with c.caller("svc") as k, c.serve("svc") as service:
        yield (*pair, k, service)


def test_each_counter_is_explained(handles):
    for handle in handles:
        unexplained = [
            key
            for key in handle.stats()
            if not re.search(rf"\b{key}\b", type(handle).stats.__doc__)
        ]
        assert unexplained == []


def test_each_error_code_has_an_exception_of_its_own_or_is_named_here():
    codes = re.findall(r"^    X\((\w+), (-\d+),", header("error.h"), re.MULTILINE)
    plain = {"READ_ONLY", "PUBLISHER_NOT_RESPONDING", "KERNEL", "SYSTEM", "INTERRUPTED"}
    assert {name for name, _ in codes} == set(_errors._OF_CODE) | plain
    for name, number in codes:
        error = _errors.make(int(number), name, "")
        assert (type(error) is dlx.Error) == (name in plain), name
        assert (error.code, error.name) == (int(number), name)


def test_counters_are_the_members_of_their_structs(handles):
    for handle, file in zip(handles, ("stats.h", "stats.h", "call.h", "call.h"), strict=True):
        name = type(handle).__name__
        struct = f"dlx_{name.lower()}_stats"
        assert set(handle.stats()) == members(file, struct) == stub_names()[f"{name}Stats"]


def test_dicts_of_the_daemon_have_the_members_of_their_structs(pair, c, tmp_path):
    def dlxctl(*args):
        program = os.path.join(os.path.dirname(dlx.__file__), "dlxctl")
        done = subprocess.run(
            [program, "--socket", tmp_path / "s", *args, "--json"], check=True, capture_output=True
        )
        return json.loads(done.stdout)

    here = dlxctl("info", pair[0].topic)["publishers"][0]
    publisher = members("info.h", "dlx_publisher_info")
    assert publisher <= set(here)
    # no list that Python has contains what is left of former publishers
    assert set(c.publishers()[0]) == publisher - {"former"} == stub_names()["PublisherInfo"]

    link = members("info.h", "dlx_link_info") - {"mode"} | {"latest"}
    assert set(here["links"][0]) == link - {"publisher"}  # it is the object around
    said = c.links(here["publisher"])[0]
    assert set(said) == link - {"is_publisher", "former_bytes"} == stub_names()["LinkInfo"]

    daemon = members("info.h", "dlx_daemon_info") - {"protocol_major", "protocol_minor"}
    daemon |= {"protocol", "place", "refused_by"}
    assert set(dlxctl("info")) == set(c.daemon()) == daemon == stub_names()["DaemonInfo"]


def parsed_calls(pair):
    pub, sub = pair
    yield from (pub.empty, pub.zeros, pub.empty_like, pub.publish, pub.publish_many, pub.wait)
    yield from (sub.take, sub.take_many, dlx.debug)


def test_signatures_of_docstrings_are_those_that_calls_have(pair):
    for call in parsed_calls(pair):
        parameters = inspect.signature(call).parameters.values()
        with pytest.raises(TypeError) as e:
            call(unknown=1)
        assert str(e.value).endswith("it has " + ", ".join(x.name for x in parameters))
        n = sum(x.kind is x.POSITIONAL_OR_KEYWORD for x in parameters)
        with pytest.raises(TypeError) as e:
            call(*[None] * (n + 1))
        if call.__name__ != "publish":  # it says what may be meant
            assert f"takes {n} positional arguments but {n + 1} were given" in str(e.value)
        required = [x.name for x in parameters if x.default is x.empty]
        if required:
            with pytest.raises(TypeError) as e:
                call()
            assert str(e.value).endswith(f"missing required argument: '{required[0]}'")
