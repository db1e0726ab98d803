# SPDX-License-Identifier: Apache-2.0
"""Metadata of messages: bytes, or a dict that travels as JSON.

A value that JSON lacks is an object with one key, which begins with "dlx.": {"dlx.tuple": [1, 2]},
{"dlx.int": {"0": "a"}} (a dict with int keys), {"dlx.bytes": "AP8="} (base64),
{"dlx.complex": [1.0, 2.0]}, {"dlx.float": "nan"}. A dict that has such a key itself is
{"dlx.dict": {...}}. Bytes that could be read as a dict get a tab at the end, which JSON ignores.
JSON of other programs has no such tab, and is a dict. "dlx.tree" belongs to _tree.py.
"""

import base64
import json

_MARK = b"\t"


def dict_kind(keys, what):
    """Returns "dlx.dict" or "dlx.int"; TypeError for other keys."""
    if all(isinstance(key, str) for key in keys):
        return "dlx.dict"
    if all(type(key) is int for key in keys):
        return "dlx.int"
    odd = [repr(key) for key in keys if not isinstance(key, str) and type(key) is not int]
    raise TypeError(
        f"{what}: the keys of a dict are all str, or all int, not {odd[0] if odd else 'mixed'}"
    )


def wrap(kind, value):
    """Returns the JSON of a container, given its kind and the JSON of its content."""
    plain = kind == "dlx.dict" and not any(key.startswith("dlx.") for key in value)
    return value if plain or isinstance(value, list) and kind == "dlx.list" else {kind: value}


def _tag(value, path):
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        kind = dict_kind(value, path)
        return wrap(kind, {str(key): _tag(each, f"{path}[{key!r}]") for key, each in value.items()})
    if isinstance(value, (list, tuple)):
        return wrap(
            "dlx.list" if isinstance(value, list) else "dlx.tuple",
            [_tag(each, f"{path}[{i}]") for i, each in enumerate(value)],
        )
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"dlx.bytes": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return {"dlx.complex": [value.real, value.imag]}
    if getattr(value, "size", 1) == 1 and callable(getattr(value, "item", None)):
        # numbers of NumPy and others
        return _tag(value.item(), path)
    if hasattr(value, "shape"):
        raise TypeError(
            f"{path} is an array, of type {type(value).__name__}: publish it as a tensor of the "
            f"message, or as a list (tolist())"
        )
    raise TypeError(
        f"{path} is of type {type(value).__name__}: convert it to str, numbers, lists or dicts, or "
        f"let meta be bytes"
    )


def split(value):
    """Returns the kind and the content of a container that _tag() or _tree wrote."""
    if isinstance(value, list):
        return "dlx.list", value
    if isinstance(value, dict) and len(value) == 1:
        ((key, inner),) = value.items()
        if key.startswith("dlx."):
            return key, inner
    return ("dlx.dict" if isinstance(value, dict) else None), value


_MAKE = {"dlx.bytes": base64.b64decode, "dlx.complex": lambda x: complex(*x), "dlx.float": float}


def untag(value):
    kind, inner = split(value)
    if kind is None or kind in _MAKE:
        return _MAKE[kind](inner) if kind else value
    if isinstance(inner, list):
        made = [untag(each) for each in inner]
        return tuple(made) if kind == "dlx.tuple" else made
    if kind not in ("dlx.dict", "dlx.int"):
        raise ValueError(f"unknown {kind}")
    return {int(key) if kind == "dlx.int" else key: untag(each) for key, each in inner.items()}


def loads(data):
    """Returns the dict that these bytes are in JSON; None if they are not a dict."""
    try:
        value = json.loads(data) if data[:1] == b"{" else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def dumps(value):
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def encode(meta):
    if isinstance(meta, dict):
        try:
            return dumps(_tag(meta, "meta"))
        except (ValueError, RecursionError) as e:
            raise ValueError(
                f"metadata that JSON cannot hold (NaN, infinity, or too deep): {e}; pass bytes"
            ) from None
    if isinstance(meta, (bytes, bytearray, memoryview)):
        data = bytes(meta)
        return data if loads(data) is None else data + _MARK
    raise TypeError(
        f'metadata is a dict or bytes, not {type(meta).__name__}: meta={{"key": value}}'
    )


def as_json(data):
    """Returns the result of encode() in a form that can be a value in other JSON."""
    value = loads(data)
    return (
        {"dlx.bytes": base64.b64encode(decode(data)).decode()}
        if value is None or data.endswith(_MARK)
        else value
    )


def decode(data):
    """Returns what encode() was given; None if there was nothing."""
    value = loads(data)
    if value is None:
        return data or None
    if data.endswith(_MARK):
        return data[: -len(_MARK)]
    try:
        return untag(value.get("meta")) if "dlx.tree" in value else untag(value)
    except Exception:  # another program's, which looks like ours: nothing in it is certain
        return value
