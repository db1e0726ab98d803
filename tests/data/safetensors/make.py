#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small .safetensors files by, and for, the reference implementation (the package safetensors, 0.8
or later).

usage: make.py          write reference.safetensors beside this file: every data type of whole
                        bytes, a scalar, a tensor without items, a name that JSON has to escape
       make.py FILE     read FILE and check that it has what reference.safetensors has
"""

import ctypes
import json
import os
import struct
import sys

import safetensors

# As the package calls them, as the format does, bytes an item.
DTYPES = [
    ("bool", "BOOL", 1),
    ("uint8", "U8", 1),
    ("int8", "I8", 1),
    ("float8_e5m2", "F8_E5M2", 1),
    ("float8_e4m3fn", "F8_E4M3", 1),
    ("float8_e8m0fnu", "F8_E8M0", 1),
    ("float8_e4m3fnuz", "F8_E4M3FNUZ", 1),
    ("float8_e5m2fnuz", "F8_E5M2FNUZ", 1),
    ("int16", "I16", 2),
    ("uint16", "U16", 2),
    ("float16", "F16", 2),
    ("bfloat16", "BF16", 2),
    ("int32", "I32", 4),
    ("uint32", "U32", 4),
    ("float32", "F32", 4),
    ("complex64", "C64", 8),
    ("float64", "F64", 8),
    ("int64", "I64", 8),
    ("uint64", "U64", 8),
]
META = {"format": "pt", "note": '"caf\u00e9"\n'}


def content(n):
    return bytes((7 * i + n) % (2 if n == 6 else 251) for i in range(n))


def tensors():
    found = {
        f"layer.{name}": (name, short, [2, 3], content(6 * size)) for name, short, size in DTYPES
    }
    found["scalar"] = ("float32", "F32", [], struct.pack("<f", 1.5))
    found["empty"] = ("int64", "I64", [3, 0, 2], b"")
    found['\u00fcber "x"'] = ("int8", "I8", [3], b"abc")
    return found


def write(path):
    keep, specs = [], {}
    for name, (dtype, _, shape, data) in tensors().items():
        keep.append(ctypes.create_string_buffer(data, max(len(data), 1)))
        specs[name] = safetensors.TensorSpec(
            dtype=dtype, shape=shape, data_ptr=ctypes.addressof(keep[-1]), data_len=len(data)
        )
    safetensors.serialize_file(specs, path, META)


def check(path):
    with open(path, "rb") as f:
        data = f.read()
    found = {
        name: (t["dtype"], list(t["shape"]), bytes(t["data"]))
        for name, t in safetensors.deserialize(data)
    }
    assert found == {
        name: (short, shape, raw) for name, (_, short, shape, raw) in tensors().items()
    }, found
    assert json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"] == META


if len(sys.argv) > 1:
    check(sys.argv[1])
else:
    write(os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference.safetensors"))
