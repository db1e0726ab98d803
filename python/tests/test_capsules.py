# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules as tensors: publish() consumes each once, renames it, and calls its deleter."""

import ctypes
import gc

import dlx
import numpy as np
import pytest
from conftest import PATIENCE, count_fds
from dlpack_abi import DELETER, Legacy, Tensor, Versioned, is_valid, new_capsule

END = DELETER  # gets the capsule itself, which is being destroyed
KINDS = pytest.mark.parametrize("kind", [Versioned, Legacy], ids=["versioned", "legacy"])


class Library:
    """Gives capsules of the values 0 to 5 as other libraries do, and counts how often the deleter
    of one is called.
    """

    def __init__(self, kind, name=None, device=(1, 0), version=(1, 0), has_deleter=True):
        self.kind, self.n_deleted = kind, 0
        self.name = name or kind.NEW
        self.values = (ctypes.c_int32 * 8)(*[9, 9], *range(6))
        self.shape = (ctypes.c_int64 * 2)(2, 3)
        self.end, self.deleter = END(self.destroy), DELETER(self.delete)
        address = ctypes.addressof(self.values)
        t = Tensor(address, device, 2, 0, 32, 1, self.shape, None, 8)
        deleter = self.deleter if has_deleter else DELETER()
        self.managed = (
            Versioned(version, None, deleter, 0, t)
            if kind is Versioned
            else Legacy(t, None, deleter)
        )

    def delete(self, address):
        assert address == ctypes.addressof(self.managed)
        self.n_deleted += 1

    def destroy(self, capsule):
        if is_valid(capsule, self.name):  # no consumer took it
            self.n_deleted += 1

    def capsule(self):
        return new_capsule(ctypes.addressof(self.managed), self.name, self.end)


def is_used(capsule):
    return any(is_valid(id(capsule), kind.USED) for kind in (Versioned, Legacy))


VALUES = np.arange(6, dtype=np.int32).reshape(2, 3)


@KINDS
def test_a_capsule_is_a_tensor(pair, kind):
    pub, sub = pair
    one, two, three, four = (Library(kind) for _ in range(4))
    capsules = [x.capsule() for x in (one, two, three, four)]
    assert pub.publish(capsules[0]).n_copied == 1
    pub.publish({"a": capsules[1], "b": b"bytes"})
    pub.publish_many([capsules[2]])
    assert np.array_equal(np.asarray(dlx.tensor(capsules[3])), VALUES)
    for key in (0, "a", 0):
        t = sub.take()[key]
        assert t.dtype == "int32" and np.array_equal(np.asarray(t), VALUES)
    assert all(is_used(x) for x in capsules)
    del capsules
    gc.collect()
    assert [x.n_deleted for x in (one, two, three, four)] == [1] * 4


@KINDS
def test_a_capsule_of_ours_is_one_too(pair, kind):
    pub, sub = pair
    pub.publish(VALUES)
    t = sub.take()[0]
    pub.publish(
        t.__dlpack__(max_version=(1, 0)) if kind is Versioned else t.as_legacy().__dlpack__()
    )
    assert np.array_equal(np.asarray(sub.take()[0]), VALUES)
    del t
    gc.collect()
    assert sub.stats()["n_held"] == 0


@KINDS
def test_a_used_capsule_is_refused(pair, kind):
    library = Library(kind)
    capsule = library.capsule()
    pair[0].publish(capsule)
    for again in (
        lambda: pair[0].publish(capsule),
        lambda: dlx.tensor(capsule),
        lambda: pair[0].empty_like(capsule),
    ):
        with pytest.raises(
            BufferError, match=f"taken before .*'used_{library.name.decode()}'"
        ) as e:
            again()
        assert "\n" not in str(e.value)
    assert library.n_deleted == 1


@pytest.mark.parametrize("name", [b"dltensor_", b"DLTENSOR", b"used", b"\xff"])
def test_a_capsule_of_another_name_is_refused(pair, name):
    library = Library(Legacy, name)
    capsule = library.capsule()
    for what in (pair[0].publish, pair[0].empty_like, dlx.tensor):
        with pytest.raises(TypeError, match="a capsule named .* holds no DLPack tensor"):
            what(capsule)
    assert is_valid(id(capsule), name) and library.n_deleted == 0


@KINDS
@pytest.mark.parametrize(
    "member, value, error, words",
    [
        ("shape", None, BufferError, "2 dimensions whose shape is NULL"),
        ("ndim", -1, dlx.Error, "a tensor of -1 dimensions"),
        ("ndim", 65, dlx.Error, r"a tensor of 65 dimensions \(limit 64\)"),
        ("data", None, BufferError, "24 bytes has no memory, .* in another form"),
    ],
)
def test_a_capsule_that_describes_no_tensor_is_refused(pair, kind, member, value, error, words):
    pub, sub = pair
    ways = [pub.publish, dlx.tensor, lambda x: pub.publish({"a": x})]
    if member != "data":  # the shape and type of what has no memory can be looked at
        ways.append(pub.empty_like)
    for way in ways:
        library = Library(kind)
        setattr(library.managed.t, member, value)
        capsule = library.capsule()
        with pytest.raises(error, match=words):
            way(capsule)
        del capsule
        gc.collect()
        assert library.n_deleted == 1
    pub.publish(b"x")
    assert sub.take().seq == 1


def test_a_tensor_of_another_major_version_is_refused_as_one_that_is_no_buffer(pair):
    """As the array API says; the error is not about the daemon."""
    for what in (pair[0].publish, pair[0].empty_like, dlx.tensor):
        library = Library(Versioned, version=(2, 0))
        capsule = library.capsule()
        with pytest.raises(BufferError, match="DLPack 2.0, and only 1.x is known") as e:
            what(capsule)
        assert not isinstance(e.value, ConnectionError)
        del capsule
        gc.collect()
        assert library.n_deleted == 1


@KINDS
def test_like_looks_at_a_capsule_and_leaves_it(pair, kind):
    library = Library(kind, device=(2, 3))
    capsule = library.capsule()
    t = pair[0].empty_like(capsule)
    assert (t.shape, t.dtype, t.device) == ((2, 3), "int32", "cpu") and library.n_deleted == 0
    assert is_valid(id(capsule), library.name)
    del capsule  # never consumed: its own destructor deletes the tensor
    gc.collect()
    assert library.n_deleted == 1


@KINDS
def test_an_exception_midway_releases_it_once(pair, kind):
    pub, sub = pair
    for rest, error in (
        ({"b": object()}, TypeError),
        ({"b": np.zeros(2, ">f4")}, BufferError),
        ({"x" * 70000: b"x"}, dlx.Error),
    ):
        library = Library(kind)
        capsule = library.capsule()
        with pytest.raises(error):
            pub.publish({"a": capsule, **rest})
        assert is_used(capsule) and library.n_deleted == 1
        del capsule
        gc.collect()
        assert library.n_deleted == 1
    twice = Library(kind)
    capsule = twice.capsule()
    with pytest.raises(BufferError, match="taken before"):
        pub.publish([capsule, capsule])
    assert is_used(capsule) and twice.n_deleted == 1
    with pytest.raises(dlx.Timeout):
        sub.take(0)


@KINDS
@pytest.mark.parametrize(
    "kwargs, error",
    [({"device": (8, 0)}, dlx.DeviceError), ({"version": (2, 0)}, BufferError)],
    ids=["device", "version"],
)
def test_a_capsule_that_cannot_be_carried_is_released(pair, kind, kwargs, error):
    if kind is Legacy and "version" in kwargs:
        pytest.skip("a tensor of before 1.0 has no version")
    library = Library(kind, **kwargs)
    capsule = library.capsule()
    if "version" in kwargs:
        with pytest.raises(error):
            pair[0].empty_like(capsule)
        assert not is_used(capsule) and library.n_deleted == 0
    with pytest.raises(error):
        pair[0].publish(capsule)
    assert is_used(capsule) and library.n_deleted == 1


@KINDS
def test_strict_refuses_the_copy_and_releases_it(pair, kind):
    library = Library(kind)
    capsule = library.capsule()
    with pytest.raises(dlx.WouldCopy):
        pair[0].publish(capsule, strict=True)
    assert is_used(capsule) and library.n_deleted == 1


@KINDS
def test_a_deleter_may_be_absent(pair, kind):
    pub, sub = pair
    pub.publish(Library(kind, has_deleter=False).capsule())
    assert np.array_equal(np.asarray(sub.take()[0]), VALUES)


def test_bits_of_before_dlpack_1_are_refused(pair):
    """MXNet's bool: named uint1, a byte each. Packed, seven of eight elements would be lost."""
    library = Library(Legacy)
    library.managed.t.code, library.managed.t.bits = 1, 1
    capsule = library.capsule()
    for what in (pair[0].empty_like, pair[0].publish):
        with pytest.raises(BufferError, match="uint1 .* whether they are packed"):
            what(capsule)
    assert is_used(capsule) and library.n_deleted == 1
    library = Library(Versioned)
    library.managed.t.code, library.managed.t.bits, library.managed.t.byte_offset = 1, 1, 0
    pair[0].publish(library.capsule())
    assert pair[1].take()[0].dtype == "uint1"


def test_an_object_that_is_no_capsule_is_named(pair):
    class Gives:
        def __dlpack__(self, **kwargs):
            return 3

    with pytest.raises(TypeError, match=r"__dlpack__\(\) returned 3, which is no capsule"):
        pair[0].publish(Gives())


def test_capsules_leave_nothing(c):
    with c.publisher("a", history=2) as pub, c.subscribe("a", timeout=PATIENCE) as sub:
        n = count_fds()
        for _ in range(50):
            library = Library(Versioned)
            pub.publish(library.capsule())
            sub.take()
            assert library.n_deleted == 1
        assert count_fds() <= n + 2
