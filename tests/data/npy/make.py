#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the .npy files of this folder, with NumPy 2.4.6; run in this folder.

Item i of an array in row-major order has the value i, except where noted.
"""

import numpy as np

np.save("f4.npy", np.arange(24, dtype="<f4").reshape(2, 3, 4))
np.save("f4_fortran.npy", np.asfortranarray(np.arange(24, dtype="<f4").reshape(2, 3, 4)))
np.save("i4_big.npy", np.arange(6, dtype=">i4").reshape(3, 2))
np.save(
    "c16_big_fortran.npy", np.asfortranarray(np.array([[0, 1 + 10j], [2, 3 - 30j]], dtype=">c16"))
)
np.save("bool.npy", np.array([False, True, True]))
np.save("f2.npy", np.arange(5, dtype="<f2"))
np.save("scalar.npy", np.array(42, dtype="<i8"))  # no dimension
np.save("empty.npy", np.zeros((0, 3), dtype="<u2"))
np.save("objects.npy", np.array([None, {}], dtype=object), allow_pickle=True)
np.save("struct.npy", np.zeros(2, dtype=[("x", "<f4"), ("y", "<i2")]))
np.save("datetime.npy", np.array(["2026-01-01"], dtype="<M8[s]"))
np.save("text.npy", np.array(["ab", "c"]))
for version in (2, 3):
    with open(f"v{version}.npy", "wb") as f:
        np.lib.format.write_array(f, np.arange(4, dtype="u1"), version=(version, 0))
with open("two.npy", "wb") as f:  # two arrays, one after the other
    np.save(f, np.arange(2, dtype="<u2"))
    np.save(f, np.arange(3, dtype="<i8"))
