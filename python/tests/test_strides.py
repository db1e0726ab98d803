# SPDX-License-Identifier: Apache-2.0
"""Strides of received tensors, as their consumers see them: also those of dimensions of
size 1 and of empty tensors, which no element depends on.
"""

import importlib.util
import math
import pickle

import dlx
import numpy as np
import pytest
from dlpack_abi import Legacy, is_valid, look, pointer_of

SHAPES = [(8, 1, 28, 28), (1, 1, 5, 8), (1, 72), (72, 1), (1,), (1, 1, 1), (2, 3), (1, 2, 1) * 4]
EMPTY = [(3, 0, 2), (0, 1, 4), (1, 0)]


def row_major(shape):
    return tuple(math.prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape)))


def ways_in(pub, shape):
    """Objects that can be published as a tensor of this shape, by name."""
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    own = pub.empty(shape)
    np.asarray(own)[...] = x
    ones = tuple(0 if n == 1 else n for n in x.strides)  # as np.newaxis and broadcasts have it
    return {
        "copied": x,
        "own": own,
        "own, in a set": {"a": pub.empty_like(x)},
        "of other strides": np.lib.stride_tricks.as_strided(x, shape, ones),
        "column-major": np.asfortranarray(x),
    }


def strides_of_capsules(t):
    capsule = t.__dlpack__(max_version=(1, 0))
    yield look(capsule).t
    legacy = t.as_legacy().__dlpack__()
    assert is_valid(id(legacy), Legacy.NEW)
    yield Legacy.from_address(pointer_of(id(legacy), Legacy.NEW)).t


@pytest.mark.parametrize("shape", SHAPES + EMPTY, ids=str)
def test_every_way_out_has_the_strides_of_a_fresh_array(pair, shape):
    pub, sub = pair
    want = row_major(shape)
    assert pub.empty(shape).strides == want
    for name, x in ways_in(pub, shape).items():
        pub.publish(x)
        msg = sub.take()
        t = msg[0]
        assert t.strides == want, name
        for each in (msg.private(0), t.copy(), pickle.loads(pickle.dumps(t)), dlx.tensor(t)):
            assert each.strides == want, name
        for managed in strides_of_capsules(t):
            assert tuple(managed.strides[: len(shape)]) == want, name
        view, bytes_ = memoryview(t), tuple(4 * n for n in want)
        assert view.c_contiguous and view.strides == bytes_, name
        assert t.__array_interface__["strides"] == bytes_, name
        array = np.asarray(t)
        assert array.flags.c_contiguous, name
        if math.prod(shape) > 0:  # NumPy has 0 for all strides of an empty array
            assert array.strides == np.empty(shape, np.float32).strides, name


def test_a_column_or_nothing_is_contiguous_in_both_ways(pair):
    for shape in [(72, 1), (3, 0, 2)]:
        view = memoryview(pair[0].empty(shape))
        assert view.c_contiguous and view.f_contiguous


def test_a_new_axis_has_a_stride_of_row_major_order(pair):
    t = pair[0].empty((2, 3))
    assert t[None].strides == (6, 3, 1) and t[:, None].strides == (3, 3, 1)
    assert t[..., None].strides == (3, 1, 1) and t[None, None, 1].strides == (3, 3, 1)
    assert t[:, None, 1:].strides == (3, 2, 1) and t[0, 0, None].strides == (1,)


# -- frameworks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES + EMPTY, ids=str)
def test_tvm_ffi_takes_each_shape_as_contiguous(pair, shape):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    pub, sub = pair
    for name, x in ways_in(pub, shape).items():
        pub.publish(x)
        y = tvm_ffi.from_dlpack(sub.take()[0])
        assert y.is_contiguous() and tuple(y.strides) == row_major(shape), name


@pytest.mark.parametrize("shape", SHAPES + EMPTY, ids=str)
def test_torch_finds_each_memory_format_as_in_a_fresh_tensor(pair, shape):
    torch = pytest.importorskip("torch")
    pub, sub = pair
    formats = [torch.contiguous_format] + {
        4: [torch.channels_last],
        5: [torch.channels_last_3d],
    }.get(len(shape), [])
    fresh = torch.empty(shape)
    for name, x in ways_in(pub, shape).items():
        pub.publish(x)
        t = sub.take()[0]
        legacy = torch.utils.dlpack.from_dlpack(t.as_legacy().__dlpack__())
        for y in (torch.from_dlpack(t), legacy, t.torch(), t.copy().torch()):
            assert y.stride() == fresh.stride(), name
            for each in formats:
                want = fresh.is_contiguous(memory_format=each)
                assert y.is_contiguous(memory_format=each) == want, (name, each)


def test_torch_convolves_grey_images_and_flattens_the_result(pair):
    torch = pytest.importorskip("torch")
    pub, sub = pair
    conv = torch.nn.Conv2d(1, 4, 5)
    pub.publish(torch.rand(8, 1, 28, 28))
    y = conv(torch.from_dlpack(sub.take()))
    assert y.view(8, -1).shape == (8, 4 * 24 * 24)


def test_torch_takes_a_row_as_another_type(pair):
    torch = pytest.importorskip("torch")
    pub, sub = pair
    pub.publish(torch.arange(72, dtype=torch.uint8)[None])
    assert torch.from_dlpack(sub.take()).view(torch.int64).shape == (1, 9)


def test_a_view_of_a_torch_tensor_that_is_copied_arrives_row_major(pair):
    """Also one that is channels_last, whose order is not that of its strides."""
    torch = pytest.importorskip("torch")
    pub, sub = pair
    x = torch.rand(2, 1, 4, 5).to(memory_format=torch.channels_last)
    pub.publish(x)
    y = torch.from_dlpack(sub.take())
    assert y.stride() == (20, 20, 5, 1) and torch.equal(x, y)


@pytest.mark.parametrize("shape", SHAPES + EMPTY, ids=str)
def test_jax_and_tensorflow_take_each_shape(pair, shape):
    pub, sub = pair
    takers = []
    if importlib.util.find_spec("jax"):
        import jax

        takers.append(lambda t: jax.dlpack.from_dlpack(t.as_legacy()))
    if importlib.util.find_spec("tensorflow"):
        import tensorflow as tf

        takers.append(lambda t: tf.experimental.dlpack.from_dlpack(t.as_legacy().__dlpack__()))
    if not takers:
        pytest.skip("neither jax nor tensorflow is installed")
    for name, x in ways_in(pub, shape).items():
        pub.publish(x)
        t = sub.take()[0]
        for take in takers:
            y = take(t)
            assert tuple(y.shape) == shape and np.array_equal(np.asarray(y), np.asarray(t)), name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_check_of_the_triton_client_accepts_each_shape(pair, shape):
    check = pytest.importorskip("tritonclient.utils._dlpack").is_contiguous_data
    pub, sub = pair
    for name, x in ways_in(pub, shape).items():
        pub.publish(x)
        for managed in strides_of_capsules(sub.take()[0]):
            assert check(managed.ndim, managed.shape, managed.strides), name
