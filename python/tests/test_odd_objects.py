# SPDX-License-Identifier: Apache-2.0
"""Objects that raise, recurse or answer nonsense where dlx asks them: an exception each, and nothing is swallowed that is not ours."""
import os

import numpy as np
import pytest

import dlx


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
