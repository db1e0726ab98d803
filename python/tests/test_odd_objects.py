# SPDX-License-Identifier: Apache-2.0
"""Objects that raise, recurse or answer nonsense where dlx asks them: an exception each, and
nothing is swallowed that is not ours.
"""

import ctypes
import os

import dlx
import pytest


def test_errors_show_names_that_are_no_utf8(pair):
    pub, sub = pair
    pub.publish({os.fsdecode(b"a\xff"): b"1"})
    msg = sub.take()
    with pytest.raises(KeyError) as e:
        msg[os.fsdecode(b"b\xfe")]
    assert isinstance(e.value, dlx.NotFound) and "\\xfe" in str(e.value)


class Chain:
    """`.name` and `.dtype` without an end."""

    def __getattr__(self, name):
        if name in ("name", "dtype"):
            return self
        raise AttributeError(name)


def test_a_dtype_whose_name_is_itself_is_none(pair):
    with pytest.raises(TypeError, match="no data type"):
        pair[0].empty(1, Chain())


class Interrupted:
    """A sequence, and has what `others` are; Ctrl-C comes when `name` is looked for, the first
    `after` times excepted.
    """

    def __init__(self, name, after=0, **others):
        self.__dict__.update(others, interrupts=name, after=after)

    def __getattr__(self, name):
        if name == self.__dict__["interrupts"]:
            self.after -= 1
            if self.after < 0:
                raise KeyboardInterrupt
        raise AttributeError(name)

    def __getitem__(self, key):
        raise KeyError(key)


def interface(typestr):
    return {"shape": (1,), "typestr": typestr, "data": (0, True), "version": 3}


@pytest.mark.parametrize(
    "thing",
    [
        Interrupted("__dlpack__"),
        Interrupted("items"),
        Interrupted("keys", items=None),
        Interrupted("__cuda_array_interface__"),
        Interrupted("__array_interface__"),
        Interrupted("dtype", 1, __array_interface__=interface("|V2")),
        Interrupted("", dtype=Interrupted("name", 1), __array_interface__=interface("|V2")),
    ],
    ids=lambda thing: thing.interrupts or "dtype.name",
)
def test_ctrl_c_in_what_an_object_answers_is_not_swallowed(pair, thing):
    with pytest.raises(KeyboardInterrupt):
        pair[0].publish(thing)


@pytest.mark.parametrize("name", ["name", "dtype", "__str__"])
def test_ctrl_c_while_a_dtype_is_asked_is_not_swallowed(pair, name):
    class Type(Interrupted):
        def __str__(self):
            return self.__getattr__("__str__")

    with pytest.raises(KeyboardInterrupt):
        pair[0].empty(1, Type(name))


class Time(ctypes.c_uint8 * 8):
    """An object with the buffer of numpy.datetime64."""

    @property
    def dtype(self):
        raise KeyboardInterrupt


def test_ctrl_c_while_a_buffer_is_asked_whether_it_is_a_time_is_not_swallowed(pair):
    with pytest.raises(KeyboardInterrupt):
        pair[0].publish(Time())


@pytest.mark.parametrize(
    "item", [3, "ab", (), ("a",), ("a", b"1", b"2"), ["a", b"1"], None], ids=repr
)
@pytest.mark.parametrize("use", ["publish", "empty_like"])
def test_items_that_are_no_pairs_are_refused(pair, use, item):
    class Odd(dict):
        def items(self):
            return [("b", b"2"), item]

    with pytest.raises(TypeError, match="pairs"):
        getattr(pair[0], use)(Odd(a=b"1"))


def test_items_that_raise_are_heard(pair):
    class Odd(dict):
        def items(self):
            raise LookupError("odd")

    for use in (pair[0].publish, pair[0].empty_like):
        with pytest.raises(LookupError, match="odd"):
            use(Odd(a=b"1"))
