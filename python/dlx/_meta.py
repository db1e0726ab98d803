# SPDX-License-Identifier: Apache-2.0
"""Metadata of messages: bytes, or a dict that travels as JSON."""
import json


def _plain(value):
    """What JSON does not have: numbers of NumPy and others."""
    item = getattr(value, "item", None)
    if callable(item):
        return item()
    raise TypeError(f"metadata of type {type(value).__name__}: what JSON can hold, or bytes")


def encode(meta):
    if isinstance(meta, dict):
        try:
            return json.dumps(meta, default=_plain, separators=(",", ":"), allow_nan=False).encode()
        except (ValueError, RecursionError) as e:
            raise ValueError(f"metadata that JSON cannot hold (NaN, infinity, or too deep): {e}; pass bytes") from None
    if isinstance(meta, (bytes, bytearray, memoryview)):
        return bytes(meta)
    raise TypeError(f"metadata is a dict or bytes, not {type(meta).__name__}")


def decode(data):
    """The dict that it was, if it was one; else the bytes; None when there are none. What is nested too deep is bytes, too."""
    if not data:
        return None
    if data[:1] == b"{":
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            pass
    return data
