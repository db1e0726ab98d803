# SPDX-License-Identifier: Apache-2.0
"""How each framework makes a tensor, takes a received one, and shows what is in it: for
exchange.py.

A framework is imported when its class is made. `make` gets the bytes of an array of SHAPE,
row-major, and gives an array with one of LAYOUTS; `take` gets a received dlx.Tensor; `raw` gives
the elements as bytes, row-major; `address` says where they lie, or None if the framework does not
tell. `must` names the types that it has to take and to give, or exchange.py fails.
"""

import dlx
from dlx import _dlx

SHAPE = (2, 3, 4)
BASIC = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
DTYPES = (
    BASIC[:6]
    + ["uint16", "uint32", "uint64"]
    + BASIC[6:9]
    + [
        "bfloat16",
        "complex64",
        "complex128",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "int4",
    ]
)
LAYOUTS = ["plain", "0-d", "empty", "transposed", "sliced", "negative", "broadcast", "offset"]


class Framework:
    package = None
    must = []
    renames = {}  # types that some versions of it give as another one

    def layout(self, x, name):
        """Of an array that NumPy's way of indexing works on."""
        if name == "0-d":
            return x[1, 2, 3]
        if name == "empty":
            return x[:, 0:0]
        if name == "transposed":
            return x.T
        if name == "sliced":
            return x[:, ::2, 1:3]
        if name == "negative":
            return x[::-1, :, ::-1]
        if name == "offset":
            return x[1:]
        return x

    def address(self, x):
        return None


class NumPy(Framework):
    package = "numpy"
    must = [x for x in DTYPES if "float8" not in x and x not in ("bfloat16", "int4")]

    def __init__(self):
        import numpy

        self.np = numpy
        self.version = numpy.__version__
        try:
            import ml_dtypes

            self.extended, self.version = (
                ml_dtypes,
                f"{self.version}, ml_dtypes {ml_dtypes.__version__}",
            )
        except ImportError:
            self.extended = None

    def dtype(self, name):
        if name in self.must:
            return self.np.dtype(name)
        if not self.extended:
            raise TypeError(f"NumPy has no {name}; the package ml_dtypes is not installed")
        return self.np.dtype(getattr(self.extended, name))

    def make(self, raw, dtype, layout):
        x = self.np.frombuffer(raw, self.dtype(dtype)).reshape(SHAPE)
        return (
            self.np.broadcast_to(x[0, 0], (3, 4))
            if layout == "broadcast"
            else self.layout(x, layout)
        )

    def take(self, tensor):
        if tensor.dtype in self.must and self.np.lib.NumpyVersion(self.np.__version__) >= "2.1.0":
            return self.np.from_dlpack(tensor)
        return tensor.numpy()

    def raw(self, x):
        return self.np.ascontiguousarray(x).tobytes()

    def address(self, x):
        return x.ctypes.data


class PyTorch(Framework):
    package = "torch"
    must = BASIC + ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
    renames = {"int4": "int8"}  # its int4 is a name for bytes

    def __init__(self):
        import torch

        self.torch, self.version = torch, torch.__version__

    def make(self, raw, dtype, layout):
        x = self.torch.frombuffer(bytearray(raw), dtype=getattr(self.torch, dtype)).reshape(SHAPE)
        if layout == "transposed":
            return x.permute(2, 1, 0)
        return x[0, 0].expand(3, 4) if layout == "broadcast" else self.layout(x, layout)

    def take(self, tensor):
        return self.torch.from_dlpack(tensor)

    def raw(self, x):
        return x.contiguous().reshape(-1).view(self.torch.uint8).numpy().tobytes()

    def address(self, x):
        return x.data_ptr()


class Jax(Framework):
    """Asks for the DLPack of before 1.0: it does not write to arrays, so as_legacy() is right."""

    package = "jax"
    must = [x for x in BASIC] + ["bfloat16", "uint16", "uint32", "uint64"]

    def __init__(self):
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_platforms", "cpu")
        self.jax, self.version, self.numpy = jax, jax.__version__, NumPy()

    def make(self, raw, dtype, layout):
        x = self.jax.numpy.asarray(self.numpy.make(raw, dtype, "plain"))
        return (
            self.jax.numpy.broadcast_to(x[0, 0], (3, 4))
            if layout == "broadcast"
            else self.layout(x, layout)
        )

    def take(self, tensor):
        return self.jax.dlpack.from_dlpack(tensor.as_legacy())

    def raw(self, x):
        return self.numpy.np.asarray(x).tobytes()

    def address(self, x):
        return x.unsafe_buffer_pointer()


class TensorFlow(Framework):
    """Takes a capsule of before 1.0."""

    package = "tensorflow"
    must = [x for x in BASIC if x != "bool"] + ["bfloat16"]

    def __init__(self):
        import tensorflow

        self.tf, self.version, self.numpy = tensorflow, tensorflow.__version__, NumPy()

    def make(self, raw, dtype, layout):
        x = self.tf.constant(self.numpy.make(raw, dtype, "plain"))
        if layout == "transposed":
            return self.tf.transpose(x)
        return (
            self.tf.broadcast_to(x[0, 0], (3, 4))
            if layout == "broadcast"
            else self.layout(x, layout)
        )

    def take(self, tensor):
        return self.tf.experimental.dlpack.from_dlpack(tensor.as_legacy().__dlpack__())

    def raw(self, x):
        return x.numpy().tobytes()


class Tvm(Framework):
    package = "tvm_ffi"
    must = DTYPES[:-1]

    def __init__(self):
        import tvm_ffi

        self.tvm, self.version = tvm_ffi, tvm_ffi.__version__

    def make(self, raw, dtype, layout):
        if layout not in ("plain", "0-d", "empty"):
            raise NotImplementedError("it has no views")
        shape = {"plain": SHAPE, "0-d": (), "empty": (2, 0, 4)}[layout]
        part = {"plain": raw, "0-d": raw[-4:], "empty": b""}[layout]
        return self.tvm.from_dlpack(_dlx.tensor_from_bytes(part, shape, dtype))

    def take(self, tensor):
        return self.tvm.from_dlpack(tensor)

    def raw(self, x):
        return dlx.tensor(x).tobytes()


class OnnxRuntime(Framework):
    package = "onnxruntime"
    must = ["float32", "int64", "uint8"]
    renames = {"bool": "uint8"}  # as DLPack did before it had bool

    def __init__(self):
        import onnxruntime

        self.ort, self.version, self.numpy = onnxruntime, onnxruntime.__version__, NumPy()

    def make(self, raw, dtype, layout):
        return self.ort.OrtValue.ortvalue_from_numpy(
            self.numpy.np.array(self.numpy.make(raw, dtype, layout), order="C")
        )

    def take(self, tensor):
        return self.ort.OrtValue.ortvalue_from_numpy(tensor.numpy())

    def raw(self, x):
        return x.numpy().tobytes()


class PyDLPack(Framework):
    package = "dlpack"

    def __init__(self):
        import importlib.metadata

        import dlpack

        self.dlpack, self.version, self.numpy = (
            dlpack,
            importlib.metadata.version("pydlpack"),
            NumPy(),
        )

    def make(self, raw, dtype, layout):
        x = self.numpy.make(raw, dtype, layout)
        return self.dlpack.asdlpack(x.copy() if layout == "plain" else x)

    def take(self, tensor):
        return self.dlpack.asdlpack(tensor.as_legacy())

    def raw(self, x):
        return dlx.tensor(x).tobytes()


class Builtin(Framework):
    """bytes, array, mmap: memoryview stands for all that have the buffer protocol."""

    package = "builtins"
    must = ["uint8", "int32", "float64", "bool"]
    formats = {
        "bool": "?",
        "int8": "b",
        "int16": "h",
        "int32": "i",
        "int64": "q",
        "uint8": "B",
        "uint16": "H",
        "uint32": "I",
        "uint64": "Q",
        "float32": "f",
        "float64": "d",
    }

    def __init__(self):
        import platform

        self.version = platform.python_version()

    def make(self, raw, dtype, layout):
        if dtype not in self.formats:
            raise TypeError(f"memoryview has no {dtype}")
        if layout != "plain":
            raise NotImplementedError("a memoryview of several dimensions has no other layout")
        return memoryview(raw).cast(self.formats[dtype], SHAPE)

    def take(self, tensor):
        return memoryview(tensor)

    def raw(self, x):
        return x.tobytes()


class Dlx(Framework):
    package = "dlx"
    must = DTYPES[:-1]

    def __init__(self):
        self.version = dlx.__version__

    def make(self, raw, dtype, layout):
        if layout != "plain":
            raise NotImplementedError("it has no views")
        return _dlx.tensor_from_bytes(raw, SHAPE, dtype)

    def take(self, tensor):
        return tensor.copy()

    def raw(self, x):
        return x.tobytes()


class Mpi(Framework):
    """Sends a tensor to itself; what it gives is memory of its own."""

    package = "mpi4py"
    must = ["float32", "float64", "int32", "uint8"]

    def __init__(self):
        import mpi4py
        from mpi4py import MPI

        self.mpi, self.memory = MPI, Builtin()
        library = (
            MPI.Get_library_version()
            .split("\n")[0]
            .replace("Version:", "")
            .strip("\0")
            .split(",")[0]
        )
        self.version = f"{mpi4py.__version__}, {' '.join(library.split())}"

    def make(self, raw, dtype, layout):
        memory = self.mpi.buffer.allocate(len(raw))
        memory[:] = raw
        return self.memory.make(memory, dtype, layout)

    def take(self, tensor):
        if tensor.dtype == "int4":
            raise TypeError("MPI has no elements smaller than a byte")
        x = _dlx.tensor_from_bytes(bytes(tensor.nbytes), tensor.shape, tensor.dtype)
        self.mpi.COMM_SELF.Sendrecv(tensor, 0, recvbuf=x, source=0)
        return x

    def raw(self, x):
        return x.tobytes()


class Nanobind(Framework):
    """Takes and gives arrays in modules that are compiled with it: python/tests/nanobind_probe.cpp
    is one.
    """

    package = "nanobind"
    must = BASIC + ["bfloat16"]
    codes = {
        "bool": (6, 8),
        "bfloat16": (4, 16),
        "complex64": (5, 64),
        "complex128": (5, 128),
        **{
            f"{name}{bits}": (code, bits)
            for code, name in enumerate(("int", "uint", "float"))
            for bits in (8, 16, 32, 64)
        },
    }

    def __init__(self):
        import nanobind

        try:
            import dlx_nanobind_probe as probe
        except ImportError:
            raise ImportError(
                "takes arrays in modules that are compiled with it: make check-interop compiles one"
            ) from None
        self.probe, self.version = probe, nanobind.__version__

    def make(self, raw, dtype, layout):
        if layout != "plain":
            raise NotImplementedError("it has no views")
        if dtype not in self.codes:
            raise TypeError(f"its headers have no {dtype}")
        return self.probe.make(raw, SHAPE, *self.codes[dtype])

    def take(self, tensor):
        return self.probe.take(tensor)

    def raw(self, x):
        return x.raw()

    def address(self, x):
        return x.address()


class MXNet(Framework):
    """Takes and gives bare capsules of before 1.0. The last release wants an older NumPy, so an
    environment of its own.
    """

    package = "mxnet"
    must = ["int8", "int32", "int64", "uint8", "float16", "float32", "float64"]

    def __init__(self):
        import warnings

        warnings.simplefilter("ignore")
        import mxnet
        import numpy

        self.mx, self.np, self.version = (
            mxnet,
            numpy,
            f"{mxnet.__version__}, NumPy {numpy.__version__}",
        )

    def make(self, raw, dtype, layout):
        if layout in ("0-d", "empty", "negative"):
            raise NotImplementedError(
                "it has no tensors of 0 dimensions or elements, and no negative steps"
            )
        x = self.mx.nd.array(
            self.np.frombuffer(raw, self.np.dtype(dtype)).reshape(SHAPE), dtype=dtype
        )
        x = (
            self.mx.nd.broadcast_to(x[0, 0].reshape((1, 4)), (3, 4))
            if layout == "broadcast"
            else self.layout(x, layout)
        )
        return x.to_dlpack_for_read()

    def take(self, tensor):
        return self.mx.nd.from_dlpack(tensor.as_legacy().__dlpack__())

    def raw(self, x):
        return x.asnumpy().tobytes()


def _absent(package, reason):
    def refuse(self):
        __import__(package)
        raise ImportError(reason)

    return type(package, (Framework,), {"package": package, "__init__": refuse})


GPU = "works on memory of GPUs only (python/tests/test_gpu_frameworks.py)"
ALL = {
    "NumPy": NumPy,
    "PyTorch": PyTorch,
    "JAX": Jax,
    "TensorFlow": TensorFlow,
    "TVM (tvm-ffi)": Tvm,
    "ONNX Runtime": OnnxRuntime,
    "pydlpack": PyDLPack,
    "memoryview": Builtin,
    "dlx": Dlx,
    "mpi4py": Mpi,
    "nanobind": Nanobind,
    "MXNet": MXNet,
    "CuPy": _absent("cupy", GPU),
    "cuDF": _absent("cudf", GPU),
    "Numba": _absent("numba", GPU),
}
