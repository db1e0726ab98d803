# SPDX-License-Identifier: Apache-2.0
"""Properties of an array that no protocol tells, beside its elements: such an array is refused, so
that nothing is lost without a word.
"""

import ctypes
import importlib.util

import dlx
import numpy as np
import pytest

MASKED = {
    "mask": np.ma.array([1, 2, 3], mask=[0, 1, 0]),
    "no mask yet": np.ma.array([1, 2, 3]),
    "0-d": np.ma.array(1.5, mask=True),
    "the constant": np.ma.masked,
    "records": np.ma.array([(1, 2.0)], dtype="i4,f4"),
    "view": np.ma.array(np.eye(3), mask=np.eye(3))[::2].T,
    "subclass": np.arange(3.0).view(type("Mine", (np.ma.MaskedArray,), {})),
}


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_is_not_lost(pair, name):
    pub, sub = pair
    x = MASKED[name]
    for use in (
        lambda: pub.publish(x),
        lambda: pub.publish({"a": np.zeros(1), "x": x}),
        lambda: pub.publish([x]),
        lambda: dlx.tensor(x),
    ):
        with pytest.raises(BufferError, match="its mask would be lost: publish x.filled"):
            use()
    if x.dtype.names is None:  # what the words advise
        assert np.array_equal(np.asarray(dlx.tensor(x.filled(7))), x.filled(7))
        pub.publish({"data": x.data, "mask": np.ma.getmaskarray(x)})
        msg = sub.take()
        assert np.array_equal(np.asarray(msg["mask"]), np.ma.getmaskarray(x))
        assert np.array_equal(np.asarray(msg["data"]), x.data)


def test_an_object_with_a_method_of_that_name_is_not_masked(pair):
    """As of pandas, which chooses elements."""

    class Chooses(np.ndarray):
        def mask(self, condition):
            raise AssertionError("not to be called")

    assert np.array_equal(np.asarray(dlx.tensor(np.arange(3).view(Chooses))), [0, 1, 2])


class Union(ctypes.Union):
    _fields_ = [("a", ctypes.c_int32), ("b", ctypes.c_float)]


class Packed(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("a", ctypes.c_int32), ("b", ctypes.c_float)]


NO_NUMBERS = {
    "date": np.datetime64("2020-01-01"),
    "no date": np.datetime64("NaT"),
    "time": np.timedelta64(5, "s"),
    "dates": np.zeros(2, "M8[s]"),
    "union": Union(),
    "unions": (Union * 2)(),
    "packed": Packed(1, 2),
    "pointers": (ctypes.c_void_p * 2)(),
    "text": np.array(["ab"]),
    "bytes": np.array([b"ab"]),
    "one field": np.zeros(2, [("a", "i4")]),
    "record": np.rec.array([(1, 2.0)], dtype="i4,f4"),
    "a record": np.zeros(1, "i4,f4")[0],
    "void": np.void(b"abcd"),
    "voids": np.zeros(2, "V2"),
    "object": np.array([1, None]),
    "big-endian": np.zeros(2, ">f8"),
    "letters": np.array(list("ab")),
}


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_an_object_that_is_no_number_is_not_taken_for_one(pair, name):
    with pytest.raises((BufferError, ValueError, TypeError)):
        pair[0].publish(NO_NUMBERS[name])


@pytest.mark.skipif(
    np.finfo(np.longdouble).nmant != 63, reason="long double has not the 80 bits of x86 here"
)
def test_80_bits_are_not_taken_for_128(pair):
    for x in (
        np.ones(2, np.longdouble),
        np.longdouble(1),
        (ctypes.c_longdouble * 2)(),
        np.ones(2, np.clongdouble),
    ):
        with pytest.raises(BufferError, match="only numbers that DLPack has"):
            pair[0].publish(x)


def test_eight_bytes_are_no_date(pair):
    for x in (bytes(8), np.zeros(8, np.uint8), np.bytes_(b"12345678"), bytearray(8)):
        assert dlx.tensor(x).dtype == "uint8" and dlx.tensor(x).shape == (8,)


# A process each: not all of them bear each other. `refused` are to raise, and say why; `passed`
# have all their values.
OTHERS = {
    "pandas": (
        "import pandas as pd",
        [
            "pd.Series([1, None], dtype='Int64')",
            "pd.array([1, None])",
            "pd.DataFrame({'a': [1]})",
            "pd.Categorical(['a'])",
            "pd.Index([1])",
            "pd.date_range('2020', periods=2)",
            "pd.arrays.SparseArray([0, 1])",
        ],
        [],
    ),
    "xarray": ("import xarray as xr", ["xr.DataArray([1.0, 2.0])", "xr.Variable('x', [1, 2])"], []),
    "pyarrow": (
        "import pyarrow as pa",
        [
            "pa.array([1, None])",
            "pa.array(['a'])",
            "pa.array([True])",
            "pa.chunked_array([[1], [2]])",
            "pa.array(['a']).dictionary_encode()",
        ],
        ["pa.array([9, 1, 2])[1:]"],
    ),
    "torch": (
        "import torch",
        [
            "torch.eye(3).to_sparse()",
            "torch.eye(3).to_sparse_csr()",
            "torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)",
            "torch.tensor([1 + 2j]).conj()",
            "torch.tensor([1 + 2j]).conj().imag",
            "torch.ones(3, device='meta')",
            "torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])",
            "torch.ones(2, 2).to_mkldnn()",
            "torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))",
        ],
        [
            "torch.tensor([1, 2])",
            "torch.tensor([1.0, 2.0], requires_grad=True)",
            "torch.nn.Parameter(torch.tensor([1.0, 2.0]))",
        ],
    ),
    "jax": (
        "import os; os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'; import "
        "jax, numpy as np; import jax.numpy as jnp; "
        "from jax.sharding import Mesh, NamedSharding, PartitionSpec as P; mesh = "
        "Mesh(np.array(jax.devices()), ('x',))",
        [
            "jax.device_put(jnp.arange(8), NamedSharding(mesh, P('x')))",
            "jax.device_put(jnp.arange(8), NamedSharding(mesh, P()))",
            "jax.random.key(0)",
            "jax.ShapeDtypeStruct((2,), jnp.float32)",
        ],
        ["jnp.array([1, 2])", "jax.device_put(jnp.array([1, 2]), jax.devices()[1])"],
    ),
    "tensorflow": (
        "import tensorflow as tf",
        [
            "tf.constant(['a'])",
            "tf.Variable([1.0]).handle",
            "tf.ragged.constant([[1], [2, 3]])",
            "tf.raw_ops.EmptyTensorList(element_shape=[1], max_num_elements=1, "
            "element_dtype=tf.float32)",
            "tf.sparse.from_dense([[1, 0]])",
        ],
        ["tf.constant([1, 2])"],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_libraries_lose_nothing_either(peer, name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"no {name}")
    setup, refused, passed = OTHERS[name]
    p = peer(f"""
{setup}
pub, sub = c.publisher("t"), c.subscribe("t")
for code in {refused + passed!r}:
    x = eval(code)
    try:
        pub.publish(x)
        say("passed", memoryview(sub.take(timeout=60)[0]).tolist())
    except (dlx.Error, BufferError, TypeError, ValueError, RuntimeError) as e:
        say("refused" if str(e) else "refused without a word")
""")
    for code in refused:
        assert p.hear() == "refused", code
    for code in passed:
        assert p.hear() in ("passed [1, 2]", "passed [1.0, 2.0]"), code
    p.end()
