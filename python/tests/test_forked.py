# SPDX-License-Identifier: Apache-2.0
"""The parent's tensors in a forked child: private memory, as the workers of PyTorch's
DataLoader do, and nothing of libdlx.
"""

import pickle

import dlx
import numpy as np
from conftest import in_child

LARGE = 1 << 20  # private() copies what is small, and makes a view of what is large


def test_private_memory_is_there_in_a_forked_child(pair):
    pub, sub = pair
    pub.publish(b"abc")
    msg = sub.take()
    own = {
        "tensor": dlx.tensor(b"abc"),
        "copy": msg[0].copy(),
        "pickle": pickle.loads(pickle.dumps(msg[0])),
        "private": msg.private(0),
        "bits": dlx.tensor(b"abc")._as_bits(),
        "legacy": dlx.tensor(b"abc").as_legacy(),
    }
    for name, t in own.items():
        assert in_child(t.tobytes) == str(b"abc"), name
        assert in_child(lambda: np.asarray(t).tolist()) == "[97, 98, 99]", name


def test_memory_that_libdlx_mapped_is_absent_in_a_forked_child(pair):
    pub, sub = pair
    pub.publish(np.zeros(LARGE, np.uint8))
    msg = sub.take()
    x = pub.zeros(3, "uint8")
    mapped = {
        "received": msg[0],
        "view": msg.private(0),
        "allocated": x,
        "bits": msg[0]._as_bits(),
        "legacy": msg[0].as_legacy(),
        "like": pub.empty_like({"a": b"abc"})["a"],
    }
    for name, t in mapped.items():
        assert in_child(t.tobytes).startswith("Forked: "), name
