# SPDX-License-Identifier: Apache-2.0
"""Loads a message that holds a checkpoint into a model that has vLLM's load_weights(), and says
what does not fit. Needs PyTorch alone.
"""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import dlx


def names_of(msg: dlx.Message) -> list[str]:
    """Returns the names of a checkpoint's tensors; raises ValueError if the message is none."""
    if type(msg) is not dlx.NamedMessage:
        what = "a nested dict" if isinstance(msg, dlx.TreeMessage) else "tensors without names"
        raise ValueError(
            f"{msg.topic} holds {what}, no checkpoint: publish one flat dict of tensors by the "
            "names that they have in the model's files"
        )
    return list(msg)


# Shape and dtype of each tensor.
Layout = dict[str, tuple[tuple[int, ...], str]]


def layout_of(msg: dlx.Message) -> Layout:
    return {name: (msg[name].shape, str(msg[name].dtype)) for name in names_of(msg)}


def compare(old: Layout, new: Layout, topic: str) -> None:
    """Raises ValueError, which names one tensor, if a set is not of the model of the one before."""
    for name in sorted(old.keys() | new.keys()) if old and old != new else ():
        was, now = (" ".join(map(str, x.get(name, ("missing",)))) for x in (old, new))
        if was != now:
            raise ValueError(
                f"{topic}: {name!r} is {now} and was {was}: an engine swaps between versions of "
                "one model"
            )


class _KindCheck(TorchDispatchMode):
    """Refuses a copy between integers and floating point numbers, which copy_() would convert.
    Between floating point types vLLM converts, as it does when it reads files.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.copy_.default:
            to, of = args[0].dtype, args[1].dtype
            if to.is_floating_point != of.is_floating_point:
                raise TypeError(f"the parameter is {to}, the tensor {of}")
        return func(*args, **(kwargs or {}))


_ADVICE = "publish the whole checkpoint, or, if this is all of it, set allow_missing"


def check_parts(model: nn.Module, msg: dlx.Message) -> None:
    """Raises ValueError if a weight is missing beside its siblings. vLLM makes one parameter of
    several tensors (qkv_proj of q_proj, k_proj and v_proj), and takes it for loaded when one of
    them is. A bias or a scale need not have siblings.
    """
    names = set(names_of(msg))
    needed = set()
    for parts in getattr(model, "packed_modules_mapping", {}).values():
        for name in names:
            stem = name.removesuffix(".weight")
            prefix, dot, part = stem.rpartition(".")
            if part in parts:
                needed |= {prefix + dot + p + name[len(stem) :] for p in parts}
    if missing := sorted(needed - names):
        raise ValueError(
            f"{msg.topic} lacks {len(missing)} tensors that {type(model).__name__} needs, the "
            f"first is {missing[0]!r}: {_ADVICE}"
        )


def load(
    model: nn.Module, msg: dlx.Message, check_loaded: Callable[[set[str]], object] | None
) -> None:
    """Copies what this rank needs of a message into the model's parameters. `check_loaded` raises
    ValueError for names of parameters that are too few; None accepts a part of a checkpoint. Raises
    ValueError that names the topic, and the tensor that does not fit or is missing.
    """
    names = names_of(msg)
    now = ""

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal now
        for now in names:
            # On the CPU a private view, copied when it is written to: a model's loader may change
            # what it is given.
            tensor = msg[now]
            yield now, torch.from_dlpack(msg.private(now) if tensor.device == "cpu" else tensor)

    try:
        with _KindCheck():
            loaded = model.load_weights(weights())
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as e:
        what = f"{now!r} {list(msg[now].shape)} {msg[now].dtype}" if now else "an empty set"
        why = f"{type(e).__name__}: {e}".rstrip(": ")
        raise ValueError(
            f"{msg.topic}: {what} does not fit into {type(model).__name__} ({why}): publish the "
            "checkpoint of this model"
        ) from e
    if check_loaded is not None and loaded is not None:
        try:
            check_loaded(loaded)
        except ValueError as e:
            raise ValueError(f"{msg.topic}: {e}: {_ADVICE}") from e
