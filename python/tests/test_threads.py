# SPDX-License-Identifier: Apache-2.0
"""Several threads use the same tensor."""

import threading

import dlx
import pytest
from conftest import PATIENCE, blocking, until


def raises(use):
    try:
        use()
    except ValueError as e:
        return str(e)
    return ""


def test_a_tensor_that_another_thread_publishes_is_not_looked_at(c):
    """libdlx may free the tensor's description, without the GIL."""
    with blocking(c, max_held=1) as (pub, sub):
        with pytest.raises(dlx.Timeout):
            while True:
                pub.publish(b"x", timeout=0.01)
        x = pub.zeros(3, "uint8")
        thread = threading.Thread(target=pub.publish, args=(x,))
        thread.start()
        until(lambda: raises(lambda: x.shape), "that the other thread publishes it")
        assert repr(x) == "<dlx.Tensor, being published>"
        for name in ("device", "__array_interface__", "__cuda_array_interface__"):
            assert (
                raises(lambda: getattr(x, name))
                == "this tensor is being published by another thread"
            ), name
        for _ in range(2):
            sub.take(PATIENCE)
        thread.join()
        assert x.published and x.device == "cpu" and repr(x) == "<dlx.Tensor, published>"
