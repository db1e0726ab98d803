#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes reference.npz anew; with a file that dlxctl saved out of it, checks that NumPy reads the
same."""

import os
import sys

import numpy as np

ARRAYS = {
    "rgb": np.arange(24, dtype="f4").reshape(2, 3, 4),
    "fortran": np.asfortranarray(np.arange(6, dtype="i8").reshape(2, 3)),
    "swapped": np.array([1, 2, 3], dtype=">i2"),
    "layer/0": np.array(1.5, dtype="f2"),
    "empty": np.zeros((0, 3), dtype="u1"),
}

if len(sys.argv) == 1:
    np.savez_compressed(os.path.join(os.path.dirname(__file__), "reference.npz"), **ARRAYS)
    sys.exit()
with np.load(sys.argv[1]) as file:
    assert list(file) == list(ARRAYS), list(file)
    for name, array in ARRAYS.items():
        assert file[name].dtype == array.dtype.newbyteorder("="), (name, file[name].dtype)
        assert file[name].shape == array.shape, (name, file[name].shape)
        assert (file[name] == array).all(), name
