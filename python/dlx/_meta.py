# SPDX-License-Identifier: Apache-2.0
"""Metadata of messages: bytes, or a dict that travels as JSON."""
import json


def _plain(value):
    """What JSON does not have: numbers of NumPy and others."""
    item = getattr(value, "item", None)
    if callable(item):
        try:
            return item()
        except (ValueError, RuntimeError):
            raise TypeError(f"metadata holds an array, of type {type(value).__name__}: publish it as a tensor of the "
                            "message, or as a list (tolist())") from None
    raise TypeError(f"metadata holds a value of type {type(value).__name__}, which JSON cannot: convert it to str, "
                    "numbers, lists or dicts, or let meta be bytes")


def encode(meta):
    if isinstance(meta, dict):
        try:
            return json.dumps(meta, default=_plain, separators=(",", ":"), allow_nan=False).encode()
        except (ValueError, RecursionError) as e:
            raise ValueError(f"metadata that JSON cannot hold (NaN, infinity, or too deep): {e}; pass bytes") from None
    if isinstance(meta, (bytes, bytearray, memoryview)):
        return bytes(meta)
    raise TypeError(f"metadata is a dict or bytes, not {type(meta).__name__}: meta={{\"key\": value}}")


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
